package processor

import (
	"io"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafka"
)

// TestCommitsThatTakeLongAreRarerWhileEventsWait: a commit takes as long as its partitions
// need, and events wait meanwhile.
func TestCommitsThatTakeLongAreRarerWhileEventsWait(t *testing.T) {
	t.Parallel()
	const base = 100 * time.Millisecond
	p := newCommitPace(base, 15*time.Second)
	for n, want := range []time.Duration{200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 900 * time.Millisecond, 900 * time.Millisecond} {
		if p.committed(300*time.Millisecond, true); p.interval != want {
			t.Errorf("after commit %d the interval is %v, want %v", n+1, p.interval, want)
		}
	}
	for range 10 {
		p.committed(time.Minute, true)
	}
	if p.interval != commitIntervalMax {
		t.Errorf("the longest interval is %v, want %v", p.interval, commitIntervalMax)
	}
	if p.committed(time.Minute, false); p.interval != base {
		t.Errorf("without events that wait the interval is %v, want %v", p.interval, base)
	}
}

// TestShortCommitsKeepTheCommitInterval: with few partitions nothing is delayed, whatever
// the load, and with many nothing while no event waits.
func TestShortCommitsKeepTheCommitInterval(t *testing.T) {
	t.Parallel()
	const base = 100 * time.Millisecond
	for name, c := range map[string]struct {
		took  time.Duration
		waits bool
	}{
		"few partitions under load":         {base / fillPerCommit, true},
		"many partitions without a backlog": {time.Second, false},
	} {
		p := newCommitPace(base, 15*time.Second)
		if p.committed(c.took, c.waits); p.interval != base {
			t.Errorf("%s: the interval is %v, want %v", name, p.interval, base)
		}
	}
}

// TestIntervalStaysWellBelowTheTransactionTimeout: the broker would abort the transaction.
func TestIntervalStaysWellBelowTheTransactionTimeout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ base, timeout, want time.Duration }{
		{100 * time.Millisecond, 15 * time.Second, 2 * time.Second},
		{100 * time.Millisecond, 5 * time.Second, time.Second},
		{4 * time.Second, 15 * time.Second, 4 * time.Second}, // the operator's choice
	} {
		if p := newCommitPace(c.base, c.timeout); p.longest != c.want {
			t.Errorf("interval %v, timeout %v: the longest is %v, want %v", c.base, c.timeout, p.longest, c.want)
		}
	}
}

// TestLongTransactionEndsWhenNoRecordComes: memory for records may be exhausted until the
// transaction ends, and a rebalance waits for its end.
func TestLongTransactionEndsWhenNoRecordComes(t *testing.T) {
	t.Parallel()
	const base = 100 * time.Millisecond
	p := newCommitPace(base, 15*time.Second)
	p.interval = 10 * base
	for _, c := range []struct {
		open    time.Duration
		flowing bool
		want    time.Duration
	}{
		{0, false, base},
		{base / 4, true, base * 3 / 4},
		{base, true, base},
		{base, false, 0},
		{base*9 + base/2, true, base / 2},
		{10 * base, true, 0},
		{11 * base, true, 0},
	} {
		if got := p.wait(c.open, c.flowing); got != c.want {
			t.Errorf("open for %v, records flow %v: waits %v, want %v", c.open, c.flowing, got, c.want)
		}
	}
}

// TestBacklog: records wait in partitions that were fetched in part, and in those that a
// full response had no room for.
func TestBacklog(t *testing.T) {
	t.Parallel()
	fetched := func(partition int32, next, end int64) *kgo.FetchTopicPartition {
		return &kgo.FetchTopicPartition{Topic: "in", FetchPartition: kgo.FetchPartition{
			Partition: partition, LastStableOffset: end, Records: []*kgo.Record{{Offset: next - 1}},
		}}
	}
	read := func(b *backlog, key kmsg.Key, bytes int, err error) {
		b.OnBrokerRead(kgo.BrokerMetadata{}, key.Int16(), bytes, 0, 0, err)
	}
	b := newBacklog()
	check := func(when string, records int, want bool) {
		t.Helper()
		if got := b.waits(records); got != want {
			t.Errorf("%s: more records than %d wait: %v", when, records, got)
		}
	}
	check("at the start", 0, false)
	b.note(fetched(0, 10, 10))
	b.note(fetched(1, 10, 40))
	b.note(fetched(1, 20, 40))
	check("20 in one partition", 20, false)
	check("20 in one partition", 19, true)
	read(b, kmsg.Fetch, kafka.FetchMaxBytes, nil)
	check("after a full response", 20, true)
	read(b, kmsg.Metadata, 10, nil)
	read(b, kmsg.Fetch, 10, io.EOF)
	check("after a failed one", 20, true)
	read(b, kmsg.Fetch, 100, nil)
	check("after a small one", 20, false)
	b.begin()
	check("in the next transaction", 0, false)
}
