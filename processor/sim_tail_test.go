//go:build synctests

package processor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/oracle"
)

// manifestTopic is read only for its aborted transactions.
const manifestTopic = "app-manifest"

// tailMaxWaitMillis is how long brokers may hold back a fetch of the tail. No other client uses this number, so
// injected errors can spare the tail by it.
const tailMaxWaitMillis = 2345

// tail is a read_committed consumer that runs all the time. What it has seen stays seen, whatever is purged,
// compacted or lost later.
type tail struct {
	client  *kgo.Client
	cluster *embedded.Cluster
	done    chan struct{}

	mu   sync.Mutex
	live map[string][]oracle.Record
	next map[app.TaskID]int64
	err  error
	// By partition: aborters are the producers that ever aborted there, and newest has the producer of the newest
	// record of each key.
	aborters map[app.TaskID]map[int64]bool
	newest   map[app.TaskID]map[string]int64
}

func (s *sim) startTail(topics []string) *tail {
	client := s.newClient(kgo.ConsumeTopics(topics...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(tailMaxWaitMillis*time.Millisecond), kgo.MetadataMinAge(250*time.Millisecond), kgo.UnknownTopicRetries(-1), kgo.DisableClientMetrics())
	t := &tail{
		client: client, cluster: s.cluster, done: make(chan struct{}), live: map[string][]oracle.Record{}, next: map[app.TaskID]int64{},
		aborters: map[app.TaskID]map[int64]bool{}, newest: map[app.TaskID]map[string]int64{},
	}
	// Deletions of records that the tail has not read are refused, so that a purge does not overtake the tail.
	s.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DeleteRecords}, Count: -1, Err: kerr.NotLeaderForPartition, When: t.isBehind})
	go t.run()
	return t
}

func (t *tail) run() {
	defer close(t.done)
	for {
		fetches := t.client.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		t.mu.Lock()
		fetches.EachError(func(topic string, partition int32, err error) {
			// The client goes on by itself, except after this error.
			if errors.Is(err, kerr.OffsetOutOfRange) {
				t.goOn(topic, partition, err)
			}
		})
		fetches.EachRecord(t.see)
		failed := t.err != nil
		t.mu.Unlock()
		if failed {
			return
		}
	}
}

// goOn goes on behind the last record read, after a fetch below the log's start. The client may ask again for records
// that it has returned, and those may be purged. Records that it has not returned cannot be purged, because of
// isBehind.
func (t *tail) goOn(topic string, partition int32, err error) {
	next := t.next[app.TaskID{Topic: topic, Partition: partition}]
	for _, p := range t.cluster.PartitionInfos(topic) {
		if p.Partition == partition && p.LogStartOffset <= next && next <= p.HighWatermark {
			t.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{topic: {partition: {Epoch: -1, Offset: next}}})
			return
		}
	}
	t.err = errors.Join(t.err, fmt.Errorf("tail of %s/%d, read to %d: %w", topic, partition, next, err))
}

// isBehind reports whether a request would delete records that the tail has not read.
func (t *tail) isBehind(req kmsg.Request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, topic := range req.(*kmsg.DeleteRecordsRequest).Topics {
		for _, p := range topic.Partitions {
			if p.Offset > t.next[app.TaskID{Topic: topic.Topic, Partition: p.Partition}] {
				return true
			}
		}
	}
	return false
}

// see stores a record or a transaction marker.
func (t *tail) see(r *kgo.Record) {
	id := app.TaskID{Topic: r.Topic, Partition: r.Partition}
	if t.next[id] == 0 {
		t.aborters[id], t.newest[id] = map[int64]bool{}, map[string]int64{}
	}
	if r.Offset < t.next[id] {
		return // seen before: see goOn
	}
	t.next[id] = r.Offset + 1
	if !r.Attrs.IsControl() {
		t.live[r.Topic] = append(t.live[r.Topic], observed(r))
		t.newest[id][string(r.Key)] = r.ProducerID
		return
	}
	if abort := []byte{0, 0, 0, 0}; bytes.HasPrefix(r.Key, abort) { // version 0, type 0
		t.aborters[id][r.ProducerID] = true
	}
}

// abortsOutlast reports whether every producer that aborted in a topic has a record that compaction would leave.
func (t *tail) abortsOutlast(topic string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, aborters := range t.aborters {
		if id.Topic != topic {
			continue
		}
		left := map[int64]bool{}
		for _, producer := range t.newest[id] {
			left[producer] = true
		}
		for producer := range aborters {
			if !left[producer] {
				return false
			}
		}
	}
	return true
}

// startOutlasts reports whether compaction would leave the first record of a partition, whose log begins at start.
func (t *tail) startOutlasts(topic string, partition int32, start int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	var first *oracle.Record
	for i := range t.live[topic] {
		r := &t.live[topic][i]
		switch {
		case r.Partition != partition:
		case r.Offset == start:
			first = r
		case first != nil && bytes.Equal(r.Key, first.Key):
			return false
		}
	}
	return first != nil
}

// position returns the offset after the last record that the tail has seen, markers included.
func (t *tail) position(topic string, partition int32) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.next[app.TaskID{Topic: topic, Partition: partition}]
}

// since returns the records of a topic that the tail has seen, from the n-th on.
func (t *tail) since(topic string, n int) []oracle.Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.live[topic][n:])
}

// stop ends the tail and returns what it saw.
func (t *tail) stop() (map[string][]oracle.Record, error) {
	t.client.Close()
	<-t.done
	return t.live, t.err
}

func observed(r *kgo.Record) oracle.Record {
	o := oracle.Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		o.Headers = append(o.Headers, oracle.Header{Key: h.Key, Value: h.Value})
	}
	return o
}
