package processor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// produceAgain writes records with a client of its own: the bench's client keeps the id of
// a recreated topic.
func (b *bench) produceAgain(records ...*kgo.Record) {
	b.t.Helper()
	if err := b.newClient().ProduceSync(b.t.Context(), records...).FirstErr(); err != nil {
		b.t.Fatal(err)
	}
}

// TestRecreatedOutputIsWrittenTo: a topic that oncebus writes to is deleted and created
// again while it runs. The clients know the old topic by its id.
func TestRecreatedOutputIsWrittenTo(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"signals.unique", "dead"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			i := b.ready(b.start(b.config("one")))
			emit := func(name string) {
				for n, r := range batch(name, 8) {
					b.produce(r, &kgo.Record{Topic: "signals.raw", Partition: int32(n % 4), Key: []byte(fmt.Sprint("bad-", name, n)), Value: []byte("?")})
				}
			}
			emit("before")
			b.drain(i, "signals.raw")
			b.recreate(name)
			emit("after")
			b.client, b.admin = b.newClient(), kadm.NewClient(b.newClient())
			b.drain(i, "signals.raw")
			out := b.read(name)
			if len(out) != 8 {
				t.Errorf("%d records in the recreated topic, want 8", len(out))
			}
			for _, r := range out {
				if !strings.Contains(string(r.Key), "after") {
					t.Errorf("the recreated topic has %s", r.Key)
				}
			}
		})
	}
}

// TestRestoreOfARecreatedChangelogStopsTheProcess: no record was produced since, and the
// new changelog is empty. It must not be read as the state of the task.
func TestRestoreOfARecreatedChangelogStopsTheProcess(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one")))
	b.produce(batch("before", 8)...)
	b.drain(i, "signals.raw")
	b.recreate("app-repartition-changelog")
	b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: app.GroupName("app", processor.StageDedup), Err: kerr.UnknownMemberID, Count: 1})
	b.stops(i)
	if !errors.Is(i.err, kafka.ErrTruncated) || !strings.Contains(i.err.Error(), "topic app-repartition-changelog was deleted and recreated") {
		t.Errorf("the process stopped with %v", i.err)
	}
}

// TestIngressWritesToARecreatedTopic: the raw topic of a route with HTTP is recreated. The
// client opens the app again, and continues.
func TestIngressWritesToARecreatedTopic(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, strings.Replace(benchRoutes, "    output:", "    on_missing_key: forward\n    output:", 1))
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	f := b.ingress("front")
	event := submission("signals.raw", `{"price":1}`, testTime) // without a key it goes to the raw topic
	assertAnswer(t, f.submit(event), "missing_key forwarded")
	must(t, i.stop())
	b.recreate("signals.raw")
	b.wait("the client to write to the new topic", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		d, err := f.Derive(event)
		return err == nil && f.Submit(ctx, event, &d) == nil
	})
}

// TestRecreatedTopicOfStateStopsTheProcess: with another changelog, repartition topic or
// raw topic, the stored state and the offsets are another topic's.
func TestRecreatedTopicOfStateStopsTheProcess(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ topic, routes string }{
		{"app-repartition-changelog", benchRoutes}, {"app-repartition", benchRoutes}, {"signals.raw", benchRoutes}, {"signals.raw", keyedRoutes},
	} {
		t.Run(tt.topic, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, tt.routes)
			cfg := b.config("one")
			cfg.SessionTimeout = 30 * time.Second // a member that a busy machine removes finds the offsets of its group gone, and waits for a decision
			i := b.ready(b.start(cfg, kgo.MetadataMaxAge(300*time.Millisecond)))
			b.produce(batch("before", 8)...)
			b.wait("the first events", func() bool { return len(b.read("signals.unique")) == 8 })
			b.recreate(tt.topic)
			b.produceAgain(batch("after", 8)...)
			b.stops(i)
			if !errors.Is(i.err, kafka.ErrOperator) && !errors.Is(i.err, kafka.ErrTruncated) || !strings.Contains(i.err.Error(), tt.topic) || !strings.Contains(i.err.Error(), "recreated") {
				t.Errorf("the process stopped with %v", i.err)
			}
		})
	}
}
