//go:build unix

package peers

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/benchmarks/internal/bench"
)

// TestHandwrittenSettings compares the settings with those that the program reads, and
// its stores with those of the list.
func TestHandwrittenSettings(t *testing.T) {
	source, err := os.ReadFile("../../handwritten/main.go")
	if err != nil {
		t.Fatal(err)
	}
	text := string(source)
	settings := handwrittenSettings(bench.Task{App: "a", Brokers: []string{"x:1", "y:2"}, Input: "in", Workers: 3, Commit: 20 * time.Millisecond}, "redis", "z:3")
	for _, setting := range settings {
		name, value, _ := strings.Cut(strings.TrimPrefix(setting, "ONCEBUS_HANDWRITTEN_"), "=")
		if !strings.Contains(text, `("`+name+`")`) {
			t.Errorf("the program does not read %s", name)
		}
		if want := map[string]string{"BROKERS": "x:1,y:2", "GROUP": "a-dedup", "COMMIT_MS": "20", "SERVER": "z:3", "OUTPUT": "a-output"}[name]; want != "" && value != want {
			t.Errorf("%s is %q, want %q", name, value, want)
		}
	}
	if read := strings.Count(text, `text("`) + strings.Count(text, `number("`) + strings.Count(text, `millis("`); read != len(settings) {
		t.Errorf("the program reads %d settings and gets %d", read, len(settings))
	}
	for _, store := range []string{"redis", "redis-position", "postgres"} {
		if !strings.Contains(text, `case "`+store+`"`) {
			t.Errorf("the program has no store %s", store)
		}
	}
}

// TestNames: -only and the report need distinct names, and -only splits at commas.
func TestNames(t *testing.T) {
	var names []string
	for _, p := range All() {
		names = append(names, p.Name)
		if strings.Contains(p.Name, ",") {
			t.Errorf("%q has a comma", p.Name)
		}
	}
	slices.Sort(names)
	if len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("a name occurs twice: %v", names)
	}
}
