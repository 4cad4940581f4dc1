//go:build unix

package main_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
)

// TestWrongDeadLetterOptions: a mistake on the command line is reported before a connection.
func TestWrongDeadLetterOptions(t *testing.T) {
	environ := []string{"ONCEBUS_ROUTES=" + deployments + "/routes/signals.yaml", "ONCEBUS_BROKERS=127.0.0.1:1"} // no broker listens there
	for args, want := range map[string]string{
		"list --since yesterday":                  `--since: "yesterday": want a time such as`,
		"list --until -2h":                        "--until",
		"list --since 1h --until 2h":              "--since is not before --until",
		"list --limit -1":                         "--limit",
		"list --topic nothing.raw":                "names no input topic nothing.raw",
		"list extra":                              "unexpected argument",
		"show":                                    "the position is missing",
		"show dead/1":                             `"dead/1" is no position`,
		"show dead/x/1":                           `"dead/x/1" is no position`,
		"redrive --max-attempts 0":                "--max-attempts is a number from 1",
		"redrive --rate -1":                       "--rate",
		"drop --rate 5":                           "--rate",
		"drop --dalete":                           "did you mean --delete?",
		"redrve":                                  "redrive",
		"list --since 2026-11-25 --reason x":      "--since",
		"redrive --max-attempts 100001 --yes":     "--max-attempts",
		"list --since 2026-11-25T18:00:00Z --key": "--key",
	} {
		got := execute(t.Context(), environ, "", append([]string{"dead-letters"}, strings.Fields(args)...)...)
		if got.Code != cli.ExitWrong || !strings.Contains(got.Stderr, want) {
			t.Errorf("dead-letters %s: exit code %d, %q, want %q", args, got.Code, got.Stderr, want)
		}
	}
}

// checkDeadLetterCommands runs list, show and drop over n dead letters of the wrong rule.
func (w *world) checkDeadLetterCommands(n int) {
	w.t.Helper()
	run := func(args ...string) string {
		w.t.Helper()
		out, errs, code := w.oncebus("", append([]string{"dead-letters"}, args...)...)
		if code != cli.ExitStopped {
			w.t.Fatalf("dead-letters %v: exit code %d: %s", args, code, errs)
		}
		return out
	}
	var summary struct {
		Groups []struct {
			Route, Class string
			Count        int
		}
	}
	if err := json.Unmarshal([]byte(run("list", "--summary", "-o", "json")), &summary); err != nil {
		w.t.Fatal(err)
	}
	if g := summary.Groups; len(g) != 2 || g[0].Route != "orders" || g[1].Route != "signals" || g[1].Class != "missing_key" || g[0].Count+g[1].Count != n {
		w.t.Errorf("summary: %+v, want %d of two routes", g, n)
	}
	lines := strings.Split(strings.TrimSpace(run("list", "--route", "signals", "--reason", "missing_key", "--since", "1h", "-o", "json")), "\n")
	if len(lines) != summary.Groups[1].Count {
		w.t.Errorf("%d lines of %d dead letters", len(lines), summary.Groups[1].Count)
	}
	var letter struct{ At, Origin, State, Class string }
	if err := json.Unmarshal([]byte(lines[0]), &letter); err != nil {
		w.t.Fatal(err)
	}
	if letter.State != "open" || letter.Class != "missing_key" || !strings.HasPrefix(letter.Origin, w.topic("signals.raw")+"/") {
		w.t.Errorf("the first line is %s", lines[0])
	}
	shown := run("show", letter.At)
	for _, want := range []string{"missing_key", letter.Origin, "goes to " + w.topic("signals.raw"), "no key: field id", "traceparent: 00-1"} {
		if !strings.Contains(shown, want) {
			w.t.Errorf("show %s has no %q:\n%s", letter.At, want, shown)
		}
	}
	if dry := run("redrive", "--route", "signals"); !strings.Contains(dry, fmt.Sprintf("%d would be redriven", len(lines))) || !strings.Contains(dry, "missing_key by this routes file") {
		w.t.Errorf("dry run: %s", dry)
	}
	if dry := run("drop"); !strings.Contains(dry, fmt.Sprintf("%d would be dropped", n)) {
		w.t.Errorf("dry run: %s", dry)
	}
	if out, errs, code := w.oncebus("", "dead-letters", "show", letter.At+"9999"); code != cli.ExitWrong || !strings.Contains(errs, "no record at") {
		w.t.Errorf("a position without a record: exit code %d, %s%s", code, out, errs)
	}
	if got := run("list", "--limit", "3"); strings.Count(got, "\n") != 4 {
		w.t.Errorf("list --limit 3: %s", got)
	}
}
