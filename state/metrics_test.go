package state

import (
	"bytes"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	h, err := NewHost(smallConfig(), reg, quiet())
	must(t, err)
	if _, err := NewHost(smallConfig(), reg, quiet()); err == nil {
		t.Fatal("two hosts on one registry")
	}
	s := mustOpen(t, h, t.TempDir())
	s.Put(rowOf(1))
	for n := range uint64(3) {
		_, _, err := s.Get(digestOf(n)) // one in the overlay
		must(t, err)
	}
	must(t, s.Apply(1, nil))
	_, _, err = s.Get(digestOf(1)) // recent
	must(t, err)
	flush(t, s)
	_, _, err = s.Get(digestOf(1)) // page
	must(t, err)
	s.Discard()
	want := `
# HELP oncebus_state_lookups_total Look-ups by source of the answer: overlay (rows that the open transaction added), recent (rows in memory), page (read from a run), filter (absent, no read), false_hit (absent, but a page was read).
# TYPE oncebus_state_lookups_total counter
oncebus_state_lookups_total{answer="false_hit"} 0
oncebus_state_lookups_total{answer="filter"} 2
oncebus_state_lookups_total{answer="overlay"} 1
oncebus_state_lookups_total{answer="page"} 1
oncebus_state_lookups_total{answer="recent"} 1
# HELP oncebus_state_recent_rows Rows in memory only. A restore after a kill reads them from the changelog.
# TYPE oncebus_state_recent_rows gauge
oncebus_state_recent_rows 0
# HELP oncebus_state_rows Rows in memory and in runs; an overwritten row counts until its run is merged.
# TYPE oncebus_state_rows gauge
oncebus_state_rows 1
# HELP oncebus_state_runs Runs of all open stores.
# TYPE oncebus_state_runs gauge
oncebus_state_runs 1
`
	must(t, testutil.GatherAndCompare(reg, strings.NewReader(want),
		"oncebus_state_lookups_total", "oncebus_state_rows", "oncebus_state_recent_rows", "oncebus_state_runs"))
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	must(t, s.Close())
	must(t, h.Close())
	if n, err := testutil.GatherAndCount(reg); n != 0 || err != nil {
		t.Fatalf("%d series after Close, %v", n, err)
	}
}

// TestScrapeDoesNotStopAStore scrapes while a store has its mutex locked and then needs the host, for example because
// a look-up releases a table to the host. If the scrape held the host meanwhile, both would wait for each other for
// ever, and with them all tasks of the process.
func TestScrapeDoesNotStopAStore(t *testing.T) {
	reg := prometheus.NewRegistry()
	h, err := NewHost(smallConfig(), reg, quiet())
	must(t, err)
	s := mustOpen(t, h, t.TempDir())
	s.mu.Lock()
	scraped := make(chan error)
	go func() {
		_, err := reg.Gather()
		scraped <- err
	}()
	for stacks := new(bytes.Buffer); !strings.Contains(stacks.String(), "state.(*Store).Stats"); {
		stacks.Reset()
		must(t, pprof.Lookup("goroutine").WriteTo(stacks, 1))
	}
	if h.mu.TryLock() {
		h.mu.Unlock()
	} else {
		t.Error("the scrape keeps the host locked while it waits for a store")
	}
	s.mu.Unlock()
	must(t, <-scraped)
	must(t, s.Close())
	must(t, h.Close())
}
