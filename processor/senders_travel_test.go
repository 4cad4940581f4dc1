package processor_test

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/front"
)

// sendersOf returns the duplicates by sender of the only route, as `oncebus stats` reads them.
func (b *bench) sendersOf(cfg processor.Config) map[string]uint64 {
	b.t.Helper()
	inspector, err := front.NewInspector(b.t.Context(), cfg.Config, b.routes, slog.New(slog.DiscardHandler))
	must(b.t, err)
	defer inspector.Close()
	tasks, err := inspector.Stats(b.t.Context())
	must(b.t, err)
	all := map[string]uint64{}
	for _, t := range tasks {
		for _, d := range t.Duplicates {
			for _, c := range d.Senders.Counters {
				all[c.Name] += c.Count
			}
		}
	}
	return all
}

func withSender(routes, sender string) string {
	return strings.Replace(routes, "    output:", "    sender: "+sender+"\n    output:", 1)
}

// TestProducerIDIsTheSender protects that the producer id of the raw record travels to the task, because the router's
// records have the router's own producer id. The task reads the producer id of a prepartitioned record itself.
func TestProducerIDIsTheSender(t *testing.T) {
	t.Parallel()
	bothWays(t, withSender(benchRoutes, "producer_id"), func(t *testing.T, routes string) {
		b := newBench(t, routes)
		cfg := b.config("one")
		i := b.ready(b.start(cfg))
		other := b.newClient(kgo.RecordPartitioner(kgo.ManualPartitioner()))
		id, _, err := other.ProducerID(t.Context())
		must(t, err)
		own, _, err := b.client.ProducerID(t.Context())
		must(t, err)
		b.produce(signal("a", 0, testTime), signal("a", 0, testTime))
		for range 2 {
			must(t, other.ProduceSync(t.Context(), signal("a", 0, testTime)).FirstErr())
		}
		b.drain(i, "signals.raw")
		want := map[string]uint64{strconv.FormatInt(own, 10): 1, strconv.FormatInt(id, 10): 2}
		if got := b.sendersOf(cfg); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the senders are %v, want %v", got, want)
		}
	})
}

// TestSourceOfARequestIsTheSender protects that the client's address travels from the ingress to the task, which also
// counts the events that came by Kafka.
func TestSourceOfARequestIsTheSender(t *testing.T) {
	t.Parallel()
	routes := withSender(benchRoutes, "producer_id")
	b := newHTTPBench(t, routes)
	b.useRoutes(strings.ReplaceAll(string(b.routes.Text), "producer_id", "http_source")) // which needs an http part
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	f := b.ingress("front")
	for n, source := range []string{"192.0.2.1", "2001:db8::7", "192.0.2.1", "2001:db8::7", "2001:db8::7"} {
		s := submission("signals.raw", `{"id":"a"}`, testTime)
		s.Source = source
		assertAnswer(t, f.submit(s), []string{"unique forwarded", "duplicate"}[min(n, 1)])
	}
	b.produce(signal("a", 0, testTime))
	b.drain(i, "signals.raw")
	want := map[string]uint64{"192.0.2.1": 1, "2001:db8::7": 3, "": 1}
	if got := b.sendersOf(cfg); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the senders are %v, want %v", got, want)
	}
}
