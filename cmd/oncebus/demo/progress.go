package demo

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/page"
)

// verdicts has the numbers of judged events by verdict, from the metrics.
type verdicts map[string]int

func (v verdicts) total() int {
	n := 0
	for _, c := range v {
		n += c
	}
	return n
}

// gatherVerdicts sums oncebus_events_total by verdict.
func gatherVerdicts(g prometheus.Gatherer) (verdicts, error) {
	families, err := g.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	counts := verdicts{}
	for _, family := range families {
		if family.GetName() != "oncebus_events_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			counts[page.Label(m, "verdict")] += int(m.GetCounter().GetValue())
		}
	}
	return counts, nil
}

// progress shows the demo's progress as a line. On a terminal it rewrites the line; elsewhere it writes a new
// line every second.
type progress struct {
	w        io.Writer
	terminal bool
	metrics  prometheus.Gatherer
	total    int
	started  time.Time
	produced atomic.Int64
}

func newProgress(w io.Writer, metrics prometheus.Gatherer, total int) *progress {
	return &progress{w: w, terminal: cli.OnTerminal(w), metrics: metrics, total: total, started: time.Now()}
}

// show writes the line repeatedly until ctx is done, and then once more.
func (p *progress) show(ctx context.Context) {
	every := time.Second
	if p.terminal {
		every = 100 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.line()
		case <-ctx.Done():
			p.line()
			if p.terminal {
				cli.Printf(p.w, "\n")
			}
			return
		}
	}
}

// line writes the line once.
func (p *progress) line() {
	counts, err := gatherVerdicts(p.metrics)
	if err != nil {
		cli.Printf(p.w, "  %v\n", err)
		return
	}
	start, end := "", "\n"
	if p.terminal {
		start, end = "\r\x1b[K", "" // return to the start of the line and erase it
	}
	cli.Printf(p.w, "%s  %4.1f s  produced %d of %d  judged %d: %d unique, %d duplicates, %d bad%s", start, time.Since(p.started).Seconds(),
		p.produced.Load(), p.total, counts.total(), counts["unique"], counts["duplicate"], counts["invalid"]+counts["missing_key"], end)
}
