//go:build unix

package main_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest/embedded"
)

// embeddedDoctor runs 'oncebus doctor' on an embedded broker with the topics of the page's
// samples.
func embeddedDoctor(t *testing.T, args []string, opts ...kfake.Opt) clitest.Result {
	t.Helper()
	cluster := embedded.Start(t, opts...)
	for _, topic := range []string{"signals.raw", "signals.unique", "dead-letter"} {
		cluster.CreateTopic(topic, 6)
	}
	routes := clitest.WriteFile(t, "routes.yaml", strings.ReplaceAll(doctorRoutes, "APP.", ""))
	return execute(t.Context(), []string{
		"ONCEBUS_BROKERS=" + strings.Join(cluster.ListenAddrs(), ","), "ONCEBUS_ROUTES=" + routes, "ONCEBUS_STATE_DIR=" + t.TempDir(), "ONCEBUS_INSTANCE_ID=a",
	}, "", append([]string{"doctor"}, args...)...)
}

// TestDoctor: the exit code and the last line are the verdict, on brokers of four ages.
func TestDoctor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		versions *kversion.Versions
		code     int
		verdict  string
	}{
		{"new", kversion.Stable(), cli.ExitStopped, "works"},
		{"old", kversion.V3_6_0(), cli.ExitStopped, "works"},
		{"older than tested", kversion.V3_4_0(), cli.ExitFailed, "works, at risk: 1 finding"},
		{"too old", kversion.V2_4_0(), cli.ExitWrong, "will not work: 3 findings"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := embeddedDoctor(t, nil, kfake.MaxVersions(tt.versions))
			if got.Code != tt.code || !strings.HasSuffix(got.Stdout, "\n\n"+tt.verdict+"\n") || got.Stderr != "" {
				t.Errorf("exit code %d, want %d and %q:\n%s%s", got.Code, tt.code, tt.verdict, got.Stdout, got.Stderr)
			}
		})
	}
}

// TestDoctorJSON: the names are an interface.
func TestDoctorJSON(t *testing.T) {
	t.Parallel()
	got := embeddedDoctor(t, []string{"--json"})
	var report struct {
		Verdict  string `json:"verdict"`
		Findings []struct {
			Check, Level, Finding, Action string
		} `json:"findings"`
	}
	if err := json.Unmarshal([]byte(got.Stdout), &report); err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	if report.Verdict != "works" || len(report.Findings) < 12 || report.Findings[0].Check != "brokers" || report.Findings[0].Level != "ok" || report.Findings[0].Finding == "" {
		t.Errorf("%+v", report)
	}
}

// TestDoctorRefusesWrongSettings like every command: all mistakes at once, without a
// connection.
func TestDoctorRefusesWrongSettings(t *testing.T) {
	t.Parallel()
	got := execute(t.Context(), []string{"ONCEBUS_BROKERS=kafka:9092", "ONCEBUS_START=never", "ONCEBUS_PARTITIONS=0"}, "", "doctor", "--routes", filepath.Join(t.TempDir(), "none.yaml"))
	for _, part := range []string{"ONCEBUS_START", "ONCEBUS_PARTITIONS", "none.yaml"} {
		if got.Code != cli.ExitWrong || got.Stdout != "" || !strings.Contains(got.Stderr, part) {
			t.Errorf("%+v, want %q", got, part)
		}
	}
}
