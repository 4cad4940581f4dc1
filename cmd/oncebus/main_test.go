package main_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"oncebus/processor/kafkatest/program"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"

	"go.uber.org/goleak"

	main "oncebus/cmd/oncebus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(program.Main(m)) }

// execute runs a command line as main does, with environ as the whole
// environment.
func execute(ctx context.Context, environ []string, stdin string, args ...string) clitest.Result {
	return clitest.Run(ctx, main.Commands(), environ, stdin, args...)
}

func TestUsage(t *testing.T) {
	for _, help := range []string{"help", "-h", "--help"} {
		got := execute(t.Context(), nil, "", help)
		if got.Code != cli.ExitStopped || got.Stderr != "" {
			t.Errorf("%s: %+v", help, got)
		}
		for _, c := range main.Commands() {
			if !strings.Contains(got.Stdout, "\n  "+c.Name+" ") {
				t.Errorf("%s does not list %s:\n%s", help, c.Name, got.Stdout)
			}
		}
	}
	for _, c := range main.Commands() {
		got := execute(t.Context(), nil, "", c.Name, "--help")
		if got.Code != cli.ExitStopped || got.Stderr != "" || !strings.HasPrefix(got.Stdout, "Usage: oncebus "+c.Name) {
			t.Errorf("%s --help: %+v", c.Name, got)
		}
	}
}

func TestWrongUsageIsExitCode2(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string // start of standard error
	}{
		{nil, "oncebus removes duplicates"},
		{[]string{"serve"}, `oncebus: unknown command "serve"`},
		{[]string{"run", "--port", "1"}, "oncebus run: flag provided but not defined: -port"},
		{[]string{"run", "now"}, `oncebus run: unexpected argument "now"`},
		{[]string{"version", "x"}, `oncebus version: unexpected argument "x"`},
		{[]string{"check", "a.yaml", "b.yaml"}, `oncebus check: unexpected argument "b.yaml"`},
		{[]string{"key"}, "oncebus key: want either --topic or --route"},
		{[]string{"key", "--topic", "t", "--route", "r"}, "oncebus key: want either --topic or --route"},
		{[]string{"key", "--topic", "t", "--header", "none"}, `oncebus key: invalid value "none" for flag -header: want 'NAME: VALUE'`},
		{[]string{"demo", "--events", "99"}, "oncebus demo: --events 99 is out of range, want 100 to 2000000"},
		{[]string{"demo", "--http", "--events", "500"}, "oncebus demo: --events applies to generated records, but --http generates none"},
		{[]string{"demo", "--http", "--seed", "1"}, "oncebus demo: --seed applies to"},
		{[]string{"demo", "--http=8081"}, `oncebus demo: invalid boolean value "8081" for -http: "8081" is not host:port`},
		{[]string{"demo", "--http=localhost:http"}, `oncebus demo: invalid boolean value`},
		{[]string{"demo", "--http", ":8081"}, `oncebus demo: unexpected argument ":8081"`},
		{[]string{"demo", "--seed", "-1"}, `oncebus demo: invalid value "-1" for flag -seed`},
	} {
		got := execute(t.Context(), nil, "", tt.args...)
		if got.Code != cli.ExitWrong || got.Stdout != "" || !strings.HasPrefix(got.Stderr, tt.want) {
			t.Errorf("%q: %+v", tt.args, got)
		}
	}
}

func TestVersion(t *testing.T) {
	got := execute(t.Context(), nil, "", "version")
	if got.Code != cli.ExitStopped || !strings.HasPrefix(got.Stdout, "oncebus ") || len(got.Stdout) < len("oncebus x\n") {
		t.Errorf("%+v", got)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestResultThatCannotBeWrittenIsExitCode1(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"help"}, {"check", "--schema"}, {"run", "--help"}} {
		var stderr clitest.Buffer
		code := main.Commands().Run(t.Context(), args, cli.Process{Stdout: fullDisk{}, Stderr: &stderr})
		if want := "oncebus: standard output: no space left on device\n"; code != cli.ExitFailed || stderr.String() != want {
			t.Errorf("%q: exit code %d, %q", args, code, stderr.String())
		}
	}
}
