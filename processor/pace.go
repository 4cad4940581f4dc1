package processor

import (
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

const (
	// fillPerCommit is how many times as long as its commit a transaction collects records
	// while events wait.
	fillPerCommit = 3
	// commitIntervalMax bounds the interval that a commitPace chooses.
	commitIntervalMax = 2 * time.Second
	// timeoutPerInterval is how many such intervals a transaction timeout has at least.
	timeoutPerInterval = 5
)

// A commitPace chooses how long a worker's next transaction collects records: the commit
// interval, and longer while events wait for commits. A commit costs the brokers about a
// millisecond of CPU time for each partition that the transaction wrote to, whatever the
// number of its records. With hundreds of partitions the worker would mostly commit. Events
// that wait get their verdicts sooner with fewer commits.
type commitPace struct {
	base, longest time.Duration // the commit interval, and the longest one chosen
	interval      time.Duration // of the next transaction
}

func newCommitPace(commitInterval, transactionTimeout time.Duration) commitPace {
	return commitPace{commitInterval, max(commitInterval, min(commitIntervalMax, transactionTimeout/timeoutPerInterval)), commitInterval}
}

// committed changes the interval after a commit that took a time. waits reports that more
// records waited before it than the next transaction takes: fewer are no reason to delay
// them.
func (p *commitPace) committed(took time.Duration, waits bool) {
	if !waits {
		p.reset()
		return
	}
	p.interval = min(max(fillPerCommit*took, p.base), 2*p.interval, p.longest)
}

// reset returns to the commit interval.
func (p *commitPace) reset() { p.interval = p.base }

// wait returns how long the next poll of a transaction may wait for records; 0 ends the
// transaction. open is how long it is open. flowing reports that the last poll had records,
// and that no rebalance waits: a longer transaction ends as soon as it waits for records.
func (p *commitPace) wait(open time.Duration, flowing bool) time.Duration {
	if open < p.base {
		return p.base - open
	}
	if !flowing {
		return 0
	}
	return max(0, min(p.base, p.interval-open))
}

// A backlog is what is known about the records after those of a transaction.
type backlog struct {
	left map[app.TaskID]int64 // readable records, by partition of the transaction
	full atomic.Bool          // the last fetch response of the client had as much as fits
}

func newBacklog() *backlog { return &backlog{left: map[app.TaskID]int64{}} }

// OnBrokerRead notes whether a fetch response is full. Partitions wait for the next ones
// then, and nothing is known of their records. A response has whole batches, so one of half
// the size counts.
func (b *backlog) OnBrokerRead(_ kgo.BrokerMetadata, key int16, bytes int, _, _ time.Duration, err error) {
	if err == nil && kmsg.Key(key) == kmsg.Fetch {
		b.full.Store(bytes >= kafka.FetchMaxBytes/2)
	}
}

// begin begins a transaction.
func (b *backlog) begin() { clear(b.left) }

// note stores what follows the records of a poll in their partition.
func (b *backlog) note(p *kgo.FetchTopicPartition) {
	last := p.Records[len(p.Records)-1]
	b.left[app.TaskID{Topic: p.Topic, Partition: p.Partition}] = max(0, p.LastStableOffset-last.Offset-1)
}

// waits reports whether more records wait than the next transaction takes, if that takes
// as many as this one.
func (b *backlog) waits(records int) bool {
	var left int64
	for _, n := range b.left {
		left += n
	}
	return left > int64(records) || b.full.Load()
}
