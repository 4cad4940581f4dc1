package front

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/security"
)

// parsing returns a client that knows its app, and connects to nothing.
func parsing(tb testing.TB) *IngressClient {
	tb.Helper()
	routes, err := rules.ParseRoutes("routes.yaml", []byte(`routes:
  - {name: a, topics: [raw], key: [{field: id}], window: 1h, output: out, dead_letter: dead, http: {path: /a, signature: {scheme: none}}}
`))
	if err != nil {
		tb.Fatal(err)
	}
	cfg := app.Config{Config: security.Config{Brokers: []string{"localhost:9092"}, AppID: "app", InstanceID: "one"}, Partitions: 1, ReplicationFactor: 1, Start: app.StartEarliest, TransactionTimeout: time.Second}
	f, err := NewIngressClient(cfg, routes, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	f.at.Store(&clientState{})
	return f
}

// TestParsesAreBounded: however many events wait, no more are parsed at a time than there are derivers,
// and each of them is parsed in the end.
func TestParsesAreBounded(t *testing.T) {
	t.Parallel()
	f := parsing(t)
	var all []*rules.Deriver
	for range cap(f.derivers) {
		all = append(all, <-f.derivers)
	}
	if len(all) != runtime.GOMAXPROCS(0) {
		t.Errorf("%d events are parsed at a time", len(all))
	}
	keyed := make(chan bool, 100)
	for n := range cap(keyed) {
		go func() {
			derived, err := f.Derive(&Submission{Topic: "raw", Value: fmt.Appendf(nil, `{"id":%d}`, n), Time: time.Now()})
			keyed <- err == nil && derived.Finding == rules.Keyed
		}()
	}
	if len(keyed) > 0 {
		t.Error("an event was parsed while all derivers were in use")
	}
	f.derivers <- all[0]
	for range cap(keyed) {
		if !<-keyed {
			t.Error("an event has no key")
		}
	}
}

// BenchmarkManyMembers parses 160 objects of as many members as fit into 0.98 MB at a time, and
// reports the most memory that it took. On two shared cores on 2026-11-28: 1,691 MB in 36 s with a
// deriver for each and no bound of the members, and 11 MB in 0.25 s with both.
func BenchmarkManyMembers(b *testing.B) {
	f := parsing(b)
	var text strings.Builder
	text.WriteString(`{"id":"1","a\u0062":0`)
	for i := range 105_000 {
		fmt.Fprintf(&text, `,"m%x":0`, i)
	}
	value := []byte(text.String() + "}")
	most := uint64(0)
	for b.Loop() {
		var all sync.WaitGroup
		for range 160 {
			all.Go(func() { _, _ = f.Derive(&Submission{Topic: "raw", Value: value, Time: time.Now()}) })
		}
		all.Wait()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		most = max(most, m.HeapSys)
	}
	b.ReportMetric(float64(most>>20), "MB")
}
