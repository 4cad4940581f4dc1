//go:build unix

package main_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest/embedded"
)

const shortScenario = `
lease: 1s
wait: 60s
events:
  plain: {value: '{"account":"a","amount":5}', outcome: completed, result: '{"account":"a","granted":5}'}
steps:
  - {do: dispatch, event: plain, count: 3}
  - {do: unclaimed, event: plain}
  - {do: crash, event: plain, count: 4}
  - {do: crash-in-work, event: plain}
`

// runKit runs the command with an executor on an embedded broker.
func runKit(t *testing.T, environ []string, command, scenario string, options ...string) clitest.Result {
	t.Helper()
	cluster := embedded.Start(t)
	file := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(file, []byte(scenario), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{
		"conformance", "--brokers", strings.Join(cluster.ListenAddrs(), ","), "--topic", "kit.run", "--outcomes", "kit.outcomes",
		"--replies", "kit.answers", "--group", "kit", "--create-topics", "--run", command, file,
	}, options...)
	return execute(t.Context(), append(environ, "PATH="+os.Getenv("PATH")), "", args...)
}

// TestConformance: an executor that keeps the protocol, one that does nothing, one that does not
// charge, and two that end.
func TestConformance(t *testing.T) {
	t.Parallel()
	executor := filepath.Join(t.TempDir(), "executor")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", executor, filepath.Join(moduleRoot, "deployments", "executors", "go")).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	judged := func(t *testing.T, command, scenario string) (got shownConformance, code int) {
		t.Helper()
		result := runKit(t, nil, command, scenario, "-o", "json")
		if err := json.Unmarshal([]byte(result.Stdout), &got); err != nil {
			t.Fatalf("%v: %+v", err, result)
		}
		return got, result.Code
	}
	t.Run("keeps it", func(t *testing.T) {
		t.Parallel()
		got, code := judged(t, executor, shortScenario)
		if code != cli.ExitStopped || !got.Conforms || len(got.Broken) > 0 || len(got.Rules) != 15 {
			t.Errorf("exit code %d, %+v", code, got)
		}
		for _, rule := range got.Rules {
			if effects := rule.Rule == "effect-once" || rule.Rule == "unclaimed-once"; effects && !rule.Judged {
				t.Errorf("%s is not judged: the executor charged nothing", rule.Rule)
			}
		}
	})
	t.Run("does nothing", func(t *testing.T) {
		t.Parallel()
		got, code := judged(t, "sleep 1000", strings.ReplaceAll(shortScenario, "60s", "2s"))
		if code != cli.ExitFailed || got.Conforms || strings.Join(got.Broken, " ") != "outcome-for-each every-offset" {
			t.Errorf("exit code %d, %+v", code, got)
		}
	})
	t.Run("charges nothing", func(t *testing.T) {
		t.Parallel()
		got, code := judged(t, "unset EXECUTOR_GATEWAY; exec "+executor, strings.Replace(shortScenario, "{do: crash, event: plain, count: 4}", "{do: crash-in-work, event: plain}", 1))
		const want = "the executor sent no charge to the gateway of EXECUTOR_GATEWAY: it answered event plain of step 3"
		if code != cli.ExitFailed || strings.Join(got.Broken, " ") != "outcome-for-each" || !strings.Contains(strings.Join(got.Rules[2].Findings, "\n"), want) {
			t.Errorf("exit code %d, %+v", code, got)
		}
	})
	t.Run("ends", func(t *testing.T) {
		t.Parallel()
		const want = "oncebus conformance: not judged: the executor ended with exit status 1 before it did anything; its output is above\n"
		for _, options := range [][]string{nil, {"-o", "json"}} {
			result := runKit(t, nil, "echo no settings >&2; false", shortScenario, options...)
			if result.Code != cli.ExitFailed || result.Stdout != "" || !strings.HasSuffix(result.Stderr, want) || !strings.Contains(result.Stderr, "no settings") {
				t.Errorf("%v: %+v", options, result)
			}
		}
	})
	t.Run("ends after it was killed", func(t *testing.T) {
		t.Parallel()
		got, code := judged(t, "mkdir "+filepath.Join(t.TempDir(), "once")+" || exit 1; exec "+executor, shortScenario)
		if code != cli.ExitFailed || !strings.Contains(strings.Join(got.Rules[2].Findings, "\n"), "the executor has ended: exit status 1") {
			t.Errorf("exit code %d, %+v", code, got)
		}
	})
}

// TestConformanceEnvironment: the executor gets what it needs, and what the caller has set stays.
func TestConformanceEnvironment(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		environ, want []string
		scenario      string
	}{
		"nothing is set": {
			nil, []string{"EXECUTOR_INSTANCE=kit", "EXECUTOR_RENEW_MS=200", "EXECUTOR_GATEWAY=http://127.0.0.1:", "EXECUTOR_GATEWAY_ASK=false", "EXECUTOR_START=false"}, shortScenario,
		},
		"all is set": {
			[]string{"EXECUTOR_INSTANCE=own", "EXECUTOR_RENEW_MS=7", "EXECUTOR_JOURNAL="},
			[]string{"EXECUTOR_INSTANCE=own\n", "EXECUTOR_RENEW_MS=7\n", "EXECUTOR_JOURNAL=\n", "EXECUTOR_GATEWAY_ASK=true", "EXECUTOR_START=true"},
			shortScenario + "gateway: ask\nstart: true\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result := runKit(t, test.environ, "env >&2; false", test.scenario)
			shown := "\n" + result.Stderr // each variable after a line break, the first as well: a shell has its own order
			for _, want := range test.want {
				if !strings.Contains(shown, "\n"+want) {
					t.Errorf("the executor has no %s: %+v", want, result)
				}
			}
			_, journal, _ := strings.Cut(shown, "\nEXECUTOR_JOURNAL=")
			journal, _, _ = strings.Cut(journal, "\n")
			if (journal == "") != (test.environ != nil) {
				t.Errorf("the journal is %q", journal)
			}
			if _, err := os.Stat(filepath.Dir(journal)); journal != "" && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the directory of %s is left, error %v", journal, err)
			}
		})
	}
}

type shownConformance struct {
	Conforms bool
	Broken   []string
	Rules    []struct {
		Rule     string
		Judged   bool
		Findings []string
	}
}

// TestConformanceUsage: what cannot be run is refused, with the way out.
func TestConformanceUsage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(file, []byte("lease: 1s\nlaese: 2s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	right := filepath.Join(t.TempDir(), "right.yaml")
	if err := os.WriteFile(right, []byte(shortScenario), 0o600); err != nil {
		t.Fatal(err)
	}
	topics := []string{"--topic", "run", "--outcomes", "outcomes"}
	for want, args := range map[string][]string{
		"want a scenario file":           topics,
		"want --topic":                   {file},
		"choose one of --run and --kill": append(topics, "--run", "x", "--kill", "y", file),
		"are three topics":               append(topics, "--answers", "outcomes", file),
		"laese":                          append(topics, "--run", "x", file),
		"--gateway 127.0.0.1:x":          append(topics, "--gateway", "127.0.0.1:x", "--run", "x", right),
	} {
		got := execute(t.Context(), []string{"ONCEBUS_BROKERS=127.0.0.1:1"}, "", append([]string{"conformance"}, args...)...)
		if got.Code != cli.ExitWrong || !strings.Contains(got.Stderr, want) {
			t.Errorf("%v: %+v, want %q", args, got, want)
		}
	}
}
