package main_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"oncebus/processor/kafkatest/program"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"

	"go.uber.org/goleak"

	main "oncebus/cmd/oncebus"
)

// asCommand is the variable with which the test binary is oncebus itself, so that a test can kill it.
const asCommand = "ONCEBUS_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(main.Commands().Run(context.Background(), os.Args[1:], cli.ThisProcess()))
	}
	goleak.VerifyTestMain(program.Main(m), goleak.IgnoreAnyFunction("oncebus/processor/kafka.(*Budget).collectNow")) // ends with the garbage collection
}

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
		for _, path := range main.Commands().Paths() {
			if len(path) == 1 && !strings.Contains(got.Stdout, "\n  "+path[0]+" ") {
				t.Errorf("%s does not list %s:\n%s", help, path[0], got.Stdout)
			}
		}
	}
	for _, path := range main.Commands().Paths() {
		got := execute(t.Context(), nil, "", append(path, "--help")...)
		if got.Code != cli.ExitStopped || got.Stderr != "" || !strings.Contains(got.Stdout, "Usage: oncebus "+strings.Join(path, " ")) {
			t.Errorf("%s --help: %+v", path, got)
		}
		if again := execute(t.Context(), nil, "", append([]string{"help"}, path...)...); again != got {
			t.Errorf("help %s: %+v, want what %s --help prints", path, again, path)
		}
		if strings.HasPrefix(got.Stdout, "Usage: ") && !strings.Contains(got.Stdout, "\nExample:\n  ") {
			t.Errorf("%s --help has no example:\n%s", path, got.Stdout)
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
		{[]string{"-x"}, "oncebus: unknown option -x\n'oncebus --help'"},
		{[]string{"stast"}, `oncebus: unknown command "stast"; did you mean stats?`},
		{[]string{"help", "dokter"}, `oncebus: unknown command "dokter"; did you mean doctor?`},
		{[]string{"run", "--port", "1"}, "oncebus run: unknown option --port\n'oncebus run --help'"},
		{[]string{"stats", "--route", "a"}, "oncebus stats: unknown option --route; did you mean --routes?"},
		{[]string{"get", "-json"}, "oncebus get: unknown option -json; did you mean --json?"},
		{[]string{"get", "--rute=a"}, "oncebus get: unknown option --rute; did you mean --route?"},
		{[]string{"stats", "-o", "yaml"}, `oncebus stats: invalid argument "yaml" for "-o, --output" flag: want text or json`},
		{[]string{"completion"}, "oncebus completion: want one of bash, zsh, fish, powershell"},
		{[]string{"run", "now"}, `oncebus run: unexpected argument "now"`},
		{[]string{"version", "x"}, `oncebus version: unexpected argument "x"`},
		{[]string{"check", "a.yaml", "b.yaml"}, `oncebus check: unexpected argument "b.yaml"`},
		{[]string{"key"}, "oncebus key: want either --topic or --route"},
		{[]string{"key", "--topic", "t", "--route", "r"}, "oncebus key: want either --topic or --route"},
		{[]string{"key", "--topic", "t", "--header", "none"}, `oncebus key: invalid argument "none" for "--header" flag: want 'NAME: VALUE'`},
		{[]string{"demo", "--events", "99"}, "oncebus demo: --events 99 is out of range, want 100 to 2000000"},
		{[]string{"demo", "--http", "--events", "500"}, "oncebus demo: --events applies to generated records, but --http generates none"},
		{[]string{"demo", "--http", "--seed", "1"}, "oncebus demo: --seed applies to"},
		{[]string{"demo", "--http=8081"}, `oncebus demo: invalid argument "8081" for "--http" flag: "8081" is not host:port`},
		{[]string{"demo", "--http=localhost:http"}, `oncebus demo: invalid argument "localhost:http"`},
		{[]string{"demo", "--http", ":8081"}, `oncebus demo: unexpected argument ":8081"`},
		{[]string{"demo", "--seed", "-1"}, `oncebus demo: invalid argument "-1" for "--seed" flag`},
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
	if again := execute(t.Context(), nil, "", "--version"); again != got {
		t.Errorf("--version: %+v", again)
	}
}

// TestCommandsPrintJSON holds every command that prints data to -o json.
func TestCommandsPrintJSON(t *testing.T) {
	// They print no data, but demo, whose result is one line of JSON without the option.
	without := []string{"run", "ingress", "completion", "demo"}
	for _, path := range main.Commands().Paths() {
		help := main.Commands().Help(path...)
		if !strings.HasPrefix(help, "Usage: ") || slices.Contains(without, path[0]) {
			continue
		}
		if !strings.Contains(help, "\n  -o, --output format") {
			t.Errorf("%s has no -o json:\n%s", path, help)
		}
	}
}

// TestShellsComplete asks what a shell asks when Tab is pressed.
func TestShellsComplete(t *testing.T) {
	routes := clitest.WriteFile(t, "routes.yaml", "routes:\n- {name: alpha, topics: [a.raw], window: 1h, output: a, key: [raw]}\n- {name: beta, topics: [b.raw], window: 1h, output: b, key: [raw]}\n")
	for _, v := range []struct {
		args []string
		want string
	}{
		{[]string{"st"}, "stats\tshow how many keys the app retains, from its topics\n:4\n"},
		{[]string{"get", "--route", ""}, "alpha\nbeta\n:4\n"},
		{[]string{"key", "--topic", ""}, "a.raw\nb.raw\n:4\n"},
		{[]string{"stats", "--output", ""}, "text\njson\n:4\n"},
		{[]string{"get", "--ro"}, "--route\tthe name of the route\n--routes\tthe routes file; default: $ONCEBUS_ROUTES, or routes.yaml\n:4\n"},
		{[]string{"check", ""}, ":0\n"},
		{[]string{"stats", "--routes", ""}, ":0\n"},
		{[]string{"stats", ""}, ":4\n"},
		{[]string{"completion", ""}, "bash\nzsh\nfish\npowershell\n:4\n"},
	} {
		got := execute(t.Context(), []string{"ONCEBUS_ROUTES=" + routes}, "", append([]string{"__complete"}, v.args...)...)
		if got.Code != cli.ExitStopped || got.Stdout != v.want {
			t.Errorf("%q: %+v", v.args, got)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		got := execute(t.Context(), nil, "", "completion", shell)
		if got.Code != cli.ExitStopped || !strings.Contains(got.Stdout, "oncebus") || got.Stderr != "" {
			t.Errorf("%s: %d %s", shell, got.Code, got.Stderr)
		}
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
