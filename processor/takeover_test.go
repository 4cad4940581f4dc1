package processor_test

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
)

// stoppingDialer dials real connections that can be made to hang, at the first request of one API whose client id
// matches, and from then on for everything that is to be sent on any of them. To its broker, the process looks as it
// does after SIGSTOP.
type stoppingDialer struct {
	api   kmsg.Key
	match string

	mu      sync.Mutex
	armed   bool
	stopped chan struct{} // closed when the first request met
	resumed chan struct{}
}

func newStoppingDialer(api kmsg.Key, match string) *stoppingDialer {
	return &stoppingDialer{api: api, match: match, stopped: make(chan struct{}), resumed: make(chan struct{})}
}

func (d *stoppingDialer) arm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = true
}

func (d *stoppingDialer) resume() { close(d.resumed) }

func (d *stoppingDialer) hasStopped() bool {
	select {
	case <-d.stopped:
		return true
	default:
		return false
	}
}

func (d *stoppingDialer) dial(ctx context.Context, network, host string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	return &stoppingConn{conn, d}, nil
}

type stoppingConn struct {
	net.Conn
	dialer *stoppingDialer
}

// Write recognizes a request by its head, as spoilingConn does.
func (c *stoppingConn) Write(p []byte) (int, error) {
	d := c.dialer
	d.mu.Lock()
	if d.armed && len(p) > 12 && kmsg.Key(binary.BigEndian.Uint16(p[4:])) == d.api && contains(p, d.match) {
		d.armed = false
		close(d.stopped)
	}
	d.mu.Unlock()
	if d.hasStopped() {
		<-d.resumed
	}
	return c.Conn.Write(p)
}

// TestZombieIsFenced stops a process in the middle of a transaction for longer than its session, lets another process
// take over, and lets the first go on while its successor runs: the first process's transaction must not commit
// together with the successor's (hazards B2, B6; fault p4). If the broker already has the offsets of the first
// transaction, the successor waits for it to time out. The test does not run in parallel, because other tests would
// make the successor late.
func TestZombieIsFenced(t *testing.T) {
	for name, api := range map[string]kmsg.Key{
		"before its records": kmsg.Produce, "before its offsets": kmsg.TxnOffsetCommit, "before its commit": kmsg.EndTxn,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, benchRoutes)
			cfg := b.config("zombie")
			cfg.TransactionTimeout = 3 * time.Second
			dialer := newStoppingDialer(api, "app-zombie-dedup-0")
			zombie := b.ready(b.start(cfg, kgo.Dialer(dialer.dial)))
			before, _ := traffic(50)
			b.produce(before...)
			b.drain(zombie, "signals.raw")

			dialer.arm()
			records, sent := traffic(200)
			b.produce(records...)
			b.wait("the process to stop", dialer.hasStopped)
			// The outcomes are read first, because the transaction may time out while the successor starts.
			committed, aborted, unknown := zombie.outcomes(processor.StageDedup)
			successor := b.start(b.config("successor"))
			b.wait("the successor to emit the rest", func() bool { return len(b.read("signals.unique")) >= len(sent) })
			dialer.resume()
			b.wait("the zombie to learn how its transaction ended", func() bool {
				nowCommitted, nowAborted, nowUnknown := zombie.outcomes(processor.StageDedup)
				return nowCommitted+nowAborted+nowUnknown > committed+aborted+unknown
			})
			more, all := traffic(250)
			b.produce(more...)
			b.drain(successor, "signals.raw")
			b.ready(zombie)
			assertOnce(t, b.read("signals.unique"), all)
			b.assertWhole(successor)
		})
	}
}

// TestRestartAbortsWhatItsFormerLifeLeftOpen stops a process for good with a transaction open, and starts it again
// without its state. The transactional id is the same, so the broker aborts the open transaction at once, and no
// reader waits for a timeout, which is longer than this test waits (decision D10, hazards B11, C6).
func TestRestartAbortsWhatItsFormerLifeLeftOpen(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	cfg.TransactionTimeout = 10 * time.Minute
	dialer := newStoppingDialer(kmsg.TxnOffsetCommit, "app-one-dedup-0")
	former := b.ready(b.start(cfg, kgo.Dialer(dialer.dial)))
	id := app.TransactionalID("app", processor.StageDedup, 0, "one")
	if described, err := b.admin.DescribeTransactions(t.Context(), id); err != nil || described[id].Err != nil {
		t.Fatalf("the id that the next life registers: %v, %v", err, described[id].Err)
	}
	dialer.arm()
	records, sent := traffic(100)
	b.produce(records...)
	b.wait("the process to stop", dialer.hasStopped)
	former.cancel()

	cfg.StateDir = t.TempDir()
	i := b.startWith(cfg, func(p *processor.Processor) { p.SetStallAfter(20 * time.Second) })
	b.wait("readiness, or a stalled restore", func() bool {
		return i.Ready() == nil || strings.Contains(b.logs.String(), "restore stalled")
	})
	if i.Ready() != nil {
		t.Fatal("a restore waits for a transaction of the former life")
	}
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
	dialer.resume()
	_ = former.stop() // it may have stopped waiting for its connections
	again, _ := traffic(100)
	b.produce(again...)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
	b.promiseHeld(cfg)
}

// TestPartitionThatComesBackIsRestored moves partitions away and back while events go on: the state that their first
// owner still has of them is out of date (invariant 10, hazards A8, B6).
func TestPartitionThatComesBackIsRestored(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	first := b.ready(b.start(b.config("first")))
	records, _ := traffic(50)
	b.produce(records...)
	b.drain(first, "signals.raw")
	second := b.ready(b.start(b.config("second")))
	b.wait("partitions to move", func() bool {
		return len(second.State().Tasks) == 2 && second.Ready() == nil
	})
	records, sent := traffic(200)
	b.produce(records...)
	b.drain(second, "signals.raw")
	must(t, second.stop())
	b.wait("partitions to come back", func() bool {
		return len(first.Assigned(processor.StageDedup)) == 4 && first.Ready() == nil
	})
	records, _ = traffic(200)
	b.produce(records...)
	b.drain(first, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
	b.assertWhole(first)
}

// TestOffsetsMoveWithTheCheckpoint protects that the group's committed offset and the checkpoint's offset are equal
// in each partition (invariant 5; K6).
func TestOffsetsMoveWithTheCheckpoint(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one")))
	records, sent := traffic(200)
	b.produce(records...)
	b.wait("all of the output", func() bool { return len(b.read("signals.unique")) >= len(sent) })
	must(t, i.stop())
	next := map[int32]int64{}
	for partition, fold := range b.folds("app-repartition-changelog") {
		next[partition] = fold.Newest().Next
	}
	offsets, err := b.admin.FetchOffsets(t.Context(), app.GroupName("app", processor.StageDedup))
	must(t, err)
	for p := range int32(4) {
		committed, ok := offsets.Lookup("app-repartition", p)
		if !ok || committed.At != next[p] || next[p] == 0 {
			t.Errorf("partition %d: the group is at %d (%v), the checkpoint at %d", p, committed.At, ok, next[p])
		}
	}
}

// TestRowsExpireByStreamTime judges events from years ago. Their rows have expired by any wall clock, and have not
// expired by the event times (D12, hazard T5).
func TestRowsExpireByStreamTime(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	cfg.State.FlushRows = 16 // so that there are runs, which is what expires
	i := b.ready(b.start(cfg))
	records, sent := traffic(600)
	for n := 0; n < len(records); n += 100 {
		b.produce(records[n : n+100]...)
		b.drain(i, "signals.raw")
	}
	assertOnce(t, b.read("signals.unique"), sent)
	var expired uint64
	for _, task := range i.State().Tasks {
		expired += task.Store.EvictedRows
	}
	if expired != 0 {
		t.Errorf("%d rows were evicted, want none", expired)
	}
}
