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

var (
	pageBlock = regexp.MustCompile("(?s)```(console|tsv) ?([a-z.]*)\n(.*?)```")
	// pageVaries is what a page shows otherwise in each run: times of the file, the cluster, the
	// bytes of a file with few keys, and the task of a key.
	pageVaries = regexp.MustCompile(`2026-\d\d-\d\dT[0-9:.]+Z|on cluster \S+|[0-9,]+ bytes, [0-9.]+ a key|repartition/\d+`)
)

// runPage runs the console blocks of a page, and compares their output. Blocks with a name
// are files.
func runPage(t *testing.T, path string, environ []string) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	for _, block := range pageBlock.FindAllStringSubmatch(string(page), -1) {
		var lines []string
		for _, line := range strings.SplitAfter(block[3], "\n") {
			lines = append(lines, strings.TrimPrefix(line, "   "))
		}
		text := strings.TrimSuffix(strings.Join(lines, ""), "   ")
		if block[2] != "" {
			if err := os.WriteFile(block[2], []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		for _, step := range strings.Split(text, "$ oncebus ")[1:] {
			command, want, _ := strings.Cut(step, "\n")
			got := execute(t.Context(), environ, "", strings.Fields(command)...)
			if pageVaries.ReplaceAllString(got.Stdout, "X") != pageVaries.ReplaceAllString(want, "X") || got.Code != cli.ExitStopped {
				t.Errorf("oncebus %s: exit code %d, stderr %q, output\n%s\nthe page has\n%s", command, got.Code, got.Stderr, got.Stdout, want)
			}
		}
	}
}

// TestSeedPage runs the commands of changing-seeds.md against the service.
func TestSeedPage(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("signals.raw", 4)
	environ := runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","))
	s := serveCommand(t, "run", environ...)
	defer func() {
		s.stop()
		<-s.code
	}()
	s.ready()
	page, err := filepath.Abs("../../deployments/changing-seeds.md")
	if err != nil {
		t.Fatal(err)
	}
	runPage(t, page, environ)
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
