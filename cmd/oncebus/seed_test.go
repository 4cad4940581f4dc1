//go:build unix

package main_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest/embedded"
)

// pageVaries is what the page shows otherwise in each run: times of the file, the cluster, the
// bytes of a file with few keys, and the task of a key.
var pageVaries = regexp.MustCompile(`20\d\d-\d\d-\d\dT[0-9:.]+Z|on cluster \S+|[0-9,]+ bytes, [0-9.]+ a key|repartition/\d+`)

// TestSeedPage runs the commands of changing-routes.md about seeds against the service.
func TestSeedPage(t *testing.T) {
	start := func(input string, more ...string) []string {
		cluster := embedded.Start(t)
		cluster.CreateTopic(input, 4)
		environ := runEnviron(t, append(more, "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","))...)
		serves(t, environ...)
		return environ
	}
	routes, err := filepath.Abs(filepath.Join(deployments, "routes", "user-operations.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	signals, operations := start("signals.raw"), start("operations.raw", "ONCEBUS_ROUTES="+routes)
	for _, step := range pageSteps(t, "changing-routes.md", "Bring keys from another system, and take them out") {
		environ := signals
		if strings.Contains(step.command, "user-operations") {
			environ = operations
		}
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

// TestSystemIngressSeededOutcomes brings the results that another system stored: a twin gets them by HTTP
// and by Kafka, verify and self-audit miss nothing, and the seed repeats as it was typed.
func TestSystemIngressSeededOutcomes(t *testing.T) {
	inputs := []string{"operations.raw", "operations.outcomes"}
	inOneProcess(t, "user-operations.yaml", unchanged, inputs, func(t *testing.T, s *system, d *sender) {
		at := time.Now().Add(-time.Hour).UnixMilli()
		file := filepath.Join(s.dir, "outcomes.jsonl")
		lines := fmt.Sprintf(`{"id":["a1","r1","BUY"],"status":"completed","result":{"sold": 1.50},"http_status":201,"first_seen":%[1]d}
{"event":{"accountId":"a1","requestId":"r2","operation":"buy"},"status":"completed","result_base64":"AP8=","content_type":"application/x","first_seen":%[1]d}
{"key":"7d3b1824318f41bda4fadf7f4f224ea4143a524df66c984b97374c5a720c6398","status":"submitted","first_seen":%[1]d}
{"id":["a1","r4","BUY"],"status":"in_progress","first_seen":%[1]d}
`, at)
		if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"4 lines: 4 taken, 0 known", "4 lines: 0 taken, 4 known"} {
			if out, stderr, code := s.oncebus("", "seed", "--route", "user-operations", file); code != cli.ExitStopped || !strings.HasPrefix(out, want) {
				t.Fatalf("seed: %d, %s%s", code, out, stderr)
			}
		}
		exported := filepath.Join(s.dir, "keys.obx1")
		for _, command := range []string{"export", "verify"} {
			if out, stderr, code := s.oncebus("", command, exported); code != cli.ExitStopped || command == "verify" && !strings.Contains(out, "the app has 4 of them; 0 missing, 0 different") {
				t.Errorf("%s: %d, %s%s", command, code, out, stderr)
			}
		}
		send := func(request string) answer {
			t.Helper()
			return d.post("/operations", withHMAC("OPERATIONS"), fmt.Sprintf(`{"accountId":"a1","requestId":%q,"operation":"BUY"}`, request))
		}
		first := send("r1")
		first.is("a twin of a stored operation", http.StatusCreated, `{"sold": 1.50}`)
		first.replays("a twin of a stored operation", true)
		send("r2").isOf("a twin of a stored event", http.StatusOK, "application/x", "\x00\xff")
		send("r3").problem("a twin of a submitted operation", http.StatusConflict, "duplicate")
		send("r4").is("a twin of an operation in progress", http.StatusConflict, `{"error":"DUPLICATE_REQUEST"}`)
		s.send("operations.raw", 0, time.Now(), `{"accountId":"a1","requestId":"r2","operation":"BUY","by":"Kafka"}`)
		reply := s.reply("operations.replies", "r2")
		expect(t, reply, "verdict", "replayed", "claim-status", "completed", "first-request", "r2", "first", "seeded key/0/2")
		if string(reply.Value) != "\x00\xff" {
			t.Errorf("a twin by Kafka got %q", reply.Value)
		}
		s.count("operations.run", 0)
		if audit := s.selfAudit(cli.ExitStopped); audit.Verdict != "held" || len(audit.Findings) > 0 {
			t.Errorf("self-audit: %+v", audit)
		}
	})
}
