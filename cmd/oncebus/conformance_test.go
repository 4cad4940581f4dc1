//go:build unix

package main_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest/embedded"
)

const shortScenario = `
lease: 1s
wait: 60s
events:
  plain: {value: '{"account":"a","amount":5}', outcome: completed, result: '{"account":"a","granted":5}'}
steps:
  - {do: dispatch, event: plain, count: 3}
  - {do: crash, event: plain, count: 4}
`

// TestConformance: an executor that keeps the protocol, and one that does nothing.
func TestConformance(t *testing.T) {
	t.Parallel()
	executor := filepath.Join(t.TempDir(), "executor")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", executor, filepath.Join(moduleRoot, "deployments", "executors", "go")).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	run := func(t *testing.T, command, scenario string) (got shownConformance, code int) {
		t.Helper()
		cluster := embedded.Start(t)
		file := filepath.Join(t.TempDir(), "scenario.yaml")
		if err := os.WriteFile(file, []byte(scenario), 0o600); err != nil {
			t.Fatal(err)
		}
		environ := []string{"EXECUTOR_INSTANCE=kit", "EXECUTOR_RENEW_MS=200", "PATH=" + os.Getenv("PATH")}
		result := execute(t.Context(), environ, "", "conformance", "--brokers", strings.Join(cluster.ListenAddrs(), ","), "--topic", "kit.run", "--outcomes", "kit.outcomes",
			"--replies", "kit.answers", "--group", "kit", "--create-topics", "--run", command, "-o", "json", file)
		if err := json.Unmarshal([]byte(result.Stdout), &got); err != nil {
			t.Fatalf("%v: %+v", err, result)
		}
		return got, result.Code
	}
	t.Run("keeps it", func(t *testing.T) {
		t.Parallel()
		if got, code := run(t, executor, shortScenario); code != cli.ExitStopped || !got.Conforms || len(got.Broken) > 0 || len(got.Rules) != 13 {
			t.Errorf("exit code %d, %+v", code, got)
		}
	})
	t.Run("does nothing", func(t *testing.T) {
		t.Parallel()
		got, code := run(t, "sleep 1000", strings.ReplaceAll(shortScenario, "60s", "2s"))
		if code != cli.ExitFailed || got.Conforms || strings.Join(got.Broken, " ") != "outcome-for-each every-offset" {
			t.Errorf("exit code %d, %+v", code, got)
		}
	})
	t.Run("ends", func(t *testing.T) {
		t.Parallel()
		got, code := run(t, "false", shortScenario)
		if code != cli.ExitFailed || !strings.Contains(strings.Join(got.Rules[2].Findings, "\n"), "the executor has ended: exit status 1") {
			t.Errorf("exit code %d, %+v", code, got)
		}
	})
}

type shownConformance struct {
	Conforms bool
	Broken   []string
	Rules    []struct{ Findings []string }
}

// TestConformanceUsage: what cannot be run is refused, with the way out.
func TestConformanceUsage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(file, []byte("lease: 1s\nlaese: 2s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	topics := []string{"--topic", "run", "--outcomes", "outcomes"}
	for want, args := range map[string][]string{
		"want a scenario file":           topics,
		"want --topic":                   {file},
		"choose one of --run and --kill": append(topics, "--run", "x", "--kill", "y", file),
		"are three topics":               append(topics, "--answers", "outcomes", file),
		"laese":                          append(topics, "--run", "x", file),
	} {
		got := execute(t.Context(), []string{"ONCEBUS_BROKERS=127.0.0.1:1"}, "", append([]string{"conformance"}, args...)...)
		if got.Code != cli.ExitWrong || !strings.Contains(got.Stderr, want) {
			t.Errorf("%v: %+v, want %q", args, got, want)
		}
	}
}
