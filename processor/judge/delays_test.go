package judge

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestSlowScrapeHoldsNoDelays covers a scrape that takes the first histogram and is slow to take the next. Tasks must
// be able to publish their delays meanwhile, because they do so within a transaction.
func TestSlowScrapeHoldsNoDelays(t *testing.T) {
	h := newDelayHistograms()
	for _, route := range []string{"one", "other"} {
		h.all[route] = &delays{sum: 1000}
		h.all[route].counts[0] = 1
	}
	metrics := make(chan prometheus.Metric)
	go func() {
		defer close(metrics)
		h.Collect(metrics)
	}()
	<-metrics
	if h.mu.TryLock() {
		h.mu.Unlock()
	} else {
		t.Error("the delays are locked while the scrape takes them")
	}
	<-metrics
	if _, more := <-metrics; more {
		t.Error("more histograms than routes")
	}
}
