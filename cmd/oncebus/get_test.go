//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// oncebus runs a command of the built program in the world and returns what it prints, and its exit code.
func (w *world) oncebus(stdin string, args ...string) (stdout, stderr string, code int) {
	w.t.Helper()
	path, err := binary()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(w.t.Context(), path, args...)
	cmd.Env, cmd.Stdin = w.environ("operator"), strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// TestWrongQuestionIsExitCode2: it is found before anything is connected, and the
// sentence says what to do.
func TestWrongQuestionIsExitCode2(t *testing.T) {
	const file = deployments + "/routes/operations.yaml"
	environ := []string{"ONCEBUS_ROUTES=" + file, "ONCEBUS_BROKERS=127.0.0.1:1"} // nobody is there
	dir := t.TempDir()
	for _, wrong := range []struct {
		stdin, want string
		args        []string
	}{
		{"{}", "--route is missing", []string{"get"}},
		{"{}", file + ` has no route "orders"; it has operations, economy-webhooks`, []string{"get", "--route", "orders"}},
		{"{}", file + ` has no route "orders"; it has`, []string{"forget", "--route", "orders"}},
		{`{"eventId":"e"}`, "route economy-webhooks is not in claim mode", []string{"forget", "--route", "economy-webhooks"}},
		{"", "can be forgotten: operations", []string{"forget", "--route", "economy-webhooks", "none.json"}},
		{"", "open none.json: no such file", []string{"get", "--route", "operations", "none.json"}},
		{"", dir + " is a directory", []string{"get", "--route", "operations", dir}},
		{"", "the event is empty: name its FILE", []string{"get", "--route", "operations"}},
		{"", "the event is empty: name its FILE", []string{"forget", "--route", "operations", "-"}},
		{"{}", "field account: absent", []string{"get", "--route", "operations"}},
		{"{", "payload: not valid JSON", []string{"get", "--route", "operations"}},
		{"{}", `unexpected argument "b.json"`, []string{"get", "--route", "operations", "a.json", "b.json"}},
		{"{}", "open none.yaml: no such file", []string{"get", "--route", "operations", "--routes", "none.yaml"}},
		{"", "open none.yaml: no such file", []string{"stats", "--routes", "none.yaml"}},
		{"", `unexpected argument "x"`, []string{"stats", "x"}},
	} {
		got := execute(t.Context(), environ, wrong.stdin, wrong.args...)
		if got.code != exitWrong || got.stdout != "" || !strings.Contains(got.stderr, wrong.want) {
			t.Errorf("oncebus %v: %+v; want %d and %q", wrong.args, got, exitWrong, wrong.want)
		}
	}
}

// TestRealGetForgetStats: an operator asks about a claim, erases it, and counts.
func TestRealGetForgetStats(t *testing.T) {
	onEveryBroker(t, "operations.yaml", unchanged, func(t *testing.T, s *system) {
		s.begin("economy.raw", "economy.outcomes", "economy.webhooks.raw")
		const event = `{"account":"a","requestId":"r1","operation":"grant"}`
		s.send("economy.raw", 3, time.Now(), event)
		s.produce(&kgo.Record{Topic: s.topic("economy.raw"), Partition: 1, Timestamp: time.Now(), Value: []byte(event)})
		s.settle()
		get := func() map[string]any {
			t.Helper()
			out, stderr, code := s.oncebus(event, "get", "--route", "operations", "--json")
			var shown map[string]any
			if err := json.Unmarshal([]byte(out), &shown); err != nil || code != exitStopped {
				t.Fatalf("get: %d, %v, %s%s", code, err, out, stderr)
			}
			return shown
		}
		pending := get()
		for field, want := range map[string]any{
			"status": "pending", "attempt": 1.0, "request": "r1", "waiting": 1.0, "held": true, "namespace": "operations", "first": s.topic("economy.raw") + "/3/0",
		} {
			if pending[field] != want {
				t.Errorf("%s is %v, want %v", field, pending[field], want)
			}
		}
		s.answer("economy.outcomes", s.count("economy.run", 1)[0], "completed", []byte("granted"))
		if done := get(); done["status"] != "completed" || done["result_bytes"] != 7.0 {
			t.Errorf("after the outcome: %v", done)
		}
		if out, _, code := s.oncebus(event, "get", "--route", "operations"); code != exitStopped || !strings.Contains(out, "result        7 bytes") {
			t.Errorf("get for people: %d\n%s", code, out)
		}
		people, _, _ := s.oncebus(event, "get", "--route", "operations")
		t.Logf("oncebus get:\n%s", people)
		people, _, _ = s.oncebus("", "stats")
		t.Logf("oncebus stats:\n%s", people)
		out, _, _ := s.oncebus("", "stats", "--json")
		var stats shownStats
		if err := json.Unmarshal([]byte(out), &stats); err != nil || len(stats.Tasks) != realPartitions {
			t.Fatalf("stats: %v, %s", err, out)
		}
		for _, n := range stats.Namespaces {
			if n.Namespace == "operations" && (n.Live != 1 || n.ByStatus["completed"] != 1 || n.Judged != 2 || n.Copies != 1 || n.HitRate != 0.5) {
				t.Errorf("stats: %+v", n)
			}
		}
		out, stderr, code := s.oncebus(event, "forget", "--route", "operations")
		if code != exitStopped {
			t.Errorf("forget: %d, %s", code, stderr)
		}
		t.Logf("oncebus forget:\n%s", out)
		s.settle()
		if erased := get(); erased["status"] != "freed" {
			t.Errorf("after forget: %v", erased)
		}
		s.send("economy.raw", 2, time.Now(), event)
		s.count("economy.run", 2)

		for _, wrong := range []struct {
			stdin, want string
			code        int
			args        []string
		}{
			{`{"account":"a","requestId":"r9","operation":"grant"}`, "nothing is kept of key", exitFailed, []string{"get", "--route", "operations"}},
		} {
			if _, stderr, code := s.oncebus(wrong.stdin, wrong.args...); code != wrong.code || !strings.Contains(stderr, wrong.want) {
				t.Errorf("oncebus %v: %d, %q; want %d and %q", wrong.args, code, stderr, wrong.code, wrong.want)
			}
		}
		s.service.stop()
	})
}
