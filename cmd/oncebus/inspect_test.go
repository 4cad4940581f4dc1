//go:build unix

package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
)

// oncebus runs a command of the built program in the world, and returns output and
// exit code.
func (w *world) oncebus(stdin string, args ...string) (stdout, stderr string, code int) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), w.binary(w.t), args...)
	cmd.Env, cmd.Stdin = w.environ("operator"), strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// pageShows compares the beginning of a line of COMMANDS.md with what a command prints.
func pageShows(t *testing.T, start string) {
	t.Helper()
	page, err := os.ReadFile("COMMANDS.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "\n"+start) {
		t.Errorf("COMMANDS.md has no line that begins with %q", start)
	}
}

// TestWrongQuestionIsExitCode2: the command reports the mistake before it connects.
func TestWrongQuestionIsExitCode2(t *testing.T) {
	const file = deployments + "/routes/operations.yaml"
	environ := []string{"ONCEBUS_ROUTES=" + file, "ONCEBUS_BROKERS=127.0.0.1:1"} // no broker listens there
	dir := t.TempDir()
	for _, wrong := range []struct {
		stdin, want string
		args        []string
	}{
		{"{}", "--route is missing", []string{"get"}},
		{"{}", file + ` has no route "orders"; it has operations, economy-webhooks`, []string{"get", "--route", "orders"}},
		{"{}", file + ` has no route "orders"; it has`, []string{"forget", "--route", "orders"}},
		{"", "open none.txt: no such file", []string{"forget", "--route", "economy-webhooks", "--file", "none.txt"}},
		{"", "--key and --file exclude each other", []string{"forget", "--file", "-", "--key", "x"}},
		{"{}\n[1]\n", "-:1: no key", []string{"forget", "--route", "economy-webhooks", "--file", "-"}},
		{"{}\n[1]\n", "-:2: want a JSON array of texts", []string{"forget", "--route", "economy-webhooks", "--file", "-"}},
		{"{}\n", "-:1: an event needs --route", []string{"forget", "--file", "-"}},
		{"\n", "- has no line", []string{"forget", "--file", "-"}},
		{"", "--id names the key, so the event is not read", []string{"get", "--id", "a", "event.json"}},
		{"", "open none.json: no such file", []string{"get", "--route", "operations", "none.json"}},
		{"", dir + " is a directory", []string{"get", "--route", "operations", dir}},
		{"", "the event is empty; pass FILE", []string{"get", "--route", "operations"}},
		{"", "the event is empty; pass FILE", []string{"forget", "--route", "operations", "-"}},
		{"{}", "field account: absent", []string{"get", "--route", "operations"}},
		{"{", "payload: not valid JSON", []string{"get", "--route", "operations"}},
		{"{}", `unexpected argument "b.json"`, []string{"get", "--route", "operations", "a.json", "b.json"}},
		{"{}", "open none.yaml: no such file", []string{"get", "--route", "operations", "--routes", "none.yaml"}},
		{"", "open none.yaml: no such file", []string{"stats", "--routes", "none.yaml"}},
		{"", `unexpected argument "x"`, []string{"stats", "x"}},
	} {
		got := execute(t.Context(), environ, wrong.stdin, wrong.args...)
		if got.Code != cli.ExitWrong || got.Stdout != "" || !strings.Contains(got.Stderr, wrong.want) {
			t.Errorf("oncebus %v: %+v; want %d and %q", wrong.args, got, cli.ExitWrong, wrong.want)
		}
	}
}

// TestUnreachableBrokerIsExitCode1: the state of the key is unknown.
func TestUnreachableBrokerIsExitCode1(t *testing.T) {
	environ := []string{"ONCEBUS_ROUTES=" + deployments + "/routes/operations.yaml", "ONCEBUS_BROKERS=127.0.0.1:1"}
	for _, args := range [][]string{{"get", "--route", "operations", "--json"}, {"forget", "--route", "operations"}, {"stats"}} {
		got := execute(t.Context(), environ, `{"account":"a","requestId":"r1","operation":"grant"}`, args...)
		if got.Code != cli.ExitFailed || got.Stdout != "" || !strings.Contains(got.Stderr, "unable to dial") {
			t.Errorf("oncebus %v: %+v", args, got)
		}
	}
}

// TestSystemGetForgetStats: an operator shows a claim, erases it, and counts keys.
func TestSystemGetForgetStats(t *testing.T) {
	onEveryBroker(t, "operations.yaml", unchanged, func(t *testing.T, s *system) {
		s.begin("economy.raw", "economy.outcomes", "economy.webhooks.raw")
		const event = `{"account":"a","requestId":"r1","operation":"grant"}`
		sent := time.Now()
		s.send("economy.raw", 3, sent, event)
		s.produce(&kgo.Record{Topic: s.topic("economy.raw"), Partition: 1, Timestamp: sent.Add(time.Second), Value: []byte(event)})
		s.awaitProcessed()
		get := func() map[string]any {
			t.Helper()
			out, stderr, code := s.oncebus(event, "get", "--route", "operations", "--json")
			var shown map[string]any
			if err := json.Unmarshal([]byte(out), &shown); err != nil || code != cli.ExitStopped {
				t.Fatalf("get: %d, %v, %s%s", code, err, out, stderr)
			}
			return shown
		}
		pending := get()
		for field, want := range map[string]any{
			"found": true, "key_state": "active", "status": "in_progress", "attempt": 1.0, "request": "r1", "waiting": 1.0, "held": true, "namespace": "operations", "first": s.topic("economy.raw") + "/3/0",
		} {
			if pending[field] != want {
				t.Errorf("%s is %v, want %v", field, pending[field], want)
			}
		}
		s.answer("economy.outcomes", s.count("economy.run", 1)[0], "completed", []byte("granted"))
		if done := get(); done["status"] != "completed" || done["result_bytes"] != 7.0 {
			t.Errorf("after the outcome: %v", done)
		}
		if out, _, code := s.oncebus(event, "get", "--route", "operations"); code != cli.ExitStopped || !strings.Contains(out, "result            7 bytes") {
			t.Errorf("get for people: %d\n%s", code, out)
		}
		people, _, _ := s.oncebus(event, "get", "--route", "operations")
		t.Logf("oncebus get:\n%s", people)
		for line := range strings.Lines(people) {
			pageShows(t, line[:len("duplicates until  ")])
		}
		people, _, _ = s.oncebus("", "stats")
		t.Logf("oncebus stats:\n%s", people)
		people = regexp.MustCompile(`20\d\d-\d\d-\d\d`).ReplaceAllString(people, "2026-11-21")
		people = regexp.MustCompile(`(\d) +[1-9]\d*s `).ReplaceAllString(people, "$1        1s ") // the age of the oldest key
		for line := range strings.Lines(people) {
			pageShows(t, strings.TrimSpace(line))
		}
		out, _, _ := s.oncebus("", "stats", "--json")
		type held struct{ Total, Active, Expired uint64 }
		var stats struct {
			Namespaces []struct {
				held
				Namespace          string
				Routes             []string
				ByStatus           map[string]held `json:"by_status"`
				Judged, Duplicates uint64
				HitRate            float64 `json:"hit_rate"`
			}
			Tasks []any
		}
		if err := json.Unmarshal([]byte(out), &stats); err != nil || len(stats.Tasks) != realPartitions {
			t.Fatalf("stats: %v, %s", err, out)
		}
		for _, n := range stats.Namespaces {
			if n.Namespace == "operations" && (n.held != held{1, 1, 0} || n.ByStatus["completed"] != n.held || n.ByStatus["in_progress"] != held{} || !slices.Equal(n.Routes, []string{"operations"}) || n.Judged != 2 || n.Duplicates != 1 || n.HitRate != 0.5) {
				t.Errorf("stats: %+v", n)
			}
		}
		signals := deployments + "/routes/signals.yaml"
		for _, args := range [][]string{{"stats", "--routes", signals}, {"get", "--routes", signals, "--route", "signals"}} {
			if _, stderr, code := s.oncebus(`{"traceId":"1"}`, args...); code != cli.ExitWrong || !strings.Contains(stderr, "has never run with these routes: signals") {
				t.Errorf("oncebus %v: %d, %s", args, code, stderr)
			}
		}
		out, stderr, code := s.oncebus(event, "forget", "--route", "operations")
		if code != cli.ExitStopped {
			t.Errorf("forget: %d, %s", code, stderr)
		}
		t.Logf("oncebus forget:\n%s", out)
		s.awaitProcessed()
		if erased := get(); erased["status"] != "freed" || erased["key_state"] != "free" || erased["next_attempt"] != 2.0 || erased["copies_until"] != nil {
			t.Errorf("after forget: %v", erased)
		}
		people, _, _ = s.oncebus(event, "get", "--route", "operations")
		t.Logf("oncebus get, after forget:\n%s", people)
		if !strings.Contains(people, "key state   free: the next event with the key runs as attempt 2") {
			t.Errorf("after forget:\n%s", people)
		}
		s.send("economy.raw", 2, time.Now(), event)
		s.count("economy.run", 2)

		const other = `{"account":"a","requestId":"r9","operation":"grant"}`
		out, _, code = s.oncebus(other, "get", "--route", "operations")
		if code != cli.ExitStopped || !strings.HasPrefix(out, "no row for key ") {
			t.Errorf("get of a key without a row: %d, %s", code, out)
		}
		out, _, code = s.oncebus(other, "get", "--route", "operations", "--json")
		var none map[string]any
		if err := json.Unmarshal([]byte(out), &none); err != nil || code != cli.ExitStopped || none["found"] != false || none["key"] == "" || len(none) != 5 {
			t.Errorf("get of a key without a row: %d, %v, %s", code, err, out)
		}
		pageShows(t, strings.TrimSpace(out))
		s.service.stop()
	})
}
