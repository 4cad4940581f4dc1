//go:build unix

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"oncebus/processor/kafkatest"

	"github.com/twmb/franz-go/pkg/kgo"
)

// executor processes the events of the routes in claim mode: it consumes the output of these routes and produces
// outcomes. The outcomes of a batch and its offsets are in one transaction. The executor is faulty on purpose: it
// sends some outcomes late, twice, in reverse order or with the token of an old attempt. Some outcomes are failures,
// and some it never sends.
type executor struct {
	app  *app
	rng  *rand.Rand
	stop context.CancelFunc
	done chan struct{}

	later []laterOutcome // in no order
	old   [][]byte       // tokens of earlier attempts
	sent  int
}

// laterOutcome is an outcome together with the time at which it is to be sent.
type laterOutcome struct {
	due    time.Time
	record *kgo.Record
}

const (
	oldTokensMax = 2_000
	laterMax     = 6 * time.Second  // three times the lease
	tellMax      = 15 * time.Second // limits the end of a transaction while no broker responds
)

func startExecutor(a *app, rng *rand.Rand) *executor {
	ctx, cancel := context.WithCancel(a.h.ctx)
	x := &executor{app: a, rng: rng, stop: cancel, done: make(chan struct{})}
	go x.run(ctx)
	return x
}

// end stops the executor at once. Events that it has not processed yet get no outcome.
func (x *executor) end() {
	x.stop()
	<-x.done
}

// run executes until ctx is done. When a broker stops, run replaces the session that failed and repeats the
// work that was not committed.
func (x *executor) run(ctx context.Context) {
	defer close(x.done)
	for ctx.Err() == nil {
		if err := x.session(ctx); err != nil && ctx.Err() == nil {
			x.app.h.note("executor", map[string]any{"app": x.app.id, "error": err.Error()})
			_ = kafkatest.Pause(ctx, time.Second/2)
		}
	}
}

func (x *executor) session(ctx context.Context) error {
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(x.app.h.cluster.seeds()...), kgo.ConsumeTopics(x.app.topic(claimRun)),
		kgo.ConsumerGroup(x.app.group("executor")), kgo.TransactionalID(x.app.id+"-executor"), kgo.TransactionTimeout(transactionTimeout),
		kgo.SessionTimeout(sessionTimeout), kgo.HeartbeatInterval(sessionTimeout/6),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(readWait), kgo.FetchMinBytes(readMinBytes),
		kgo.MetadataMinAge(250*time.Millisecond), kgo.ClientID("executor"))
	if err != nil {
		return err
	}
	defer session.Close()
	for ctx.Err() == nil {
		polling, cancel := context.WithTimeout(ctx, readWait)
		fetches := session.PollFetches(polling)
		cancel()
		if err := fetches.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		batch, later := x.plan(fetches, time.Now())
		if fetches.NumRecords()+len(batch) == 0 {
			continue
		}
		switch committed, err := x.send(ctx, session, batch); {
		case err != nil:
			return err
		case committed:
			x.later = later
		case len(batch) > 0: // the transaction failed, and the session reads the same events again
			x.app.h.note("executor", map[string]any{"app": x.app.id, "aborted": len(batch)})
		}
	}
	return nil
}

// send produces the outcomes and commits the offsets of the consumed events in one transaction.
func (x *executor) send(ctx context.Context, session *kgo.GroupTransactSession, batch []*kgo.Record) (committed bool, err error) {
	if err := session.Begin(); err != nil {
		return false, err
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellMax)
	defer cancel()
	var failed kgo.FirstErrPromise
	for _, r := range batch {
		session.Produce(ending, r, failed.Promise())
	}
	return session.End(ending, kgo.TransactionEndTry(failed.Err() == nil))
}

// plan decides the outcomes of new events and which of them to send now. It adds the outcomes of earlier events
// that are due. If the transaction fails, plan is called again and makes new decisions.
func (x *executor) plan(fetches kgo.Fetches, now time.Time) (batch []*kgo.Record, later []laterOutcome) {
	for _, l := range x.later {
		if l.due.After(now) {
			later = append(later, l)
		} else {
			twin := *l.record // a copy, because the client modifies the records that it produces
			batch = append(batch, &twin)
		}
	}
	say := func(event *kgo.Record, kinds ...string) {
		for _, kind := range kinds {
			batch = append(batch, x.outcome(tokenOf(event), kind))
		}
	}
	fetches.EachRecord(func(event *kgo.Record) {
		if x.old = append(x.old, tokenOf(event)); len(x.old) > oldTokensMax {
			x.old = x.old[oldTokensMax/4:]
		}
		switch n := x.rng.IntN(20); {
		case n < 2: // this outcome is never sent
		case n < 4:
			say(event, "failed")
		case n == 4:
			say(event, "rejected", "rejected")
		case n < 7: // first submitted, and completed later
			say(event, "submitted")
			later = append(later, laterOutcome{x.after(now), x.outcome(tokenOf(event), "completed")})
		case n == 7: // submitted only, never completed
			say(event, "submitted")
		case n == 8:
			say(event, "completed", "submitted")
		case n < 12:
			later = append(later, laterOutcome{x.after(now), x.outcome(tokenOf(event), pickOf(x.rng, "completed", "completed", "failed"))})
		case n == 12:
			say(event, "completed", "completed")
		default:
			say(event, "completed")
		}
		if x.rng.IntN(10) == 0 {
			token := x.old[x.rng.IntN(len(x.old))]
			batch = append(batch, x.outcome(token, pickOf(x.rng, "completed", "completed", "failed", "submitted", "forget")))
		}
	})
	return batch, later
}

func (x *executor) after(now time.Time) time.Time {
	return now.Add(time.Duration(x.rng.Int64N(int64(laterMax))))
}

func pickOf(rng *rand.Rand, of ...string) string { return of[rng.IntN(len(of))] }

// outcome makes an outcome with its own record key. Some outcomes have no value; some have headers, which a reply
// from the stored result must repeat.
func (x *executor) outcome(token []byte, kind string) *kgo.Record {
	x.sent++
	r := &kgo.Record{
		Topic: x.app.topic(claimOutcomes), Key: fmt.Append(nil, "o-", x.sent), Value: fmt.Append(nil, "result ", x.rng.IntN(1_000_000)),
		Headers: []kgo.RecordHeader{{Key: "oncebus-claim-token", Value: token}, {Key: "oncebus-outcome", Value: []byte(kind)}},
	}
	switch x.rng.IntN(4) {
	case 0:
		r.Value = nil
	case 1:
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "content-type", Value: []byte("text/plain")}, kgo.RecordHeader{Key: "nothing"})
	}
	return r
}

func tokenOf(event *kgo.Record) []byte {
	for _, h := range event.Headers {
		if h.Key == "oncebus-claim-token" {
			return h.Value
		}
	}
	return nil
}

// outcomePlace is the position of an outcome in its topic.
type outcomePlace struct {
	partition int32
	offset    int64
}

// routedOutcome returns the position in the outcomes topic that the envelope of a routed outcome has.
func routedOutcome(r *kgo.Record) outcomePlace {
	const flagOutcome, version = 32, 2
	b, none := r.Key, outcomePlace{-1, r.Offset} // returned for a record without an envelope, which the oracle reports
	field := func() uint64 {
		v, n := binary.Uvarint(b)
		b = b[max(n, 0):]
		return v
	}
	// The value begins with version, flags, length of the route's name, name, topic, partition, timestamp (8 bytes),
	// offset.
	if field() != version || field()&flagOutcome == 0 {
		return none
	}
	n := field()
	b = b[min(n, uint64(len(b))):]
	field()
	partition := field()
	if len(b) < 8 {
		return none
	}
	b = b[8:]
	return outcomePlace{int32(partition), int64(field())}
}

// meet records that an outcome was read, either from the outcomes topic or from the repartition topic. The
// observer reads several topics, so it may read the record in the repartition topic before the record in the
// outcomes topic.
func (o *observer) meet(at outcomePlace, sent bool) {
	if before, met := o.unmet[at]; met && before != sent {
		delete(o.unmet, at)
		return
	}
	o.unmet[at] = sent
}

// unrouted returns an error if there are outcomes that were sent but not routed.
func (o *observer) unrouted() error {
	n := 0
	var one outcomePlace
	for at, sent := range o.unmet {
		if sent {
			n, one = n+1, at
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d outcomes are not routed, one of them at %s/%d/%d", n, o.app.topic(claimOutcomes), one.partition, one.offset)
}
