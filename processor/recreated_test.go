package processor_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
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
	"oncebus/processor/kafkatest/embedded"
)

// produceAgain writes records with a new client, because the bench's client keeps the id of the topic before it was
// recreated.
func (b *bench) produceAgain(records ...*kgo.Record) {
	b.t.Helper()
	if err := b.newClient().ProduceSync(b.t.Context(), records...).FirstErr(); err != nil {
		b.t.Fatal(err)
	}
}

// TestRecreatedOutputIsWrittenTo deletes a topic that oncebus writes to and creates it again while oncebus runs. The
// clients know the old topic by its id, and have to find the new one.
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

// TestRestoreOfARecreatedChangelogStopsTheProcess recreates a changelog to which no record was produced since, so
// that it is empty. A restore must not take it for the state of the task.
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

// TestIngressWritesToARecreatedTopic recreates the raw topic of a route with HTTP. The ingress client opens the app
// again, and continues.
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

// TestRecreatedTopicOfStateStopsTheProcess protects that a recreated changelog, repartition topic or raw topic stops
// the process: the stored state and the offsets belong to the old topic.
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

// replaceCluster puts another cluster at the address of the bench's cluster.
func (b *bench) replaceCluster(id string) {
	b.t.Helper()
	_, port, err := net.SplitHostPort(b.cluster.ListenAddrs()[0])
	must(b.t, err)
	number, err := strconv.Atoi(port)
	must(b.t, err)
	b.cluster.Close()
	b.cluster = embedded.Start(b.t, kfake.ClusterID(id), kfake.Ports(number))
	b.client = b.newClient()
	b.admin = kadm.NewClient(b.client)
}

// TestReplacedClusterStopsTheProcess lets another cluster come to the address of the cluster on which the process
// began, with none of its topics or with all of them. The process must say so and end, because it would otherwise
// wait for ever.
func TestReplacedClusterStopsTheProcess(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		topics []string
	}{{"without topics", nil}, {"with its topics", []string{"signals.raw", "signals.unique", "dead", "app-manifest", "app-repartition", "app-repartition-changelog"}}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.config("one")
			cfg.SessionTimeout = 30 * time.Second
			cfg.StopTimeout = 5 * time.Second // the workers may wait for the former cluster
			i := b.ready(b.start(cfg))
			b.produce(batch("before", 8)...)
			b.drain(i, "signals.raw")
			b.replaceCluster("another")
			if len(tt.topics) > 0 {
				_, err := b.admin.CreateTopics(t.Context(), 4, 1, nil, tt.topics...)
				must(t, err)
			}
			b.stops(i)
			if !errors.Is(i.err, kafka.ErrOperator) || !strings.Contains(i.err.Error(), "of cluster another, and this process began on cluster kfake") {
				t.Errorf("the process stopped with %v", i.err)
			}
			if len(tt.topics) > 0 {
				return
			}
			i = b.ready(b.start(cfg)) // with the files of the former cluster's state
			b.produce(batch("before", 8)...)
			b.drain(i, "signals.raw")
			if out := b.read("signals.unique"); len(out) != 8 {
				t.Errorf("%d events came out of the other cluster, want 8", len(out))
			}
		})
	}
}

// TestReplacedClusterStopsTheIngress protects that an ingress process ends when another cluster comes. Otherwise it
// would refuse requests for ever, or write them to topics of an unknown owner.
func TestReplacedClusterStopsTheIngress(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one")))
	f := b.ingress("front")
	must(t, i.stop())
	b.replaceCluster("another")
	b.wait("the ingress to stop", func() bool {
		select {
		case <-f.done:
			return true
		default:
			return false
		}
	})
	if !errors.Is(f.err, kafka.ErrOtherCluster) {
		t.Errorf("the ingress stopped with %v", f.err)
	}
	f.err = nil // the end of the test checks the error again
}
