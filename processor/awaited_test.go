package processor_test

import (
	"fmt"
	"testing"
	"time"
)

// TestRequestWaitsForItsTransaction: and not for the commit interval, which is longer here than
// any test waits. So is an event with a reply address in a raw topic, which the routing stage
// routes, and an event without a key there, which it turns away.
func TestRequestWaitsForItsTransaction(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		b := newHTTPBench(t, routes)
		cfg := b.config("one")
		cfg.TransactionTimeout, cfg.CommitInterval, cfg.StopTimeout = 15*time.Minute, 280*time.Second, 290*time.Second
		b.ready(b.start(cfg))
		f := b.ingress("front")
		for n := range 5 {
			assertAnswer(t, f.submit(submission("signals.raw", fmt.Sprintf(`{"id":"%d"}`, n), testTime)), "unique forwarded")
			assertAnswer(t, f.submit(submission("signals.raw", fmt.Sprintf(`{"id":"%d"}`, n), testTime)), "duplicate")
			assertAnswer(t, f.submit(submission("signals.raw", `{}`, testTime)), "missing_key")
		}
	})
}
