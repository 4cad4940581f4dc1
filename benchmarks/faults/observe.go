//go:build unix

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest"
	"oncebus/processor/oracle"
)

// observer reads all topics of an app read_committed, from before the first record on, and stores the records. From
// them it derives the progress of the app, the delay of events, and how long no task made progress.
type observer struct {
	app    *app
	client *kgo.Client
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex // also guards all fields down to stall
	live    map[string][]oracle.Record
	lost    error   // the log lost records before the observer could read them
	flows   []int64 // by raw partition: when the newest routed record was made (us)
	tasks   []taskProgress
	unmet   map[outcomePlace]bool // outcomes seen in one of two topics: true in the outcomes topic, false in the repartition topic
	writers []write               // of the changelog, oldest first
	delays  []delay               // of unique events, by arrival
	outputs int                   // records in the output topics
	quiet   time.Time             // when stalls begin to count
	stall   stall                 // the longest stall so far

	samplesMu sync.Mutex
	samples   []oracle.Sample
}

// taskProgress is the progress of the task of one partition.
type taskProgress struct {
	waiting []waitingRecord // repartition records above the last checkpoint that was read
	next    int64           // next offset in the last checkpoint
	sent    int64           // when the newest judged record was made (us)
	moved   time.Time       // when sent last changed
}

type waitingRecord struct{ offset, sent int64 }

// write is a checkpoint row of the changelog: the id of its producer, and the number of the task's transaction,
// counted from 1.
type write struct {
	partition int32
	offset    int64
	producer  int64
	sequence  int64
	seen      time.Time
}

// delay is the time from the creation of a unique event until a read_committed reader had it. Both fields are in us.
type delay struct{ sent, seen int64 }

// stall is a time during which a task had input and committed nothing.
type stall struct {
	took time.Duration
	task int
	at   time.Time // when the stall ended
}

// observe starts an observer. The app's topics must exist and be empty.
func observe(a *app) (*observer, error) {
	from := map[string]map[int32]kgo.Offset{}
	for _, topic := range a.observed() {
		from[topic] = map[int32]kgo.Offset{}
		for p := range int32(partitions) {
			from[topic][p] = kgo.NewOffset().At(0)
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(a.h.cluster.seeds()...), kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.FetchMaxWait(readWait), kgo.FetchMinBytes(readMinBytes), kgo.MetadataMinAge(250*time.Millisecond),
		kgo.ClientID("observer"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(a.h.ctx)
	now := time.Now()
	o := &observer{
		app: a, client: client, stop: cancel, live: map[string][]oracle.Record{}, unmet: map[outcomePlace]bool{}, flows: make([]int64, flows),
		tasks: make([]taskProgress, partitions), quiet: now,
	}
	for i := range o.tasks {
		o.tasks[i].moved = now
	}
	o.done.Go(func() { o.tail(ctx) })
	o.done.Go(func() { o.sample(ctx) })
	return o, nil
}

// end stops reading.
func (o *observer) end() {
	o.stop()
	o.done.Wait()
	o.client.Close()
}

func (o *observer) tail(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := o.client.PollFetches(ctx)
		now := time.Now()
		o.mu.Lock()
		fetches.EachError(func(topic string, partition int32, err error) {
			if errors.Is(err, kerr.OffsetOutOfRange) && o.lost == nil {
				o.lost = fmt.Errorf("%s/%d lost records before the observer read them: %w", topic, partition, err)
			}
		})
		fetches.EachRecord(func(r *kgo.Record) {
			o.live[r.Topic] = append(o.live[r.Topic], toRecord(r))
			o.note(r, now)
		})
		o.mu.Unlock()
	}
}

// note updates the app's progress by a record that has become visible.
func (o *observer) note(r *kgo.Record, now time.Time) {
	switch r.Topic {
	case o.app.verdicts():
	case o.app.repartition():
		if flow, sent, ok := flowOf(r.Headers); ok {
			o.flows[flow] = max(o.flows[flow], sent)
			t := &o.tasks[r.Partition]
			if r.Offset < t.next { // the observer has read the checkpoint first
				t.sent = max(t.sent, sent)
				return
			}
			if len(t.waiting) == 0 {
				t.moved = now // the task had no input until now
			}
			t.waiting = append(t.waiting, waitingRecord{r.Offset, sent})
		} else if ofIngress(r) || isExtra(r) {
			o.tasks[r.Partition].waiting = append(o.tasks[r.Partition].waiting, waitingRecord{offset: r.Offset})
		} else {
			o.meet(routedOutcome(r), false)
		}
	case o.app.topic(claimOutcomes):
		o.meet(outcomePlace{r.Partition, r.Offset}, true)
	case o.app.changelog():
		if strings.HasPrefix(string(r.Key), "checkpoint") {
			next, sequence := readCheckpoint(r.Value)
			o.writers = append(o.writers, write{r.Partition, r.Offset, r.ProducerID, sequence, now})
			o.advance(int(r.Partition), next, now)
		}
	default:
		o.outputs++
		flow, sent, ok := flowOf(r.Headers)
		if !ok {
			return
		}
		// An event without a dedup key becomes a dead letter in the routing stage, so it counts as processed at
		// once.
		o.flows[flow] = max(o.flows[flow], sent)
		if verdictOf(r.Headers) == "unique" {
			o.delays = append(o.delays, delay{sent, now.UnixMicro()})
		}
	}
}

// ofIngress reports whether the ingress wrote this record of the repartition topic.
func ofIngress(r *kgo.Record) bool {
	const flagFromIngress = 4
	return len(r.Key) > 1 && r.Key[0] == 2 && r.Key[1]&flagFromIngress != 0 // version | flags
}

// isExtra reports whether a record belongs to the added route, whose flow number is above all others.
func isExtra(r *kgo.Record) bool {
	return slices.ContainsFunc(r.Headers, func(h kgo.RecordHeader) bool {
		return h.Key == headerFlow && len(h.Value) == 9 && int(h.Value[0]) == flows
	})
}

// advance records a task's checkpoint.
func (o *observer) advance(task int, next int64, now time.Time) {
	t := &o.tasks[task]
	if len(t.waiting) > 0 && t.moved.After(o.quiet) {
		if took := now.Sub(t.moved); took > o.stall.took {
			o.stall = stall{took, task, now}
		}
	}
	t.next, t.moved = max(t.next, next), now
	done := 0
	for done < len(t.waiting) && t.waiting[done].offset < t.next {
		t.sent = max(t.sent, t.waiting[done].sent)
		done++
	}
	t.waiting = t.waiting[done:]
}

// partialVersion is the first byte of a partial checkpoint. Marks and a length follow, and then the same fields with
// which a full checkpoint begins.
const partialVersion = 5

// readCheckpoint returns the next offset and the transaction number of a checkpoint. The value begins with version
// and flags; the leader epoch is between the two results.
func readCheckpoint(value []byte) (next, sequence int64) {
	if len(value) > 2 && value[0] == partialVersion {
		_, n := binary.Uvarint(value[2:])
		value = value[2+max(n, 0):]
	}
	var fields [3]int64
	for i, rest := 0, value[min(2, len(value)):]; i < len(fields); i++ {
		v, n := binary.Varint(rest)
		fields[i], rest = v, rest[max(n, 0):]
	}
	return fields[0], fields[2]
}

// verdictOf returns the verdict of an emitted record. If the headers name none, the event is unique.
func verdictOf(headers []kgo.RecordHeader) string {
	for i := range headers {
		if headers[i].Key == "oncebus-verdict" {
			return string(headers[i].Value)
		}
	}
	return "unique"
}

// passed returns nil if every raw partition and every task has processed and committed a record that was made after
// t. Otherwise the error names what is late.
func (o *observer) passed(t time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	after := t.UnixMicro()
	for flow, sent := range o.flows {
		if sent <= after {
			return fmt.Errorf("no record made after %s was routed from %s", t.Format(time.TimeOnly), o.app.topic(flowPlace(flow)))
		}
	}
	for task := range o.tasks {
		if o.tasks[task].sent <= after {
			return fmt.Errorf("no record made after %s was judged in partition %d", t.Format(time.TimeOnly), task)
		}
	}
	return nil
}

// recovered waits until every raw partition and every task has processed a record that was made after t. If
// enough is not nil, recovered also returns when enough returns true. It returns the time since t.
func (o *observer) recovered(ctx context.Context, t time.Time, limit time.Duration, enough func() bool) (time.Duration, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, t.Add(limit), fmt.Errorf("%v are over", limit))
	defer cancel()
	err := kafkatest.Await(ctx, "events flow again", func(context.Context) error {
		err := o.passed(t)
		if err != nil && enough != nil && enough() {
			return nil
		}
		return err
	})
	return time.Since(t), err
}

// restartStalls drops the stalls that were measured so far, such as the stall of the first start.
func (o *observer) restartStalls() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.quiet, o.stall = time.Now(), stall{}
}

// drained returns nil if every routed record is judged.
func (o *observer) drained() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for task := range o.tasks {
		if n := len(o.tasks[task].waiting); n > 0 {
			return fmt.Errorf("%d records of partition %d are not judged, the first at offset %d", n, task, o.tasks[task].waiting[0].offset)
		}
	}
	return o.unrouted()
}

// sample reads the committed offsets of the dedup group once a second.
func (o *observer) sample(ctx context.Context) {
	for kafkatest.Pause(ctx, time.Second) == nil {
		asked, cancel := context.WithTimeout(ctx, 5*time.Second)
		_ = o.sampleOnce(asked) // the broker may be stopped: the next sample tries again
		cancel()
	}
}

// sampleOnce stores the group's offsets. It holds the lock during the request, so that it never stores, after a
// reset, a response from before the reset.
func (o *observer) sampleOnce(ctx context.Context) error {
	o.samplesMu.Lock()
	defer o.samplesMu.Unlock()
	offsets, err := o.app.h.admin.FetchOffsets(ctx, o.app.group("dedup"))
	if err != nil {
		return fmt.Errorf("fetch the offsets of %s: %w", o.app.group("dedup"), err)
	}
	for p := range int32(partitions) {
		if at, ok := offsets.Lookup(o.app.repartition(), p); ok && at.Err == nil && at.At >= 0 {
			o.samples = append(o.samples, oracle.Sample{Partition: p, Offset: at.At, Metadata: at.Metadata})
		}
	}
	return nil
}

// noteReset tells the oracle that the harness is about to set the group's offsets. An offset of -1 means that it is
// deleted.
func (o *observer) noteReset(offsets map[int32]int64) {
	o.samplesMu.Lock()
	defer o.samplesMu.Unlock()
	for p, at := range offsets {
		o.samples = append(o.samples, oracle.Sample{Partition: p, Offset: at, Reset: true})
	}
}
