//go:build unix

package main_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/proxy"
)

const hangingRoutes = `
routes:
  - name: r
    topics: [APP.raw]
    key: [{field: id}]
    window: 1h
    output: APP.unique
    dead_letter: APP.dead
`

// A droppedMarker says which end of a transaction of which stage, in which topic the marker is
// dropped, and what becomes of the process.
type droppedMarker struct {
	end   string // commit, abort, or timeout
	topic string // of which the broker is away; "offsets" for those of the group
	fate  string // lives, before: killed before it learns the end, after: killed after it
}

func (f droppedMarker) stage() string {
	if f.topic == "repartition" {
		return "route"
	}
	return "dedup"
}

// TestRealHangingTransactions: the broker of one partition of a transaction is away while it ends,
// by commit, abort or timeout. Its coordinator completes it, and drops the marker of that partition
// (KAFKA-20734). Each event comes out once, and every partition goes on once its broker is back.
// Each end in each topic has one fate here; ONCEBUS_TEST_HANGING=all has them all, 36 runs.
func TestRealHangingTransactions(t *testing.T) {
	t.Parallel()
	px, err := proxy.Listen(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = px.Close() })
	c := kafkatest.StartNodes(t, 2, kafkatest.WithListener(kafkatest.Listener{Name: "PROXIED", Advertise: px.Addrs()}),
		kafkatest.WithProperty("default.replication.factor", "1"), kafkatest.WithProperty("offsets.topic.replication.factor", "1"),
		kafkatest.WithProperty("transaction.state.log.replication.factor", "1"), kafkatest.WithProperty("transaction.state.log.min.isr", "1"))
	if err := px.Forward(c.ListenAddrs("PROXIED")); err != nil {
		t.Fatal(err)
	}
	h := &hangingCluster{t: t, Cluster: c, proxy: px}
	h.moveTo(1, "__transaction_state")
	for _, f := range []droppedMarker{
		{"commit", "unique", "lives"}, {"commit", "changelog", "before"}, {"commit", "repartition", "after"}, {"commit", "offsets", "lives"},
		{"abort", "unique", "after"}, {"abort", "changelog", "lives"}, {"abort", "repartition", "before"}, {"abort", "offsets", "lives"},
		{"timeout", "unique", "before"}, {"timeout", "changelog", "lives"}, {"timeout", "repartition", "lives"}, {"timeout", "offsets", "before"},
	} {
		fates := []string{f.fate}
		if os.Getenv("ONCEBUS_TEST_HANGING") == "all" {
			fates = []string{"lives", "before", "after"}
		}
		for _, f.fate = range fates {
			t.Run(f.end+"/"+f.topic+"/"+f.fate, func(t *testing.T) { h.forget(t, f) })
		}
	}
}

// A hangingCluster has two brokers and topics of one replica. The second one can go away.
type hangingCluster struct {
	*kafkatest.Cluster

	t     *testing.T
	proxy *proxy.Proxy
}

// moveTo moves topics to a broker.
func (h *hangingCluster) moveTo(broker int32, topics ...string) {
	h.t.Helper()
	listed, err := h.Admin().ListTopicsWithInternal(h.t.Context(), topics...)
	if err != nil {
		h.t.Fatal(err)
	}
	var req kadm.AlterPartitionAssignmentsReq
	listed.EachPartition(func(p kadm.PartitionDetail) { req.Assign(p.Topic, p.Partition, []int32{broker}) })
	moved, err := h.Admin().AlterPartitionAssignments(h.t.Context(), req)
	if err == nil {
		err = moved.Error()
	}
	if err != nil {
		h.t.Fatalf("move %v: %v", topics, err)
	}
	h.awaitLeaders(broker, topics...)
}

// awaitLeaders waits until all partitions of topics have this leader; -1 for none.
func (h *hangingCluster) awaitLeaders(leader int32, topics ...string) {
	h.t.Helper()
	eventually(h.t, fmt.Sprintf("%v to be led by %d", topics, leader), func(ctx context.Context) error {
		listed, err := h.Admin().ListTopicsWithInternal(ctx, topics...)
		if err != nil {
			return err
		}
		listed.EachPartition(func(p kadm.PartitionDetail) {
			if p.Leader != leader {
				err = fmt.Errorf("%s/%d is led by %d", p.Topic, p.Partition, p.Leader)
			}
		})
		return err
	})
}

// forget runs one app in which a marker is dropped.
func (h *hangingCluster) forget(t *testing.T, f droppedMarker) {
	h.t = t
	defer h.proxy.Clear()
	w := newWorldOf(t, fmt.Sprintf("hang-%s-%s-%s", f.end, f.topic, f.fate), hangingRoutes, h.proxy.Addrs(), h.Admin(), false)
	w.createPartitions(2, nil, "raw")
	w.createTopics(nil, "unique", "dead")
	timeout := "TRANSACTION_TIMEOUT=40s"
	if f.end == "timeout" {
		timeout = "TRANSACTION_TIMEOUT=5s"
	}
	settings := []string{"WORKERS=1", "PARTITIONS=2", "COMMIT_INTERVAL=100ms", "SESSION_TIMEOUT=20s", timeout}
	s := w.start("a", settings...)
	s.awaitReady()
	topics := map[string]string{"unique": w.topic("unique"), "changelog": w.app + "-repartition-changelog", "repartition": w.app + "-repartition", "offsets": "__consumer_offsets"}
	must := "1"
	if _, err := h.Admin().AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "min.insync.replicas", Value: &must}}, topics["changelog"], topics["repartition"], w.app+"-manifest"); err != nil {
		t.Fatal(err)
	}
	for name, topic := range topics {
		home := int32(1)
		if name == f.topic {
			home = 2
		}
		h.moveTo(home, topic)
	}
	h.moveTo(1, w.topic("raw"), w.topic("dead"), w.app+"-manifest")
	sent := 0
	send := func(n int) {
		var records []*kgo.Record
		for range n {
			records = append(records, &kgo.Record{Topic: w.topic("raw"), Partition: int32(sent % 2), Key: fmt.Appendf(nil, "h-%d", sent), Value: fmt.Appendf(nil, `{"id":"h-%d"}`, sent)})
			sent++
		}
		records = append(records, records...) // and a copy of each
		w.produce(records[:n]...)
		for _, r := range records[:n] {
			w.produce(&kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value})
		}
	}
	send(50)
	w.drained([]string{"raw"}, []string{"unique"})

	ended := h.arm(s, w, f, topics[f.topic])
	go send(40)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	h.proxy.Clear()
	if f.fate != "lives" {
		s.kill()
	}
	h.awaitLeaders(-1, topics[f.topic])
	if err := h.Brokers()[1].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if f.fate != "lives" {
		s = w.start("a", settings...)
	}
	send(40)
	w.drained([]string{"raw"}, []string{"unique"})
	took := time.Since(began)
	checkEmitted(t, "h", sent, w.output("unique"))
	for _, e := range s.lines() {
		if strings.Contains(fmt.Sprint(e), "a transaction hangs") {
			t.Log(e)
		}
	}
	t.Logf("all partitions went on after %v", took.Round(100*time.Millisecond))
	s.awaitReady()
	s.stop()
}

// arm makes the second broker go away when the process is about to end a transaction, and lets
// the end pass when the topic has no leader. The channel has a value when it has passed.
func (h *hangingCluster) arm(s *service, w *world, f droppedMarker, topic string) <-chan error {
	client := w.app + "-a-" + f.stage()
	ended := make(chan error, 1)
	var once sync.Once
	away := func() {
		if err := h.Brokers()[1].Kill(); err != nil {
			ended <- err
			return
		}
		h.awaitLeaders(-1, topic)
	}
	if f.end == "abort" {
		h.rule(proxy.Rule{Name: "rebalance", Match: proxy.Match{ClientID: client, APIs: []int16{kmsg.TxnOffsetCommit.Int16()}}, Action: proxy.PatchResponse, Error: kerr.RebalanceInProgress, Count: 1})
	}
	h.rule(proxy.Rule{Name: "end", Action: proxy.DelayRequest, Delay: time.Millisecond, Count: 1, Match: proxy.Match{ClientID: client, APIs: []int16{kmsg.EndTxn.Int16()}, Where: func(req kmsg.Request) bool {
		end := req.(*kmsg.EndTxnRequest)
		if end.Commit == (f.end == "abort") {
			return false
		}
		once.Do(func() {
			switch {
			case f.end == "timeout" && f.fate != "before":
				if err := s.Signal(syscall.SIGSTOP); err != nil {
					ended <- err
				}
				away()
				err := h.awaitTimeout(w, f)
				_ = s.Signal(syscall.SIGCONT)
				time.AfterFunc(300*time.Millisecond, func() { ended <- err })
			case f.end == "timeout":
				if err := s.Kill(); err != nil {
					ended <- err
				}
				away()
				ended <- h.awaitTimeout(w, f)
			case f.fate == "before":
				away()
				h.rule(proxy.Rule{Name: "unheard", Match: proxy.Match{ClientID: client, APIs: []int16{kmsg.EndTxn.Int16()}}, Action: proxy.DropResponse})
				time.AfterFunc(300*time.Millisecond, func() { ended <- nil })
			default:
				away()
				time.AfterFunc(300*time.Millisecond, func() { ended <- nil })
			}
		})
		return false
	}}})
	return ended
}

func (h *hangingCluster) rule(r proxy.Rule) {
	if _, err := h.proxy.Add(r); err != nil {
		h.t.Error(err)
	}
}

// awaitTimeout waits until the coordinator has aborted the transaction.
func (h *hangingCluster) awaitTimeout(w *world, f droppedMarker) error {
	id := fmt.Sprintf("%s-%s-0/a", w.app, f.stage())
	ctx, cancel := context.WithTimeout(h.t.Context(), realDeadline)
	defer cancel()
	for {
		described, err := h.Admin().DescribeTransactions(ctx, id)
		if d := described[id]; err == nil && d.Err == nil && d.State == "CompleteAbort" {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
