//go:build unix

package main_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/proxy"
)

// TestRealOlderKafka runs the main path on the oldest supported releases of Kafka, and on
// the default one with the transactions of older ones. On each of them requests of a
// transaction arrive late, in the next one of the same producer (hazard C2).
func TestRealOlderKafka(t *testing.T) {
	t.Parallel()
	type cluster struct {
		version string
		old     bool // the default release with transaction.version 1
	}
	clusters := []cluster{{kafkatest.KafkaVersion, true}}
	for _, v := range kafkatest.OlderKafkaVersions {
		clusters = append(clusters, cluster{version: v})
	}
	for _, c := range clusters {
		t.Run(c.version, func(t *testing.T) {
			px, err := proxy.Listen(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := px.Close(); err != nil {
					t.Logf("close the proxy: %v", err)
				}
			})
			broker := kafkatest.Start(t, kafkatest.WithVersion(c.version), kafkatest.WithListener(kafkatest.Listener{Name: "PROXIED", Advertise: px.Addrs()}))
			if err := px.Forward(broker.ListenAddrs("PROXIED")); err != nil {
				t.Fatal(err)
			}
			if c.old {
				if err := broker.SetTransactionVersion(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
			}
			v := &olderKafka{world: newWorldAt(t, realRoutes, broker.Seeds(), broker.Admin(), false), proxy: px}
			v.run()
		})
	}
}

// olderKafka is one release of TestRealOlderKafka.
type olderKafka struct {
	*world
	proxy *proxy.Proxy
	all   []*traffic
}

func (v *olderKafka) run() {
	v.createTopics(nil, realInputs...)
	s := v.start("a", "BROKERS="+v.proxy.Addrs()[0], "WORKERS=1", "SESSION_TIMEOUT=10s", "COMMIT_INTERVAL=20ms")
	s.awaitReady()
	v.all = v.realTraffic()
	send(v.world, 100, v.all...)
	v.checkTraffic(v.all)
	v.lateAbort("dedup")
	v.lateAbort("route")
	v.lateOffsets("route") // a task trusts its checkpoint, the router the group's offsets
	s.stop()
}

// lateAbort delays the abort of a transaction until the next one has produced its records,
// and is about to commit. A broker that accepts it aborts them, and commits their offsets.
func (v *olderKafka) lateAbort(stage string) {
	v.t.Helper()
	client := v.app + "-a-" + stage
	release := make(chan struct{})
	v.rule(proxy.Rule{Name: "rebalance", Match: proxy.Match{ClientID: client, APIs: []int16{kmsg.TxnOffsetCommit.Int16()}}, Action: proxy.Refuse, Error: kerr.RebalanceInProgress, Count: 1})
	late := v.rule(proxy.Rule{Name: "late abort", Match: proxy.Match{ClientID: client, APIs: []int16{kmsg.EndTxn.Int16()}, Where: aborts}, Action: proxy.HoldRequest, Release: release, Count: 1})
	next := v.rule(proxy.Rule{Name: "next", Match: proxy.Match{ClientID: client, APIs: []int16{kmsg.AddOffsetsToTxn.Int16()}}, Action: proxy.DelayRequest, Delay: time.Second, Skip: 1, Count: 1})
	v.deliverLate(late, next, release)
}

// lateOffsets delays an offset commit until the next transaction is about to end. A broker
// that accepts it takes the offsets back.
func (v *olderKafka) lateOffsets(stage string) {
	v.t.Helper()
	client := v.app + "-a-" + stage
	release := make(chan struct{})
	late := v.rule(proxy.Rule{Name: "late offsets", Match: proxy.Match{ClientID: client, APIs: []int16{kmsg.TxnOffsetCommit.Int16()}}, Action: proxy.HoldRequest, Release: release, Count: 1})
	next := v.rule(proxy.Rule{Name: "next", Match: proxy.Match{ClientID: client, APIs: []int16{kmsg.EndTxn.Int16()}}, Action: proxy.DelayRequest, Delay: time.Second, Skip: 1, Count: 1})
	v.deliverLate(late, next, release)
}

// deliverLate sends events, delivers the held request while the next one is delayed, and
// checks that every event is emitted once.
func (v *olderKafka) deliverLate(late, next *proxy.Fault, release chan struct{}) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), realDeadline)
	defer cancel()
	send(v.world, 10, v.all...)
	if err := late.Wait(ctx, 1); err != nil {
		v.t.Fatal(err)
	}
	eventually(v.t, "the next transaction is about to end", func(context.Context) error {
		send(v.world, 5, v.all...)
		if next.Struck() == 0 {
			return errNotYet
		}
		return nil
	})
	close(release)
	got, err := late.Late(ctx, 1)
	if err != nil || got[0].Err != nil {
		v.t.Fatalf("%s: %+v, %v", late.Name(), got, err)
	}
	if err := proxy.ErrorOf(got[0].Response); err == nil {
		v.t.Errorf("%s: the broker accepted it in the next transaction", late.Name())
	}
	send(v.world, 10, v.all...)
	v.checkTraffic(v.all)
	v.proxy.Clear()
}

func (v *olderKafka) rule(r proxy.Rule) *proxy.Fault {
	v.t.Helper()
	f, err := v.proxy.Add(r)
	if err != nil {
		v.t.Fatal(err)
	}
	return f
}

func aborts(req kmsg.Request) bool {
	end, ok := req.(*kmsg.EndTxnRequest)
	return ok && !end.Commit
}
