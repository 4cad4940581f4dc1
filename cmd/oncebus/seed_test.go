//go:build unix

package main_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest/embedded"
)

// pageVaries is what the page shows otherwise in each run: times of the file, the cluster, the
// bytes of a file with few keys, and the task of a key.
var pageVaries = regexp.MustCompile(`20\d\d-\d\d-\d\dT[0-9:.]+Z|on cluster \S+|[0-9,]+ bytes, [0-9.]+ a key|repartition/\d+`)

// TestSeedPage runs the commands of changing-seeds.md against the service.
func TestSeedPage(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("signals.raw", 4)
	environ := runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","))
	serves(t, environ...)
	for _, step := range pageSteps(t, "changing-seeds.md") {
		got := execute(t.Context(), environ, "", step.args()...)
		if pageVaries.ReplaceAllString(got.Stdout, "X") != pageVaries.ReplaceAllString(step.want, "X") || got.Code != cli.ExitStopped {
			t.Errorf("oncebus %s: exit code %d, stderr %q, output\n%s\nthe page has\n%s", step.command, got.Code, got.Stderr, got.Stdout, step.want)
		}
	}
}

// TestWrongSeedsAreExitCode2: a mistake of the command line is reported before a connection.
func TestWrongSeedsAreExitCode2(t *testing.T) {
	environ := []string{"ONCEBUS_ROUTES=" + deployments + "/routes/signals.yaml", "ONCEBUS_BROKERS=127.0.0.1:1"} // no broker listens there
	existing := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(existing, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"seed":                               "want the FILE",
		"seed a b":                           "unexpected argument",
		"seed a --rate -1":                   "--rate is a number of keys",
		"seed a --first-seen soon":           `--first-seen: first_seen "soon": want`,
		"export":                             "want the FILE",
		"export -":                           "cannot be standard output",
		"apply --timeout 0s x.yaml":          "--timeout must be positive",
		"export " + existing:                 "exists: name another file",
		"verify":                             "want the FILE",
		"verify none.obx1":                   "open none.obx1",
		"verify --file-only " + existing:     "not a whole OBX1 file",
		"seed --routes none.yaml a":          "open none.yaml",
		"export --routes none.yaml new.obx1": "open none.yaml",
	} {
		got := execute(t.Context(), environ, "", strings.Fields(args)...)
		if got.Code == cli.ExitStopped || !strings.Contains(got.Stderr, want) {
			t.Errorf("%s: exit code %d, %q, want %q", args, got.Code, got.Stderr, want)
		}
	}
}
