package rules

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// withoutColumns returns the mistakes of an error without their columns and lines, which
// TestMistakesShowTheirLine covers.
func withoutColumns(err error) string {
	var texts []string
	for _, m := range Mistakes(err) {
		field := m.Field
		if field != "" {
			field += ": "
		}
		texts = append(texts, fmt.Sprintf("%s:%d: %s%s", m.File, m.Line, field, m.Problem))
	}
	return strings.Join(texts, "\n")
}

func TestMistakesShowTheirLine(t *testing.T) {
	begin := "routes:\n- {name: a, topics: [in], output: out, key: [raw],\n"
	for _, v := range []struct{ name, file, want string }{
		{"value", begin + "   window: soon}\n", "r.yaml:3:12: routes[0].window: want a duration such as 24h, 10m or 500ms, found \"soon\"\n" +
			"    3 |    window: soon}\n" +
			"      |            ^"},
		{"unknown field", begin + "   window: 1h, colour: red}\n", "r.yaml:3:16: routes[0]: unknown field \"colour\"; known are " + fieldNames(routeFields) + "\n" +
			"    3 |    window: 1h, colour: red}\n" +
			"      |                ^"},
		{"syntax", "routes:\n- {name: a", "r.yaml:3:1: not valid YAML: did not find expected ',' or '}' (while parsing a flow mapping, begun in line 2)"},
		{"tab", "routes:\n\t- x", "r.yaml:2:1: not valid YAML: found character that cannot start any token (while scanning for the next token, begun in line 2)\n" +
			"    2 |  - x\n" +
			"      | ^"},
		{"characters of several bytes", begin + "   \"größe\": 1, window: 1h}\n", "r.yaml:3:4: routes[0]: unknown field \"größe\"; known are " + fieldNames(routeFields) + "\n" +
			"    3 |    \"größe\": 1, window: 1h}\n" +
			"      |    ^"},
		{"long line", "routes:\n- {name: a, topics: [in], output: out, key: [raw], dead_letter: " + strings.Repeat("d", 80) + ", window: soon" + strings.Repeat(" ", 100) + ", grace: 1m}\n",
			"r.yaml:2:155: routes[0].window: want a duration such as 24h, 10m or 500ms, found \"soon\"\n" +
				"    2 | " + strings.Repeat("d", 50) + ", window: soon" + strings.Repeat(" ", 36) + "\n" +
				"      | " + strings.Repeat(" ", 60) + "^"},
	} {
		t.Run(v.name, func(t *testing.T) {
			if _, err := ParseRoutes("r.yaml", []byte(v.file)); err == nil || err.Error() != v.want {
				t.Errorf("got\n%v\nwant\n%s", err, v.want)
			}
		})
	}
}

// TestLinesWithSecretsAreNotShown has secrets that were written into the file by mistake.
func TestLinesWithSecretsAreNotShown(t *testing.T) {
	for _, fields := range []string{
		"secret: hunter2", "secrte: hunter2", "windw: 1h, http: {path: /a, signature: {scheme: bearer, secret: hunter2}}",
		"http: {path: /a, signature: {scheme: bearer, secret:\n   [hunter2]}}",
	} {
		_, err := ParseRoutes("r.yaml", []byte("routes:\n- {name: a, topics: [in], window: 1h, output: out, key: [raw],\n   "+fields+"}\n"))
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", fields, err)
		}
	}
}

func TestMistakesOfJoinedErrors(t *testing.T) {
	_, err := ParseRoutes("r.yaml", []byte("routes:\n- {name: 7, window: soon}\n"))
	joined := errors.Join(errors.New("another"), fmt.Errorf("routes: %w", err))
	if got, want := len(Mistakes(joined)), len(Mistakes(err)); got != want || got < 2 {
		t.Errorf("%d mistakes of the joined error, %d of its part", got, want)
	}
	if got := Mistakes(errors.New("another")); got != nil {
		t.Errorf("%v", got)
	}
}
