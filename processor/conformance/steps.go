package conformance

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// routeName is the value of the header oncebus-route in every record that the kit produces.
const routeName = "conformance"

// play starts the executor and takes the steps of the scenario.
func (r *runner) play(ctx context.Context) error {
	if err := r.Control.Start(ctx); err != nil {
		return fmt.Errorf("start the executor: %w", err)
	}
	for i := range r.scenario.Steps {
		r.Step(i)
		if err := r.do(ctx, i, &r.scenario.Steps[i]); errors.Is(err, errMissed) {
			if err := r.checkSigns(ctx); err != nil {
				return err
			}
			break
		} else if err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, r.scenario.Steps[i].Kind, err)
		}
	}
	r.Step(len(r.scenario.Steps))
	if err := r.awaitOffsets(ctx); err != nil && !errors.Is(err, errMissed) {
		return err
	}
	if err := r.Control.Stop(ctx); err != nil {
		return fmt.Errorf("end the executor: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.watchErr
}

func (r *runner) do(ctx context.Context, index int, step *Step) error {
	d := Dispatch{Step: index, Event: step.Event, Attempt: 1}
	switch step.Kind {
	case StepDispatch:
		return r.dispatchAll(ctx, d, step.Count)
	case StepAttempts:
		all := r.dispatches(d, 1)
		for {
			if err := r.produceAndAwait(ctx, all); err != nil || all[0].Attempt == uint32(step.Count) {
				return err
			}
			all = r.next(all[0], step.Event)
		}
	case StepAbort:
		d.Aborted = true
		if err := r.produce(ctx, r.dispatches(d, 1)); err != nil {
			return err
		}
		d.Aborted = false
		return r.dispatchAll(ctx, d, 1)
	case StepUnclaimed:
		return r.produceAndAwaitOffsets(ctx, []*Dispatch{{Step: index, Event: step.Event}})
	case StepReply:
		r.serial++
		return r.produceAndAwait(ctx, []*Dispatch{{Step: index, Event: step.Event, ReplyTo: "kit-" + strconv.FormatInt(r.serial, 10)}})
	case StepRenew:
		d.Renewed = true
		return r.dispatchAll(ctx, d, 1)
	case StepSupersede:
		return r.supersede(ctx, r.dispatches(d, 1), step.Next)
	case StepRefuse:
		d.Refused = true
		return r.produceAndAwaitOffsets(ctx, r.dispatches(d, 1))
	case StepCrash:
		return r.crash(ctx, d, step.Count)
	case StepInWork:
		return r.crashInWork(ctx, d)
	case StepIdle:
		return r.idle(ctx, d, step.For)
	}
	return fmt.Errorf("%w: step %q", kafka.ErrIllegalState, step.Kind)
}

// dispatches returns count events like d, each with its own token.
func (r *runner) dispatches(d Dispatch, count int) []*Dispatch {
	all := make([]*Dispatch, count)
	for i := range all {
		r.serial++
		one := d
		token := dedup.Token{NamespaceID: 1, App: r.app, At: dedup.Position{Offset: r.serial}, Attempt: 1}
		binary.BigEndian.PutUint64(token.Digest[:], uint64(r.serial)*0x9e3779b97f4a7c15)
		one.Token, one.Key = string(token.Append(nil)), keyText(&token)
		all[i] = &one
	}
	return all
}

// keyText returns the text of a dedup key whose digest is that of the token.
func keyText(token *dedup.Token) string {
	digest := [32]byte{}
	copy(digest[:], token.Digest[:])
	return wire.KeyText(&digest)
}

// next returns the next attempt after d, with the payload of event.
func (r *runner) next(d *Dispatch, event *Event) []*Dispatch {
	token, err := dedup.ParseToken([]byte(d.Token))
	if err != nil {
		panic(err) // the kit has made the token
	}
	token.Attempt++
	return []*Dispatch{{Step: d.Step, Event: event, Attempt: token.Attempt, Token: string(token.Append(nil)), Key: d.Key}}
}

// produce dispatches events in one transaction. It records them in the timeline before it produces them,
// because the executor may answer before the commit has returned.
func (r *runner) produce(ctx context.Context, all []*Dispatch, more ...*kgo.Record) error {
	records := make([]*kgo.Record, 0, len(all)+len(more))
	r.mu.Lock()
	for _, d := range all {
		records = append(records, r.record(d))
		r.add(Entry{What: Dispatched, Dispatch: d})
		if d.name() != "" {
			r.attempts[d.name()] = &state{Dispatch: d}
		}
	}
	r.mu.Unlock()
	if err := r.producer.BeginTransaction(); err != nil {
		return err
	}
	if err := r.producer.ProduceSync(ctx, append(records, more...)...).FirstErr(); err != nil {
		return errors.Join(fmt.Errorf("produce to topic %s: %w", r.Topic, err), r.producer.EndTransaction(ctx, kgo.TryAbort))
	}
	written := kadm.TopicsSet{}
	for _, rec := range append(records, more...) {
		written.Add(rec.Topic, rec.Partition)
	}
	if err := kafka.AwaitStored(ctx, r.producer, written); err != nil {
		return err
	}
	r.mu.Lock()
	for i, d := range all {
		d.Partition, d.Offset = records[i].Partition, records[i].Offset
	}
	r.mu.Unlock()
	return r.producer.EndTransaction(ctx, kgo.TransactionEndTry(len(all) == 0 || !all[0].Aborted))
}

// record returns an event in the form in which oncebus dispatches it.
func (r *runner) record(d *Dispatch) *kgo.Record {
	key := "event-" + strconv.FormatInt(r.serial, 10)
	rec := &kgo.Record{Topic: r.Topic, Key: []byte(key), Value: d.Event.Value}
	for _, h := range d.Event.Headers {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	if d.Token == "" {
		rec.Headers = append(rec.Headers, header(wire.HeaderRoute, routeName, wire.HeaderVerdict, dedup.Bypassed.String(), wire.HeaderReplyTo, d.ReplyTo)...)
		return rec
	}
	token, _ := dedup.ParseToken([]byte(d.Token)) // the kit has made the token
	rec.Key = []byte("event-" + strconv.FormatInt(token.At.Offset, 10))
	rec.Headers = append(rec.Headers, header(wire.HeaderRoute, routeName, wire.HeaderVerdict, dedup.Unique.String(), wire.HeaderKey, d.Key,
		wire.HeaderClaimToken, d.Token, wire.HeaderAttempt, strconv.FormatUint(uint64(d.Attempt), 10))...)
	return rec
}

func (r *runner) dispatchAll(ctx context.Context, d Dispatch, count int) error {
	return r.produceAndAwait(ctx, r.dispatches(d, count))
}

func (r *runner) produceAndAwait(ctx context.Context, all []*Dispatch) error {
	if err := r.produce(ctx, all); err != nil {
		return err
	}
	return r.awaitOutcomes(ctx, all)
}

func (r *runner) awaitOutcomes(ctx context.Context, all []*Dispatch) error {
	return r.await(ctx, fmt.Sprintf("outcomes of step %d", all[0].Step+1), func() bool { return r.answered(all) == len(all) })
}

// answered returns how many of the events have an outcome. The caller holds the lock.
func (r *runner) answered(all []*Dispatch) (n int) {
	for _, d := range all {
		if r.attempts[d.name()].outcomes > 0 {
			n++
		}
	}
	return n
}

func (r *runner) produceAndAwaitOffsets(ctx context.Context, all []*Dispatch) error {
	if err := r.produce(ctx, all); err != nil {
		return err
	}
	return r.awaitOffsetsOf(ctx, all)
}

func (r *runner) awaitOffsetsOf(ctx context.Context, all []*Dispatch) error {
	return r.awaitFor(ctx, r.scenario.Wait, fmt.Sprintf("the offset of step %d", all[0].Step+1), func() (bool, error) {
		next, err := r.offsets(ctx)
		for _, d := range all {
			if next[d.Partition] <= d.Offset {
				return false, err
			}
		}
		return true, err
	})
}

// awaitOffsets waits until the consumer group has committed every event. If the kit cannot read the commits,
// awaitOffsets records the offsets itself.
func (r *runner) awaitOffsets(ctx context.Context) error {
	var all []*Dispatch
	r.mu.Lock()
	for i := range r.timeline.Entries {
		if d := r.timeline.Entries[i].Dispatch; d != nil && !d.Aborted {
			all = append(all, d)
		}
	}
	r.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	err := r.awaitOffsetsOf(ctx, all)
	if r.timeline.OffsetsRead {
		if err == nil {
			err = r.await(ctx, "the commits of offsets", func() bool {
				for _, d := range all {
					if r.committed[d.Partition] <= d.Offset {
						return false
					}
				}
				return true
			})
		}
		return err
	}
	next, fetched := r.offsets(ctx)
	for partition, offset := range next {
		r.note(Entry{What: Committed, Partition: partition, Offset: offset})
	}
	return errors.Join(err, fetched)
}

// checkSigns returns an error if the executor has ended although it never wrote a record, committed an offset
// or charged.
func (r *runner) checkSigns(ctx context.Context) error {
	ended := r.Control.Ended()
	if ended == nil || r.signed() {
		return nil
	}
	ends, err := r.endsOf(ctx, r.Outcomes)
	if err != nil || !maps.Equal(ends, r.ends) {
		return err
	}
	next, err := r.offsets(ctx)
	if err != nil || !maps.Equal(next, r.before) {
		return err
	}
	return fmt.Errorf("%w: the executor ended with %w before it did anything", ErrNotJudged, ended)
}

// signed reports whether the timeline contains anything that the executor has done.
func (r *runner) signed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.timeline.Entries, func(e Entry) bool {
		return slices.Contains([]What{Asked, Outcome, Committed, Booked, Killed}, e.What)
	})
}

// supersede dispatches an event and ends its attempt while the executor works on it: by another attempt with
// the payload of next or, if next is nil, by an erasure.
func (r *runner) supersede(ctx context.Context, first []*Dispatch, next *Event) error {
	if err := r.produce(ctx, first); err != nil {
		return err
	}
	token, reason := first[0].Token, "the attempt was erased"
	// If the executor does not ask before its work, the kit does not see when it begins. The kit then assumes
	// that, after a lease, the executor works on the event.
	limit := time.Now().Add(r.scenario.Lease)
	if err := r.await(ctx, "a sign", func() bool {
		return r.attempts[token].asked || time.Now().After(limit)
	}); err != nil {
		return err
	}
	var second []*Dispatch
	current := "1"
	if next != nil {
		second = r.next(first[0], next)
		current, reason = "2", "attempt 2 took over: the lease was over"
	}
	r.mu.Lock()
	r.attempts[token].superseded = reason
	r.mu.Unlock()
	if err := r.produce(ctx, second, &kgo.Record{Topic: r.Answers, Key: []byte(token), Headers: header(wire.HeaderRoute, routeName, wire.HeaderClaimToken, token,
		wire.HeaderAnswer, wire.AnswerSuperseded, wire.HeaderAttempt, current, wire.HeaderReason, reason)}); err != nil {
		return err
	}
	r.note(Entry{What: Superseded, Token: token})
	if second != nil {
		if err := r.awaitOutcomes(ctx, second); err != nil {
			return err
		}
	}
	return r.awaitOffsetsOf(ctx, first)
}

// crashSign is how long the step crash waits for a sign of work on the second half of its events.
const crashSign = time.Second

// crash kills the executor while it works on the second half of count events.
func (r *runner) crash(ctx context.Context, d Dispatch, count int) error {
	first, second := r.dispatches(d, (count+1)/2), r.dispatches(d, count/2)
	if err := r.produce(ctx, first); err != nil {
		return err
	}
	if err := r.await(ctx, "the first outcome before the crash", func() bool { return r.answered(first) > 0 }); err != nil {
		return err
	}
	if len(second) > 0 {
		if err := r.produce(ctx, second); err != nil {
			return err
		}
	}
	limit := time.Now().Add(crashSign)
	if err := r.await(ctx, "a sign", func() bool {
		for _, d := range second {
			if st := r.attempts[d.Token]; st.asked || st.outcomes > 0 {
				return true
			}
		}
		return time.Now().After(limit)
	}); err != nil {
		return err
	}
	if err := r.kill(ctx); err != nil {
		return err
	}
	if err := r.startAgain(ctx); err != nil {
		return err
	}
	return r.awaitOutcomes(ctx, append(first, second...))
}

func (r *runner) kill(ctx context.Context) error {
	if err := r.Control.Kill(ctx); err != nil {
		return fmt.Errorf("kill the executor: %w", err)
	}
	r.note(Entry{What: Killed})
	return nil
}

func (r *runner) startAgain(ctx context.Context) error {
	if err := r.Control.Start(ctx); err != nil {
		return fmt.Errorf("start the executor again: %w", err)
	}
	return nil
}

// crashInWork kills the executor twice: while it charges for an event that the gateway has not booked yet, and
// while it charges for another event that the gateway has already booked.
func (r *runner) crashInWork(ctx context.Context, d Dispatch) error {
	for _, booked := range []bool{false, true} {
		if err := r.crashInCharge(ctx, r.dispatches(d, 1), booked); err != nil {
			return err
		}
	}
	return nil
}

// crashInCharge kills the executor while the gateway holds its charge, and starts the executor again. booked tells
// whether the gateway books the charge before it holds it.
func (r *runner) crashInCharge(ctx context.Context, all []*Dispatch, booked bool) error {
	held := r.Gateway.hold(booked)
	defer r.Gateway.release()
	if err := r.produce(ctx, all); err != nil {
		return err
	}
	const missed = "the executor sent no charge to the gateway of EXECUTOR_GATEWAY"
	if err := r.await(ctx, missed, func() bool { return held.isReached() || r.answered(all) > 0 }); err != nil {
		return err
	}
	if !held.isReached() {
		r.note(Entry{What: Missed, Note: fmt.Sprintf("%s: it answered %v", missed, all[0])})
		return errMissed
	}
	if err := r.kill(ctx); err != nil {
		return err
	}
	r.Gateway.release() // after its next start, the executor must get answers to its charges
	if err := r.startAgain(ctx); err != nil {
		return err
	}
	return r.awaitOutcomes(ctx, all)
}

// idleLook is how often the kit looks at an idle executor.
const idleLook = time.Second

// opened is an open transaction that blocks a partition.
type opened struct {
	stable int64 // the last stable offset of the partition
	since  time.Time
}

// idle dispatches nothing for a time, and then an event.
func (r *runner) idle(ctx context.Context, d Dispatch, length time.Duration) error {
	end, lost := time.Now().Add(length), false
	open := map[int32]opened{}
	for time.Now().Before(end) {
		now, err := r.openTransactions(ctx)
		if err != nil {
			return err
		}
		maps.DeleteFunc(open, func(partition int32, _ opened) bool { _, still := now[partition]; return !still })
		for partition, stable := range now {
			if before, ok := open[partition]; !ok || before.stable != stable {
				open[partition] = opened{stable, time.Now()}
			}
		}
		if lost, err = r.groupLost(ctx, lost); err != nil {
			return err
		}
		if err := kafka.Pause(ctx, min(idleLook, time.Until(end))); err != nil {
			return err
		}
	}
	for partition, o := range open {
		if time.Since(o.since) > length/2 {
			r.note(Entry{What: IdleOpen, Partition: partition})
		}
	}
	return r.dispatchAll(ctx, d, 1)
}

// groupLost records once that the consumer group has no member, and returns whether it has recorded it.
func (r *runner) groupLost(ctx context.Context, before bool) (bool, error) {
	groups, err := r.admin.DescribeGroups(ctx, r.Group)
	if err != nil {
		return before, fmt.Errorf("describe group %s: %w", r.Group, err)
	}
	// A group of the newer consumer protocol does not show its state in this way.
	lost := groups[r.Group].State == "Empty"
	if lost && !before {
		r.note(Entry{What: GroupLost})
	}
	return lost || before, nil
}

// openTransactions returns the last stable offset of every partition of the outcomes topic that has an open
// transaction.
func (r *runner) openTransactions(ctx context.Context) (map[int32]int64, error) {
	stable, err := r.admin.ListCommittedOffsets(ctx, r.Outcomes)
	if err == nil {
		err = stable.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list the last stable offsets of topic %s: %w", r.Outcomes, err)
	}
	ends, err := r.endsOf(ctx, r.Outcomes)
	if err != nil {
		return nil, err
	}
	open := map[int32]int64{}
	for partition, end := range ends {
		if at := stable[r.Outcomes][partition].Offset; at < end {
			open[partition] = at
		}
	}
	return open, nil
}
