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

// unackedBytesMax is how many bytes a worker produces that the brokers have not acknowledged.
// franz-go encodes the records of a batch into memory of its own, and a batch of an internal
// topic may have 64 MiB.
const unackedBytesMax = 8 << 20

// produced sends the records of a worker's transactions and collects the first
// error of the open one.
type produced struct {
	client   *kgo.Client
	topology *app.Topology
	// unacked is the bytes of records without a promise yet, unackedMax the most of them
	// without a flush. So no batch has more, unless it is a single record.
	unacked    atomic.Int64
	unackedMax int64

	// alone are the topics whose records are sent one at a time, and until when the
	// worker waits for each. Only the worker uses both.
	alone map[string]bool
	until time.Time
	// stuck says that a large record, or one before it, was not sent in time. Only the worker uses it.
	stuck bool
	// watching says that the records which the worker sends are watched.
	watching bool
	watches  atomic.Bool // watched is not empty

	mu        sync.Mutex
	firstErr  error
	refused   map[string]bool      // topics that refused a record for good
	single    *kgo.Record          // sent alone
	singleErr error                // for which its topic refused it for good
	watched   map[*kgo.Record]bool // whether the broker has it

	// last is the transaction before the open one, nil if that is closed. Its end is not known
	// everywhere, so the records of the open one are kept until then.
	last      *ending
	kept      []*kgo.Record
	keptBytes int64
	// written is where the records of the open transaction went. The promises add to it, one
	// at a time, and the worker reads it when all are kept.
	written written

	promise func(*kgo.Record, error) // one for all records: a closure for each is an allocation for each
}

// newProduced returns the records of a worker without any. The batches that it produces
// decompress to batchMax bytes at most.
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

// isPlaced reports whether the client has chosen the partition of a record that it could not
// produce. A record that fails before the client knows the partitions of its topic was sent
// nowhere, and its Partition is still the number that the emitter wrote for the partitioner:
// four bytes of a hash, which may be negative.
func (p *produced) isPlaced(r *kgo.Record) bool {
	leader, epoch, _ := p.client.PartitionLeader(r.Topic, r.Partition)
	return leader >= 0 || epoch >= 0 // a partition that the client knows, also while it has no leader
}

// explain returns what the worker has to do about the error of a record. A client never
// adopts the new id of a recreated topic, so that every transaction would abort.
func (p *produced) explain(topic string, err error) error {
	switch {
	case !errors.Is(err, kerr.UnknownTopicID):
		return kafka.Denied(err, "Write", kafka.ResourceTopic, topic)
	case p.topology.HasState(topic):
		return kafka.OperatorErrorf("topic %s was deleted and recreated while oncebus ran: offsets and state do not belong to it; stop all processes and run: oncebus accept --recreated %s", topic, topic)
	}
	return fmt.Errorf("%w: %w", kafka.ErrStaleTopic, err)
}

// send gives a record to the client, with a context without cancellation: the broker may
// still write a record that was cancelled in flight (A2). If it sends the record alone, it
// returns the error of a topic that refuses the record for good.
func (p *produced) send(r *kgo.Record) error {
	if p.alone[r.Topic] {
		return p.sendAlone(r)
	}
	p.sendBatched(r)
	return nil
}

// sendBatched gives a record to the client, which sends it with others.
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
			_ = p.giveKept(context.Background()) // err returns the error
		}
		return
	}
	p.give(r)
}

// give gives a record to the client. A precompressed one is alone in its batch: nothing else is in
// the client until the brokers have it. If that takes too long, the transaction fails, and nothing
// more is given.
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

// flushAlone waits until the brokers have all records.
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

// hangs returns why the last transaction cannot be closed by this client; nil if it may.
func (p *produced) hangs() error {
	if p.last == nil || !p.last.isOver() {
		return nil
	}
	return p.last.await(context.Background())
}

// giveKept gives the client the records that were kept, once the last transaction is closed. If it
// is not, the open one fails.
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

// forgetKept forgets the records that were kept.
func (p *produced) forgetKept() {
	clear(p.kept)
	p.kept, p.keptBytes = p.kept[:0], 0
}

// watch watches the records that send sends, until the end of the transaction.
func (p *produced) watch(send func()) {
	p.watching = true
	defer func() { p.watching = false }()
	send()
}

// acknowledge notes that a broker has a record.
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

// watchedPartitions returns those of the watched records, and of those that no broker has.
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

// producedBytes returns the bytes of a record that an encoding of it has at least.
func producedBytes(r *kgo.Record) int64 {
	size := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		size += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return int64(size)
}

// flush waits until the brokers have all records. end flushes again and returns the error.
func (p *produced) flush() {
	ctx, cancel := context.WithDeadline(context.Background(), p.until)
	defer cancel()
	if p.giveKept(ctx) == nil {
		_ = p.client.Flush(ctx)
	}
}

// flushWithin waits until the brokers have all records, or until ctx is done.
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

// reset drops the errors, and the records that were kept, after the end of the transaction.
func (p *produced) reset() {
	p.unacked.Add(-p.keptBytes) // of a transaction that was aborted
	p.forgetKept()
	p.stuck = false
	p.mu.Lock()
	p.firstErr, p.single, p.singleErr = nil, nil, nil
	clear(p.refused)
	clear(p.watched)
	p.watches.Store(false)
	p.mu.Unlock()
}

// A broker refuses a batch for one of its records, and the client reports the error for
// all records of the partition (G11). So after a refusal the transaction is aborted, and the
// next ones produce the records of that topic one at a time. The emitter stores each
// record that is refused alone. After one more abort these records become dead letters.
// If the process stops in between, the next one finds the same refusals.

// isolationRecordsMax is the most input records of a transaction that produces records one
// at a time. Each takes a round trip, so that 500 take a second or two.
const isolationRecordsMax = 500

// An isolation finds the records that a topic refuses for good.
type isolation struct {
	topics  map[string]bool // that refused a batch
	records int             // input records until the worker produces in batches again
	// found is the size of the last attempt, if it found refused records. The next one
	// produces in batches, because it respects these refusals. 0 if it found none.
	found int
}

// alone returns the topics whose records the next transaction produces one at a time.
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

// refused follows a transaction of n records with refusals by topics. found reports that
// it stored new refusals.
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

// committed follows a committed transaction of n records.
func (s *isolation) committed(n int) {
	s.records, s.found = max(0, s.records-n), 0
	if s.records == 0 {
		s.topics = nil
	}
}

// recordsMax is the most input records of the next transaction.
func (x *transactions) recordsMax() int {
	most := min(x.bound.records, x.isolation.limit())
	if x.order != nil && x.isUnannounced() && x.order.isActive() {
		most = min(most, unannouncedMax)
	}
	return most
}

// refused prepares the next attempt after a produce error, and returns the error with
// which to abort this one. An error that refuses no record for good is returned as it is.
// The errors for which this function has another text hide the broker's code: the worker
// then makes a new client, with backoff.
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
			// The client's batches may be too large for the topic, or smaller than
			// they could be. A new client reads the limits.
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

// respectedRefusals logs and counts the refused records of the committed transaction.
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

// logOmitted logs how many lines were omitted, of intervals that are over or, at the end of the
// worker's client, of all.
func (x *transactions) logOmitted(all bool) {
	x.refusedLine.LogOmitted(x.log, slog.LevelWarn, "topic refused records", all)
	x.abortedLine.LogOmitted(x.log, slog.LevelWarn, "transaction aborted", all)
}

// dropRefusalsIf drops all refusals after a rebalance.
func (x *transactions) dropRefusalsIf(rebalanced bool) {
	if rebalanced {
		x.emitter.DropRefusals()
		x.refusals = 0
	}
}

// sendAlone produces a record, waits until the broker responds, and returns its error if
// it refuses the record for good. After the transaction's timeout it does not wait.
func (p *produced) sendAlone(r *kgo.Record) error {
	p.mu.Lock()
	p.single, p.singleErr = r, nil
	p.mu.Unlock()
	p.sendBatched(r)
	ctx, cancel := context.WithDeadline(context.Background(), p.until)
	defer cancel()
	if p.giveKept(ctx) != nil || p.client.Flush(ctx) != nil {
		return nil // the end of the transaction finds it
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

// begin sets the topics whose records are produced one at a time in the next transaction.
func (p *produced) begin(alone map[string]bool, timeout time.Duration) {
	p.alone, p.until = alone, time.Now().Add(timeout)
}
