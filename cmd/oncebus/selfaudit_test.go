package main_test

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest/embedded"
)

// auditPage is the page about self-audit.
const auditPage = "self-audit.md"

// volatile are the parts of an output that differ from run to run.
var volatile = []struct {
	part *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "TIME"},
	{regexp.MustCompile(`in [0-9.]+(ms|µs|s), \d+/s`), "in TIME, RATE"},
	{regexp.MustCompile(`rate=\d+/s`), "rate=RATE"},
	{regexp.MustCompile(`signals.unique/\d+/\d+`), "signals.unique/PLACE"},
	{regexp.MustCompile(`event time \d+; this one has \d+`), "EVENT TIMES"},
	{regexp.MustCompile(`digest [0-9a-f]{32}`), "digest"},
	{regexp.MustCompile(`offsets \d+ to \d+`), "OFFSETS"},
	{regexp.MustCompile(`raw/\d:`), "raw/N:"},
	{regexp.MustCompile(`\d+ records read`), "N records read"}, // a transaction more is a checkpoint more
	{regexp.MustCompile(`records=\d+`), "records=N"},
}

func stable(output string) string {
	for _, v := range volatile {
		output = v.part.ReplaceAllString(output, v.as)
	}
	return output
}

// TestSelfAuditPage runs the commands of the page in its order, against a service with events
// between, and compares what they print.
func TestSelfAuditPage(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("signals.raw", 2)
	environ := runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","))
	s := serves(t, environ...)
	client := cluster.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	position := filepath.Join(t.TempDir(), "audit.position")
	sent := 0
	between := []func(){
		func() { sent += produceSignals(t, client, 0) },
		func() { sent += produceSignals(t, client, 1) },
		func() { copyOutput(t, client, cluster) },
		func() {},
	}
	steps := pageSteps(t, auditPage, "")
	if len(steps) != len(between) {
		t.Fatalf("%s has %d commands, want %d", auditPage, len(steps), len(between))
	}
	for i, step := range steps {
		between[i]()
		embedded.Wait(t, "all events to be judged", func() bool { return judged(t, environ, sent) })
		args := step.args("/var/lib/oncebus/audit.position", position)
		got := execute(t.Context(), environ, "", args...)
		want, code, _ := strings.Cut(step.want, "$ echo $?\n")
		if stable(got.Stdout+got.Stderr) != stable(want) {
			t.Errorf("oncebus %v printed\n%sthe page has\n%s", args, got.Stdout+got.Stderr, want)
		}
		if code != "" && strings.TrimSpace(code) != fmt.Sprint(got.Code) {
			t.Errorf("oncebus %v: exit code %d, the page has %s", args, got.Code, code)
		}
	}
	s.stop()
	s.ended()
}

// judged reports whether so many events are in the key counts of the app.
func judged(t *testing.T, environ []string, n int) bool {
	t.Helper()
	return strings.Contains(execute(t.Context(), environ, "", "stats", "--json").Stdout, fmt.Sprintf(`"judged":%d,`, n))
}

// produceSignals sends 1,000 events, some of them again, and one without a key. It returns how
// many have a key.
func produceSignals(t *testing.T, client *kgo.Client, round int) int {
	t.Helper()
	now := time.Now()
	var records []*kgo.Record
	send := func(value string) {
		records = append(records, &kgo.Record{Topic: "signals.raw", Partition: int32(len(records) % 2), Value: []byte(value), Timestamp: now})
	}
	for n := range 1000 {
		for range 1 + n%2 {
			send(fmt.Sprintf(`{"traceId":"t%d-%d"}`, round, n))
		}
	}
	keyed := len(records)
	send(`{"price":1}`)
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return keyed
}

// copyOutput writes the first record of the output again, by hand.
func copyOutput(t *testing.T, client *kgo.Client, cluster *embedded.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reader := cluster.Client(kgo.ConsumeTopics("signals.unique"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	records := reader.PollFetches(ctx).Records()
	if len(records) == 0 {
		t.Fatal("the output is empty")
	}
	r := records[0]
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Timestamp: r.Timestamp}).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// TestSelfAuditRefusesWhatIsNoPosition: before it connects.
func TestSelfAuditRefusesWhatIsNoPosition(t *testing.T) {
	environ := runEnviron(t, "ONCEBUS_BROKERS=127.0.0.1:1")
	bad := clitest.WriteFile(t, "bad", "OBSA1\nthis is cut")
	for _, wrong := range []struct {
		want string
		args []string
	}{
		{"open none: no such file", []string{"--from", "none"}},
		{"not a position of self-audit", []string{"--from", bad, "--save", bad}},
		{"--keys and --open are at least 1", []string{"--keys", "0"}},
	} {
		got := execute(t.Context(), environ, "", append([]string{"self-audit"}, wrong.args...)...)
		if got.Code != cli.ExitWrong || got.Stdout != "" || !strings.Contains(got.Stderr, wrong.want) {
			t.Errorf("self-audit %v: %+v, want %q", wrong.args, got, wrong.want)
		}
	}
}

// TestSelfAuditNamesTheRoutesInForce: the caller has the file of an older route set. The result has a
// line for each route in force.
func TestSelfAuditNamesTheRoutesInForce(t *testing.T) {
	cluster := embedded.Start(t)
	for _, topic := range []string{"signals.raw", "alerts.raw"} {
		cluster.CreateTopic(topic, 2)
	}
	environ := runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","))
	serves(t, environ...)
	both := keyRoutes + strings.NewReplacer("routes:\n", "", "signals", "alerts").Replace(keyRoutes)
	if got := execute(t.Context(), environ, "", "apply", clitest.WriteFile(t, "both.yaml", both)); got.Code != cli.ExitStopped {
		t.Fatalf("%+v", got)
	}
	got := execute(t.Context(), environ, "", "self-audit", "-o", "json")
	if got.Code != cli.ExitStopped || !strings.Contains(got.Stdout, `"route":"signals"`) || !strings.Contains(got.Stdout, `"route":"alerts"`) {
		t.Errorf("exit code %d\n%s%s", got.Code, got.Stdout, got.Stderr)
	}
}
