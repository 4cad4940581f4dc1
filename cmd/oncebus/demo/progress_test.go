package demo

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestDemoProgressLine(t *testing.T) {
	registry := prometheus.NewRegistry()
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_events_total", Help: "Events."}, []string{"route", "verdict"})
	registry.MustRegister(events)
	events.WithLabelValues("signals", "unique").Add(5)
	events.WithLabelValues("webhooks", "unique").Add(2)
	events.WithLabelValues("webhooks", "duplicate").Add(4)
	events.WithLabelValues("webhooks", "invalid").Add(1)
	events.WithLabelValues("signals", "missing_key").Add(2)
	const want = " s  produced 20 of 30  judged 14: 7 unique, 4 duplicates, 3 bad\n"
	for _, terminal := range []bool{false, true} {
		var out bytes.Buffer
		p := newProgress(&out, registry, 30)
		p.terminal = terminal
		p.produced.Store(20)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p.show(ctx)
		if got := out.String(); !strings.HasSuffix(got, want) || strings.HasPrefix(got, "\r\x1b[K") != terminal {
			t.Errorf("terminal %v: %q", terminal, got)
		}
	}
}
