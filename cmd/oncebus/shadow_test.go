package main_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
)

// waits are the event times that a shadow has to wait for.
var waits = regexp.MustCompile(`promote in [0-9hms]+`)

// TestKeysPage runs the commands of changing-routes.md about a new key against the service, with events before,
// while and after the shadow is tried out, and compares their output.
func TestKeysPage(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("signals.raw", 4)
	brokers := strings.Join(cluster.ListenAddrs(), ",")
	routes := strings.Replace(strings.Replace(keyRoutes, "      - hash: [symbol, exchange, action, timestamp]\n", "", 1), "field: traceId", "field: id", 1)
	environ := runEnviron(t, "ONCEBUS_BROKERS="+brokers, "ONCEBUS_ROUTES="+clitest.WriteFile(t, "before.yaml", routes))
	serves(t, environ...)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	began := time.Now().Add(-72 * time.Hour)
	send := func(after time.Duration, value string) {
		t.Helper()
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "signals.raw", Timestamp: began.Add(after), Value: []byte(value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	judged := func(n int) {
		t.Helper()
		await(t, "the shadow to look at all events", func() bool {
			out := execute(t.Context(), environ, "", "shadow", "-o", "json").Stdout
			total := 0
			for _, m := range regexp.MustCompile(`"(?:both|would|no)_[a-z]+":(\d+)`).FindAllStringSubmatch(out, -1) {
				var one int
				_, _ = fmt.Sscan(m[1], &one)
				total += one
			}
			return total == n
		})
	}
	trial := routes + "    shadow: {name: by-order, sample: 100%, key: [{field: order}]}\n"
	promoted := strings.Replace(routes, "field: id", "field: order", 1) + "    namespace: signals~by-order\n"
	files := []string{"trial.yaml", clitest.WriteFile(t, "trial.yaml", trial), "promoted.yaml", clitest.WriteFile(t, "promoted.yaml", promoted)}
	send(0, `{"id":"0","order":"0"}`)
	for n, step := range pageSteps(t, "changing-routes.md", "Change the key of a route") {
		switch n {
		case 2:
			// One after the other: events of two tasks come to the task of the new key in any order.
			for i, value := range []string{`{"id":"1","order":"7"}`, `{"id":"2","order":"7"}`, `{"id":"1","order":"7"}`, `{"id":"1","order":"8"}`, `{"id":"3"}`} {
				send(time.Duration(i+1)*time.Minute, value)
				judged(i + 1)
			}
		case 4:
			for i := range 20 {
				send(60*time.Hour, fmt.Sprintf(`{"id":"n%d","order":"n%d"}`, i, i))
			}
			judged(25)
		}
		got := execute(t.Context(), environ, "", step.args(files...)...)
		same := func(s string) string {
			return waits.ReplaceAllString(instants.ReplaceAllString(passed.ReplaceAllString(s, "T"), "T"), "wait")
		}
		if out := got.Stdout + got.Stderr; same(out) != same(step.want) {
			t.Errorf("oncebus %s: exit code %d, output\n%s\nthe page has\n%s", step.command, got.Code, out, step.want)
		}
	}
	send(61*time.Hour, `{"id":"another","order":"n3"}`) // a duplicate of an event that the old rule emitted
	send(61*time.Hour, `{"id":"n3","order":"fresh"}`)
	reader := cluster.Client(kgo.ConsumeTopics("signals.unique"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	var out strings.Builder
	for !strings.Contains(out.String(), "fresh") {
		fetches := reader.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { out.Write(r.Value) })
	}
	if strings.Contains(out.String(), "another") {
		t.Error("a duplicate by the new key was emitted")
	}
}

// await waits until holds returns true.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	err := kafkatest.Await(t.Context(), what, func(context.Context) error {
		if !holds() {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
