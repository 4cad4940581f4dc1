package processor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor"
)

// TestRequestWaitsForItsTransaction protects that a request waits only for its transaction and not for the commit
// interval, which is longer here than any test waits. The same holds for an event with a reply address in a raw
// topic, which the routing stage routes, and for an event without a key there, which the routing stage turns away.
func TestRequestWaitsForItsTransaction(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		b.ready(b.start(b.longInterval("one")))
		f := b.ingress("front")
		for n := range 5 {
			assertAnswer(t, f.submit(submission("signals.raw", fmt.Sprintf(`{"id":"%d"}`, n), testTime)), "unique forwarded")
			assertAnswer(t, f.submit(submission("signals.raw", fmt.Sprintf(`{"id":"%d"}`, n), testTime)), "duplicate")
			assertAnswer(t, f.submit(submission("signals.raw", `{}`, testTime)), "missing_key")
		}
	})
}

// TestOutcomeThatARequestWaitsFor protects that the routing stage also ends a transaction with an outcome at once, on
// a route whose requests wait for outcomes.
func TestOutcomeThatARequestWaitsFor(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "wait\n    max_waiting: 1"))
	cfg := b.longInterval("one")
	b.ready(b.start(cfg))
	f := b.ingress("front")
	for n := range 3 {
		id := fmt.Sprint(n)
		assertAnswer(t, f.submit(request(id, "first")), "unique in_progress attempt 1 forwarded")
		twin := f.wait(t.Context(), request(id, "twin"))
		b.wait("the twin to wait", func() bool { return b.waitingRequests(cfg) == 2 })
		runs := b.read("ops.run")
		at := slices.IndexFunc(runs, func(r *kgo.Record) bool { return strings.Contains(string(r.Value), `"id":"`+id+`"`) })
		must(t, f.conclude(runs[at], dedup.OutcomeCompleted, []byte("done")))
		assertAnswer(t, <-twin.answer, "replayed completed attempt 1 outcome")
		must(t, <-twin.err)
	}
}

// longInterval is a configuration whose commit interval is longer than any test waits.
func (b *bench) longInterval(instance string) processor.Config {
	cfg := b.config(instance)
	cfg.TransactionTimeout, cfg.CommitInterval, cfg.StopTimeout = 15*time.Minute, 280*time.Second, 290*time.Second
	return cfg
}
