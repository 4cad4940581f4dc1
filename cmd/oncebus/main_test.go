package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(realTests{kafkatest.Main(m)}) }

// outcome is what a command left behind.
type outcome struct {
	code           int
	stdout, stderr string
}

// execute runs a command line as main does, with environ as the whole
// environment.
func execute(ctx context.Context, environ []string, stdin string, args ...string) outcome {
	var stdout, stderr syncBuffer
	code := commands().Run(ctx, args, cli.Process{Environ: environ, Stdin: strings.NewReader(stdin), Stdout: &stdout, Stderr: &stderr})
	return outcome{code, stdout.String(), stderr.String()}
}

// syncBuffer is a buffer that goroutines of a command may write to at once.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUsage(t *testing.T) {
	for _, help := range []string{"help", "-h", "--help"} {
		got := execute(t.Context(), nil, "", help)
		if got.code != cli.ExitStopped || got.stderr != "" {
			t.Errorf("%s: %+v", help, got)
		}
		for _, c := range commands() {
			if !strings.Contains(got.stdout, "\n  "+c.Name+" ") {
				t.Errorf("%s does not list %s:\n%s", help, c.Name, got.stdout)
			}
		}
	}
	for _, c := range commands() {
		got := execute(t.Context(), nil, "", c.Name, "--help")
		if got.code != cli.ExitStopped || got.stderr != "" || !strings.HasPrefix(got.stdout, "Usage: oncebus "+c.Name) {
			t.Errorf("%s --help: %+v", c.Name, got)
		}
	}
}

func TestWrongUsageIsExitCode2(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string // start of standard error
	}{
		{nil, "oncebus lets every event"},
		{[]string{"serve"}, `oncebus: unknown command "serve"`},
		{[]string{"run", "--port", "1"}, "oncebus run: flag provided but not defined: -port"},
		{[]string{"run", "now"}, `oncebus run: unexpected argument "now"`},
		{[]string{"version", "x"}, `oncebus version: unexpected argument "x"`},
		{[]string{"check", "a.yaml", "b.yaml"}, `oncebus check: unexpected argument "b.yaml"`},
		{[]string{"key"}, "oncebus key: want either --topic or --route"},
		{[]string{"key", "--topic", "t", "--route", "r"}, "oncebus key: want either --topic or --route"},
		{[]string{"key", "--topic", "t", "--header", "none"}, `oncebus key: invalid value "none" for flag -header: want 'NAME: VALUE'`},
		{[]string{"demo", "--events", "99"}, "oncebus demo: --events 99 is out of range, want 100 to 2000000"},
		{[]string{"demo", "--http", "--events", "500"}, "oncebus demo: --events is about generated records, with --http there are none"},
		{[]string{"demo", "--http", "--seed", "1"}, "oncebus demo: --seed is about"},
		{[]string{"demo", "--http=8081"}, `oncebus demo: invalid boolean value "8081" for -http: "8081" is no host:port`},
		{[]string{"demo", "--http=localhost:http"}, `oncebus demo: invalid boolean value`},
		{[]string{"demo", "--http", ":8081"}, `oncebus demo: unexpected argument ":8081"`},
		{[]string{"demo", "--seed", "-1"}, `oncebus demo: invalid value "-1" for flag -seed`},
	} {
		got := execute(t.Context(), nil, "", tt.args...)
		if got.code != cli.ExitWrong || got.stdout != "" || !strings.HasPrefix(got.stderr, tt.want) {
			t.Errorf("%q: %+v", tt.args, got)
		}
	}
}

func TestVersion(t *testing.T) {
	got := execute(t.Context(), nil, "", "version")
	if got.code != cli.ExitStopped || !strings.HasPrefix(got.stdout, "oncebus ") || len(got.stdout) < len("oncebus x\n") {
		t.Errorf("%+v", got)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestResultThatCannotBeWrittenIsExitCode1(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"help"}, {"check", "--schema"}, {"run", "--help"}} {
		var stderr syncBuffer
		code := commands().Run(t.Context(), args, cli.Process{Stdout: fullDisk{}, Stderr: &stderr})
		if want := "oncebus: standard output: no space left on device\n"; code != cli.ExitFailed || stderr.String() != want {
			t.Errorf("%q: exit code %d, %q", args, code, stderr.String())
		}
	}
}
