package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// unackedBytesMax bounds the bytes of records that a worker has produced and the brokers have not acknowledged.
// franz-go copies the records of a batch into memory of its own, and a batch of an internal topic may have 64
// MiB.
const unackedBytesMax = 8 << 20

// produced gives the records of a worker's transactions to the client, and collects the first produce error
// of the open transaction.
type produced struct {
	client   *kgo.Client
	topology *app.Topology
	// unacked is the bytes of the records whose promise has not been called yet. When it reaches unackedMax,
	// send flushes first. So no batch is larger than that, unless it has a single record.
	unacked    atomic.Int64
	unackedMax int64

	// alone are the topics whose records are sent one at a time. For each such record the worker waits until the
	// time until at most. Only the worker uses both.
	alone map[string]bool
	until time.Time
	// stuck reports that a large record, or a record before it, was not sent in time. Only the worker uses
	// it.
	stuck bool
	// watching reports that the records which the worker sends now are added to watched.
	watching bool
	watches  atomic.Bool // whether watched has any records

	mu        sync.Mutex
	firstErr  error
	refused   map[string]bool      // topics that refused a record of the open transaction for good
	single    *kgo.Record          // the record that is being sent alone
	singleErr error                // why its topic refuses single for good; nil if it does not
	watched   map[*kgo.Record]bool // the watched records, true once a broker has acknowledged the record

	// last is the transaction before the open one; nil once that transaction is closed in every partition. Until
	// then, kept holds the records of the open transaction, which are not given to the client yet.
	last      *ending
	kept      []*kgo.Record
	keptBytes int64
	// written are the partitions to which the records of the open transaction went. The promises, of which only
	// one runs at a time, add to it. The worker reads it when all promises have been called.
	written written

	promise func(*kgo.Record, error) // one for all records, because a closure for each would be an allocation for each
}

// newProduced returns the produced of a new client. Its batches decompress to batchMax bytes at most.
func newProduced(client *kgo.Client, topology *app.Topology, batchMax int) *produced {
	p := &produced{client: client, topology: topology, refused: map[string]bool{}, watched: map[*kgo.Record]bool{}, written: written{}, unackedMax: int64(min(unackedBytesMax, batchMax/2))}
	p.promise = func(r *kgo.Record, err error) {
		p.unacked.Add(-producedBytes(r))
		if err == nil {
			p.written.add(r.Topic, r.Partition)
			p.acknowledge(r)
			return
		}
		where := r.Topic
		if p.isPlaced(r) {
			p.written.add(r.Topic, r.Partition)
			where = fmt.Sprintf("%s/%d", r.Topic, r.Partition)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if kafka.RefusesRecord(err) {
			p.refused[r.Topic] = true
			if r == p.single {
				p.singleErr = err
			}
		}
		if p.firstErr == nil {
			p.firstErr = fmt.Errorf("produce to %s: %w", where, p.explain(r.Topic, err))
		}
	}
	return p
}

// isPlaced reports whether the client has chosen the partition of a record that it could not produce. If a
// record fails before the client knows the partitions of its topic, the record was sent to no partition. The
// record's Partition then still is the number that the emitter stored there for the partitioner: four bytes of a
// hash, which may be negative.
func (p *produced) isPlaced(r *kgo.Record) bool {
	leader, epoch, _ := p.client.PartitionLeader(r.Topic, r.Partition)
	return leader >= 0 || epoch >= 0 // the client knows the partition, even if it has no leader now
}

// explain returns the error of a record in a form that says what the worker or an operator has to do. For
// example, a client never adopts the new id of a recreated topic. Without a new client every transaction would
// abort for ever.
func (p *produced) explain(topic string, err error) error {
	switch {
	case !errors.Is(err, kerr.UnknownTopicID):
		return kafka.Denied(err, "Write", kafka.ResourceTopic, topic)
	case p.topology.HasState(topic):
		return kafka.OperatorErrorf("topic %s was deleted and recreated while oncebus ran: offsets and state do not belong to it; stop all processes and run: oncebus accept --recreated %s", topic, topic)
	}
	return fmt.Errorf("%w: %w", kafka.ErrStaleTopic, err)
}

// send gives a record to the client, with a context that is never cancelled: the broker may still write a
// record that was cancelled in flight (A2). If the topic's records are sent one at a time, send waits for
// the broker, and returns the error of a topic that refuses the record for good.
func (p *produced) send(r *kgo.Record) error {
	if p.alone[r.Topic] {
		return p.sendAlone(r)
	}
	p.sendBatched(r)
	return nil
}

// sendBatched gives a record to the client, which sends it in a batch with others.
func (p *produced) sendBatched(r *kgo.Record) {
	size := producedBytes(r)
	if unacked := p.unacked.Load(); unacked > 0 && unacked+size > p.unackedMax {
		p.flush()
	}
	p.unacked.Add(size)
	if p.watching {
		p.mu.Lock()
		p.watched[r] = false
		p.watches.Store(true)
		p.mu.Unlock()
	}
	if p.last != nil {
		p.kept, p.keptBytes = append(p.kept, r), p.keptBytes+size
		if p.last.isOver() {
			_ = p.giveKept(context.Background()) // sets the error that err returns
		}
		return
	}
	p.give(r)
}

// give gives a record to the client. A precompressed record must be alone in its batch: give flushes before
// and after it, so that the client holds nothing else meanwhile. If a flush takes too long, the transaction
// fails, and give drops all further records.
func (p *produced) give(r *kgo.Record) {
	alone := kafka.IsPrecompressed(r)
	if alone {
		p.flushAlone()
	}
	if p.stuck {
		p.unacked.Add(-producedBytes(r))
		return
	}
	p.client.Produce(context.Background(), r, p.promise)
	if alone {
		p.flushAlone()
	}
}

// flushAlone waits until the brokers have acknowledged all records, or sets stuck and the error of the
// transaction.
func (p *produced) flushAlone() {
	ctx, cancel := context.WithDeadline(context.Background(), p.until)
	defer cancel()
	if err := p.client.Flush(ctx); err != nil {
		p.stuck = true
		p.mu.Lock()
		defer p.mu.Unlock()
		p.firstErr = cmp.Or(p.firstErr, fmt.Errorf("the brokers did not take the records before or of a large one in time: %w", err))
	}
}

// hangs returns why this client cannot close the last transaction; nil if the transaction is closed or may still
// be.
func (p *produced) hangs() error {
	if p.last == nil || !p.last.isOver() {
		return nil
	}
	return p.last.await(context.Background())
}

// giveKept waits until the last transaction is closed, and then gives the client the kept records of the open
// one. If the last transaction cannot be closed, the open transaction fails.
func (p *produced) giveKept(ctx context.Context) error {
	if p.last == nil {
		return nil
	}
	if err := p.last.await(ctx); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.firstErr = cmp.Or(p.firstErr, err)
		return err
	}
	p.last = nil
	for _, r := range p.kept {
		p.give(r)
	}
	p.forgetKept()
	return nil
}

// forgetKept empties kept.
func (p *produced) forgetKept() {
	clear(p.kept)
	p.kept, p.keptBytes = p.kept[:0], 0
}

// watch calls send. It notes the records that send produces, and until the end of the transaction which of them
// the brokers acknowledge.
func (p *produced) watch(send func()) {
	p.watching = true
	defer func() { p.watching = false }()
	send()
}

// acknowledge notes that a broker has acknowledged a record, if the record is watched.
func (p *produced) acknowledge(r *kgo.Record) {
	if !p.watches.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, watched := p.watched[r]; watched {
		p.watched[r] = true
	}
}

// watchedPartitions returns the partitions of all watched records, and the partitions of the watched
// records that no broker has acknowledged.
func (p *produced) watchedPartitions() (all, unacked []int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r, acknowledged := range p.watched {
		all = append(all, r.Partition)
		if !acknowledged {
			unacked = append(unacked, r.Partition)
		}
	}
	return all, unacked
}

// producedBytes returns a lower bound of the size of the encoded record.
func producedBytes(r *kgo.Record) int64 {
	size := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		size += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return int64(size)
}

// flush waits until the brokers have acknowledged all records. It ignores an error of the client, because
// transactions.end flushes again and returns that error.
func (p *produced) flush() {
	ctx, cancel := context.WithDeadline(context.Background(), p.until)
	defer cancel()
	if p.giveKept(ctx) == nil {
		_ = p.client.Flush(ctx)
	}
}

// flushWithin waits until the brokers have acknowledged all records, or until ctx is done.
func (p *produced) flushWithin(ctx context.Context) {
	if p.last != nil {
		select {
		case <-p.last.done:
		case <-ctx.Done():
			return
		}
	}
	if p.giveKept(ctx) == nil {
		_ = p.client.Flush(ctx)
	}
}

// err returns the first produce error of the open transaction.
func (p *produced) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.firstErr
}

// reset forgets the errors and the kept records of a transaction that has ended.
func (p *produced) reset() {
	p.unacked.Add(-p.keptBytes) // records that no promise will subtract, because their transaction was aborted
	p.forgetKept()
	p.stuck = false
	p.mu.Lock()
	p.firstErr, p.single, p.singleErr = nil, nil, nil
	clear(p.refused)
	clear(p.watched)
	p.watches.Store(false)
	p.mu.Unlock()
}

// If a broker refuses one record, it refuses the record's whole batch, and the client reports the error for all
// records of the partition (G11). So the error does not show which record was refused. Therefore the worker
// aborts the transaction after a refusal. In the following transactions it produces the records of that topic
// one at a time, and the emitter remembers each record that is refused alone. After one more abort these records
// become dead letters. If the process stops in between, the next owner of the partition gets the same refusals.

// isolationRecordsMax is the most input records of a transaction that produces records one at a time. Each
// of them takes a round trip, so 500 records take a second or two.
const isolationRecordsMax = 500

// An isolation finds the single records that a topic refuses for good. Example: the topic refuses one of 10,000
// records. The transaction aborts. The following transactions, of 500 input records each, produce single
// records, until one of them meets the refused record. That transaction aborts, too, and the next one produces
// in batches again, with a dead letter for that record.
type isolation struct {
	topics  map[string]bool // topics that refused a batch
	records int             // input records until the worker produces in batches again
	// found is the number of input records of the last attempt, if that attempt found refused records; otherwise
	// 0. The next attempt has the same input records and produces in batches again, because it makes the refused
	// records dead letters.
	found int
}

// alone returns the topics whose records the next transaction produces one at a time; nil if it produces in
// batches.
func (s *isolation) alone() map[string]bool {
	if s.records == 0 || s.found > 0 {
		return nil
	}
	return s.topics
}

// limit is the most input records of the next transaction.
func (s *isolation) limit() int {
	switch {
	case s.records == 0:
		return transactionRecordsMax
	case s.found > 0:
		return s.found
	}
	return isolationRecordsMax
}

// refused notes that these topics refused records of a transaction of n input records. found reports that
// the emitter stored new refusals.
func (s *isolation) refused(topics []string, n int, found bool) {
	if s.topics == nil {
		s.topics = map[string]bool{}
	}
	for _, topic := range topics {
		s.topics[topic] = true
	}
	s.records, s.found = max(s.records, n, 1), 0
	if found {
		s.found = max(n, 1)
	}
}

// committed notes that a transaction of n input records was committed.
func (s *isolation) committed(n int) {
	s.records, s.found = max(0, s.records-n), 0
	if s.records == 0 {
		s.topics = nil
	}
}

// recordsMax returns the most input records that the next transaction may have.
func (x *transactions) recordsMax() int {
	most := min(x.bound.records, x.isolation.limit())
	if x.order != nil && x.isUnannounced() && x.order.isActive() {
		most = min(most, unannouncedMax)
	}
	return most
}

// refused prepares the next attempt after a produce error, and returns the error with which to abort this
// transaction. If no topic refused a record for good, it returns the produce error unchanged. The other errors
// that it returns have a text of its own and hide the broker's error code: so the worker makes a new client,
// with backoff.
func (x *transactions) refused(err error) error {
	topics := x.produced.refusedTopics()
	if len(topics) == 0 {
		return err
	}
	x.limitsChanged(err)
	internal := x.rt.InternalTopics()
	for _, topic := range topics {
		switch {
		case x.rt.Limit(topic) != x.limits[topic]:
			// The client's batches may be too large for the topic now, or smaller than they could be. A new
			// client reads the limits.
			return fmt.Errorf("settings of topic %s changed, and it refused a batch: %s", topic, err.Error())
		case internal[topic] && topic != x.rt.Topology.Repartition:
			return fmt.Errorf("internal topic %s refuses a record of oncebus: compare its settings with deployments/OPERATIONS.md#internal-topics; events wait until it accepts the record: %s", topic, err.Error())
		}
	}
	found := x.emitter.Refusals() > x.refusals
	x.refusals = x.emitter.Refusals()
	x.isolation.refused(topics, x.records, found)
	if r := x.emitter.RefusedInEveryForm(); r != nil {
		return fmt.Errorf("a dead letter without value and record key was %s: change the settings of that topic; events wait until it accepts dead letters", r.Reason)
	}
	return err
}

// respectedRefusals logs and counts the refused records whose dead letters the committed transaction
// contains.
func (x *transactions) respectedRefusals() {
	defer x.logOmitted(false)
	if x.refusals == 0 {
		return
	}
	first := map[string]string{}
	counts := map[string]int{}
	for id, r := range x.emitter.TakeRefusals() {
		x.metrics.refused.WithLabelValues(id.Topic).Inc()
		counts[id.Topic]++
		first[id.Topic] = fmt.Sprintf("%s: %s", x.rt.PositionText(id.About), r.Reason)
	}
	for _, topic := range slices.Sorted(maps.Keys(counts)) {
		if x.refusedLine.Take() {
			x.log.Warn("topic refused records, dead-lettered them", "topic", topic, "records", counts[topic], "example", first[topic])
		}
	}
	x.refusals = x.emitter.Refusals()
}

// logAborted logs why a transaction was aborted.
func (x *transactions) logAborted(reason error) {
	if x.abortedLine.Take() {
		x.log.Info("transaction aborted", "reason", reason)
	}
}

// logOmitted logs how many lines were omitted by sampling. It counts the intervals that are over or, if all is
// true, every interval; all is true at the end of the worker's client.
func (x *transactions) logOmitted(all bool) {
	x.refusedLine.LogOmitted(x.log, slog.LevelWarn, "topic refused records", all)
	x.abortedLine.LogOmitted(x.log, slog.LevelWarn, "transaction aborted", all)
}

// dropRefusalsIf drops all known refusals if there was a rebalance.
func (x *transactions) dropRefusalsIf(rebalanced bool) {
	if rebalanced {
		x.emitter.DropRefusals()
		x.refusals = 0
	}
}

// sendAlone produces a record, waits until the broker responds, and returns its error if it refuses the
// record for good. It waits no longer than the transaction's timeout.
func (p *produced) sendAlone(r *kgo.Record) error {
	p.mu.Lock()
	p.single, p.singleErr = r, nil
	p.mu.Unlock()
	p.sendBatched(r)
	ctx, cancel := context.WithDeadline(context.Background(), p.until)
	defer cancel()
	if p.giveKept(ctx) != nil || p.client.Flush(ctx) != nil {
		return nil // the end of the transaction returns the error
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.singleErr
}

// refusedTopics returns the topics that refused a record for good in the open transaction.
func (p *produced) refusedTopics() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.refused))
}

// begin begins a transaction: alone are the topics whose records are produced one at a time, and timeout is
// how long the worker waits for the brokers.
func (p *produced) begin(alone map[string]bool, timeout time.Duration) {
	p.alone, p.until = alone, time.Now().Add(timeout)
}
