package processor_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
)

// outcomes returns the transaction counters of a stage.
func (i *instance) outcomes(stage string) (committed, aborted, unknown float64) {
	c, a, u := i.Transactions(stage)
	return testutil.ToFloat64(c), testutil.ToFloat64(a), testutil.ToFloat64(u)
}

// traffic makes n keys, each sent three times to changing partitions.
func traffic(n int) (records []*kgo.Record, sent map[string]*kgo.Record) {
	sent = map[string]*kgo.Record{}
	for k := range 3 * n {
		id := fmt.Sprint("id-", k%n)
		r := signal(id, int32((k/n+k)%4), testTime+int64(k%n))
		sent[id] = r
		records = append(records, r)
	}
	return records, sent
}

// assertWhole checks that no transaction is torn: the changelog has exactly one row for every record of the output
// (invariant 2).
func (b *bench) assertWhole(i *instance) {
	b.t.Helper()
	rows := map[string]int{}
	for _, r := range b.rows(app.ChangelogName("app", i.App().Topology.Repartition)) {
		rows[string(r.Key)]++
	}
	out := b.read("signals.unique")
	if len(rows) != len(out) {
		b.t.Errorf("%d keys in the changelog, %d records in the output", len(rows), len(out))
	}
	for key, n := range rows {
		if n != 1 {
			b.t.Errorf("key %x has %d rows", key, n)
		}
	}
}

// TestFailedProduceAbortsTheTransaction fails one produce request to each kind of topic, and expects that the worker
// aborts the whole transaction and does it again (invariant 2, hazard A4: the client's session alone would commit the
// rest).
func TestFailedProduceAbortsTheTransaction(t *testing.T) {
	t.Parallel()
	for _, topic := range []string{"signals.unique", "app-repartition-changelog", "app-repartition"} {
		t.Run(topic, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			i := b.ready(b.start(b.config("one")))
			b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.InvalidRecord, Count: 1})
			records, sent := traffic(200)
			b.produce(records...)
			b.drain(i, "signals.raw")
			_, abortedRoute, _ := i.outcomes(processor.StageRoute)
			_, abortedDedup, _ := i.outcomes(processor.StageDedup)
			if abortedRoute+abortedDedup == 0 {
				t.Error("no transaction was aborted")
			}
			assertOnce(t, b.read("signals.unique"), sent)
			b.assertWhole(i)
		})
	}
}

// TestUnfinishedFlushCostsTheClient keeps a partition from taking records for longer than a transaction may last. The
// client itself waits without a limit, and once it was seen to wait with nothing in flight (simulation, seed 77).
// After the transaction's time the worker replaces the client, and the next client does the work once.
func TestUnfinishedFlushCostsTheClient(t *testing.T) {
	t.Parallel()
	for topic, stage := range map[string]string{"signals.unique": processor.StageDedup, "app-repartition-changelog": processor.StageDedup, "app-repartition": processor.StageRoute} {
		t.Run(topic, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.config("one")
			cfg.CommitInterval, cfg.TransactionTimeout = 20*time.Millisecond, time.Second
			i := b.ready(b.start(cfg))
			fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.NotLeaderForPartition, Count: -1})
			records, sent := traffic(200)
			b.produce(records...)
			b.wait("the client is replaced", func() bool { return testutil.ToFloat64(i.Rebuilt().WithLabelValues(stage)) > 0 })
			fault.Remove()
			b.drain(i, "signals.raw")
			assertOnce(t, b.read("signals.unique"), sent)
			b.assertWhole(i)
		})
	}
}

// TestRefusedEndTxn lets the coordinator refuse to end transactions. Nothing was committed, so the worker does
// everything again, once (invariant 3).
func TestRefusedEndTxn(t *testing.T) {
	t.Parallel()
	for _, refused := range []*kerr.Error{kerr.UnknownServerError, kerr.InvalidProducerEpoch, kerr.TransactionAbortable, kerr.ProducerFenced, kerr.InvalidTxnState} {
		for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
			t.Run(refused.Message+"/"+stage, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, benchRoutes)
				i := b.ready(b.start(b.config("one")))
				fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, TxnID: app.TransactionalID("app", stage, 0, "one"), Err: refused})
				records, sent := traffic(100)
				b.produce(records...)
				b.drain(i, "signals.raw")
				if fault.Hits() == 0 {
					t.Fatal("the fault was never met")
				}
				if _, aborted, unknown := i.outcomes(stage); aborted+unknown == 0 {
					t.Error("the refusal was taken for a commit")
				}
				assertOnce(t, b.read("signals.unique"), sent)
				b.assertWhole(i)
			})
		}
	}
}

// TestRefusedOffsetCommit lets the group coordinator refuse a transaction's offsets. Some refusals end in an abort,
// and some in an error after which only a new client and a restore are safe (invariant 3).
func TestRefusedOffsetCommit(t *testing.T) {
	t.Parallel()
	for _, refused := range []*kerr.Error{kerr.IllegalGeneration, kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.CoordinatorLoadInProgress, kerr.FencedInstanceID, kerr.InvalidProducerEpoch} {
		for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
			t.Run(refused.Message+"/"+stage, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, benchRoutes)
				i := b.ready(b.start(b.config("one")))
				fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, TxnID: app.TransactionalID("app", stage, 0, "one"), Err: refused, Count: 2})
				records, sent := traffic(100)
				b.produce(records...)
				b.drain(i, "signals.raw")
				if fault.Hits() == 0 {
					t.Fatal("the fault was never met")
				}
				assertOnce(t, b.read("signals.unique"), sent)
				b.assertWhole(i)
			})
		}
	}
}

// TestUnstableOffsetsKeepTheRoutersClient protects that the router keeps its client after an abort. The broker needs
// a moment to write the end of the transaction; meanwhile the offsets are unstable, and say nothing about a commit.
func TestUnstableOffsetsKeepTheRoutersClient(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one")))
	refused := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, TxnID: app.TransactionalID("app", processor.StageRoute, 0, "one"), Err: kerr.RebalanceInProgress})
	unstable := b.cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.OffsetFetch}, Group: app.GroupName("app", processor.StageRoute), Err: kerr.UnstableOffsetCommit, Count: 3,
		When: func(kmsg.Request) bool { return refused.Hits() > 0 },
	})
	records, sent := traffic(100)
	b.produce(records...)
	b.drain(i, "signals.raw")
	if refused.Hits() != 1 || unstable.Hits() != 3 {
		t.Errorf("%d commits were refused, %d offsets were not stable, want 1 and 3", refused.Hits(), unstable.Hits())
	}
	assertOnce(t, b.read("signals.unique"), sent)
	if strings.Contains(b.logs.String(), "building a new client") {
		t.Error("the router replaced its client")
	}
}

// TestUnknownCommitOutcome makes the answer to EndTxn unreliable after the broker has committed: the answer is lost
// with its connection, or it says UNKNOWN_SERVER_ERROR, which franz-go reports as "not committed" although the
// transaction is committed (hazard A6). Only the changelog shows the commit (invariant 3).
func TestUnknownCommitOutcome(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(frame []byte) ([]byte, error){
		"answer lost":            func([]byte) ([]byte, error) { return nil, io.ErrUnexpectedEOF },
		"answered unknown error": answerEndTxn(kerr.UnknownServerError),
		"answered wrong epoch":   answerEndTxn(kerr.InvalidProducerEpoch),
	} {
		for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
			t.Run(name+"/"+stage, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, benchRoutes)
				dialer := &spoilingDialer{api: kmsg.EndTxn, match: "app-one-" + stage + "-0", spoil: spoil}
				i := b.ready(b.start(b.config("one"), kgo.Dialer(dialer.dial)))
				dialer.arm(3)
				records, sent := traffic(200)
				b.produce(records...)
				b.drain(i, "signals.raw")
				if dialer.left() != 0 {
					// The bench may drain in fewer transactions than the test wants to spoil.
					more, moreSent := traffic(201)
					b.produce(more...)
					b.drain(i, "signals.raw")
					sent = moreSent
				}
				// franz-go itself may recover from a lost answer by a retry.
				if _, aborted, unknown := i.outcomes(stage); aborted+unknown == 0 && name != "answer lost" {
					t.Error("no doubt was counted")
				}
				assertOnce(t, b.read("signals.unique"), sent)
				b.assertWhole(i)
			})
		}
	}
}

// answerEndTxn replaces the error code of an EndTxn response: length 4,
// correlation id 4, tags 1, throttle 4, error code 2.
func answerEndTxn(err *kerr.Error) func([]byte) ([]byte, error) {
	return func(frame []byte) ([]byte, error) {
		binary.BigEndian.PutUint16(frame[13:], uint16(err.Code))
		return frame, nil
	}
}

// spoilingDialer dials real connections and spoils the answers to requests of
// one API that name match, after the broker has done what they ask.
type spoilingDialer struct {
	api   kmsg.Key
	match string
	spoil func(frame []byte) ([]byte, error)

	mu    sync.Mutex
	armed int
}

func (d *spoilingDialer) arm(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = n
}

func (d *spoilingDialer) left() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.armed
}

func (d *spoilingDialer) dial(ctx context.Context, network, host string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	return &spoilingConn{Conn: conn, dialer: d}, nil
}

type spoilingConn struct {
	net.Conn
	dialer *spoilingDialer

	mu      sync.Mutex
	spoiled map[uint32]bool // correlation ids
	rest    []byte          // of a frame that was read whole
}

// Write remembers the requests whose answers will be spoiled. franz-go writes one whole frame at a time: length 4,
// api key 2, version 2, correlation id 4.
func (c *spoilingConn) Write(p []byte) (int, error) {
	if len(p) > 12 && kmsg.Key(binary.BigEndian.Uint16(p[4:])) == c.dialer.api && contains(p, c.dialer.match) {
		c.dialer.mu.Lock()
		if c.dialer.armed > 0 {
			c.dialer.armed--
			c.mu.Lock()
			if c.spoiled == nil {
				c.spoiled = map[uint32]bool{}
			}
			c.spoiled[binary.BigEndian.Uint32(p[8:])] = true
			c.mu.Unlock()
		}
		c.dialer.mu.Unlock()
	}
	return c.Conn.Write(p)
}

func contains(p []byte, s string) bool {
	for i := 0; i+len(s) <= len(p); i++ {
		if string(p[i:i+len(s)]) == s {
			return true
		}
	}
	return false
}

func (c *spoilingConn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		var head [8]byte
		if _, err := io.ReadFull(c.Conn, head[:]); err != nil {
			return 0, err
		}
		frame := make([]byte, 4+binary.BigEndian.Uint32(head[:]))
		copy(frame, head[:])
		if _, err := io.ReadFull(c.Conn, frame[8:]); err != nil {
			return 0, err
		}
		c.mu.Lock()
		spoil := c.spoiled[binary.BigEndian.Uint32(head[4:])]
		c.mu.Unlock()
		if spoil {
			var err error
			if frame, err = c.dialer.spoil(frame); err != nil {
				_ = c.Conn.Close()
				return 0, err
			}
		}
		c.rest = frame
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}
