//go:build linux

package program

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestLogFollowsItsFile: a Log has the lines that were written since its process started, as the file grows.
func TestLogFollowsItsFile(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	write := func(text string) {
		t.Helper()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"msg":"restored","task":"0"}` + "\n" + `{"level":"ERROR","msg":"of another process"}` + "\n")
	log, err := openLog(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{Log: log}
	write(`{"msg":"starting"}` + "\n" + `{"msg":"http li`)
	if got := p.Address(ListensHTTP); got != "" || log.Failure() != "" {
		t.Errorf("address %q, failure %q", got, log.Failure())
	}
	write(`stening","addr":"127.0.0.1:7"}` + "\nfailpoint: x\n" + `{"msg":"http listening","addr":"127.0.0.1:8"}` + "\n")
	write(`{"msg":"restored","task":"0/1","rows":3}` + "\n" + `{"level":"ERROR","msg":"stopped","error":"disk"}` + "\n")
	if got := p.Address(ListensHTTP); got != "127.0.0.1:7" {
		t.Errorf("address %q", got)
	}
	if n, of, other, points := log.Count(ListensHTTP), log.CountTask("restored", "0/1"), log.CountTask("restored", "0"), log.Count("failpoint x"); n != 2 || of != 1 || other != 0 || points != 1 {
		t.Errorf("counts %d, %d, %d, %d", n, of, other, points)
	}
	if got := log.Failure(); got != "stopped: disk" {
		t.Errorf("failure %q", got)
	}
	if tail := log.Tail(); !strings.HasPrefix(tail, `{"msg":"starting"}`) || strings.Count(tail, "\n") != 5 {
		t.Errorf("tail %q", tail)
	}
	entries, err := log.Entries()
	if err != nil || len(entries) != 5 || entries[3]["rows"] != 3.0 {
		t.Errorf("entries %v, %v", entries, err)
	}
}

func TestLogTailIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for n := range 1000 {
		fmt.Fprintf(&b, "{\"msg\":\"x\",\"n\":%d}\n", n)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(log.Tail(), "\n"); len(lines) != tailLines || lines[tailLines-1] != `{"msg":"x","n":999}` {
		t.Errorf("tail %q", lines)
	}
}

func TestMetrics(t *testing.T) {
	m, err := ParseMetrics("# HELP a b\n# TYPE a gauge\na{x=\"1 2\",y=\"}\"} 2\na{x=\"3\",y=\"\"} 0.5\nb 1e+06\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(m) != 2 || m.Sum("a") != 2.5 || m.Sum("b") != 1e6 || m.Sum("c") != 0 {
		t.Errorf("parsed %v", m)
	}
	if got := m.Counts("a"); len(got) != 2 || got["1 2/}"] != 2 || got["3/"] != 0 {
		t.Errorf("counts %v", got)
	}
}

// TestUsage compares the usage that /proc shows with the work that this process has done.
func TestUsage(t *testing.T) {
	before, err := UsageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	began, turns := time.Now(), 0
	for time.Since(began) < 200*time.Millisecond {
		turns++
	}
	after, err := UsageOf(os.Getpid())
	if err != nil || after.CPU <= before.CPU || after.CPU > time.Hour {
		t.Errorf("%d loops in 200 ms used %v after %v (%v)", turns, after.CPU, before.CPU, err)
	}
	if after.RSSMax < 1<<20 || after.RSSMax > 1<<34 || after.RSS > after.RSSMax || after.RSSAnon > after.RSS {
		t.Errorf("the memory of a Go program is %+v", after)
	}
}

// start starts a shell script.
func start(t *testing.T, script string) *Process {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c", script)
	p, err := Start("script", cmd, filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestProcessIsReadAndStopped(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := asked.Add(1); r.URL.Path == "/readyz" && n < 3 {
			http.Error(w, "task 3 is restoring", http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	addr := strings.TrimPrefix(server.URL, "http://")
	p := start(t, `trap 'exit 0' TERM; echo '{"msg":"http listening","addr":"`+addr+`"}' >&2; while :; do sleep 0.01; done`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if took, err := p.AwaitReady(ctx); err != nil || took <= 0 || asked.Load() < 3 {
		t.Errorf("ready after %v and %d requests: %v", took, asked.Load(), err)
	}
	if _, err := p.Usage(); err != nil {
		t.Error(err)
	}
	if err := p.Ended(); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if code, err := p.ExitCode(ctx); err != nil || code != 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
	if _, err := p.Usage(); err == nil {
		t.Error("an ended process has usage")
	}
}

func TestProcessThatEndsFailsEveryWait(t *testing.T) {
	p := start(t, `echo '{"level":"ERROR","msg":"stopped","error":"no topic"}'; exit 3`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if code, err := p.ExitCode(ctx); err != nil || code != 3 {
		t.Errorf("exit code %d, %v", code, err)
	}
	if _, err := p.AwaitLog(ctx, "stopped"); err != nil {
		t.Errorf("a line of an ended process: %v", err)
	}
	for name, wait := range map[string]func() error{
		"ready": func() error { _, err := p.AwaitReady(ctx); return err },
		"log":   func() error { _, err := p.AwaitLog(ctx, ListensHTTP); return err },
		"ended": p.Ended,
		"stop":  p.Stop,
	} {
		if err := wait(); err == nil || !strings.Contains(err.Error(), "no topic") || !strings.Contains(err.Error(), "exit status 3") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
