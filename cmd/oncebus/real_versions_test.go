//go:build unix

package main_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/proxy"
)

// TestRealOlderKafka runs the main path on older releases of Kafka, and on the default
// one, those of Kafka 4 with the transactions of older ones. On each of them requests of a
// transaction arrive late, in the next one of the same producer (hazard C2).
func TestRealOlderKafka(t *testing.T) {
	t.Parallel()
	type cluster struct {
		version, timestampBound string
		old                     bool // a release of Kafka 4 with transaction.version 1
	}
	clusters := []cluster{{kafkatest.KafkaVersion, "message.timestamp.before.max.ms", true}}
	for _, v := range kafkatest.OlderKafkaVersions {
		bound, old := "message.timestamp.before.max.ms", true
		if strings.HasPrefix(v, "3.") {
			bound, old = "message.timestamp.difference.max.ms", false
		}
		clusters = append(clusters, cluster{v, bound, old})
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
			v := &olderKafka{world: newWorldAt(t, realRoutes+oldRoute[1:], broker.Seeds(), broker.Admin(), false), proxy: px, timestampBound: c.timestampBound}
			diagnosed := v.doctor(0)
			if diagnosed.Code != cli.ExitStopped || !strings.Contains(diagnosed.Stdout, "Kafka "+releaseOf(c.version)) {
				t.Errorf("doctor: %+v", diagnosed)
			}
			if strings.HasPrefix(c.version, "3.6.") {
				v.sample("old", linesOf(diagnosed, "versions", "features"), cli.ExitStopped)
			}
			v.run()
		})
	}
}

// releaseOf returns major and minor number of a version.
func releaseOf(version string) string { return version[:strings.LastIndexByte(version, '.')] }

// olderKafka is one release of TestRealOlderKafka.
type olderKafka struct {
	*world
	proxy *proxy.Proxy
	all   []*traffic
	// timestampBound is the release's name for the setting.
	timestampBound string
}

// oldRoute has an output that refuses old records.
const oldRoute = `
  - name: old
    topics: [APP.old.raw]
    key: [{field: id}]
    window: 1h
    output: APP.old.unique
    dead_letter: APP.old.dead
`

func (v *olderKafka) run() {
	v.createTopics(nil, append(realInputs, "old.raw")...)
	v.createTopics([]string{v.timestampBound + "=3600000"}, "old.unique")
	s := v.start("a", "BROKERS="+v.proxy.Addrs()[0], "WORKERS=1", "SESSION_TIMEOUT=10s", "COMMIT_INTERVAL=20ms")
	s.awaitReady()
	v.all = v.realTraffic()
	send(v.world, 100, v.all...)
	v.checkTraffic(v.all)
	v.lateAbort("dedup")
	v.lateAbort("route")
	v.lateOffsets("route") // a task trusts its checkpoint, the router the group's offsets
	v.oldEvent()
	s.stop()
}

// oldEvent sends an event that is older than its output topic accepts. A broker refuses
// the record, and with it every transaction. So the event is a dead letter.
func (v *olderKafka) oldEvent() {
	v.t.Helper()
	v.produce(&kgo.Record{Topic: v.topic("old.raw"), Value: []byte(`{"id":"a"}`), Timestamp: time.Now().Add(-2 * time.Hour)})
	v.drained([]string{"old.raw"}, []string{"old.unique", "old.dead"})
	dead := v.output("old.dead")
	if len(dead) != 1 || !strings.Contains(headerOf(dead[0], "oncebus-reason"), "ms behind the broker, topic "+v.topic("old.unique")+" allows 3600000") {
		v.t.Errorf("dead letters of an event that its output refuses: %v", dead)
	}
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
