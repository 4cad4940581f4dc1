package front

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// What a sender is told in place of an answer. After each of them it is safe
// to send the event again, but for ErrKeyless: if it is on the bus already, it
// is a copy then.
var (
	// ErrKafkaUnavailable says that the bus did not take the event in time, or that too
	// much waits for it already. The event may reach it all the same.
	ErrKafkaUnavailable = errors.New("the bus did not take it")
	// ErrMissingKey comes with ErrBusAway where the event has no key: if it is on
	// the bus all the same, nobody can tell that it comes again.
	ErrMissingKey = errors.New("an event without a key")
	// ErrNoVerdict says that the event is on the bus, and that there was no
	// verdict in time.
	ErrNoVerdict = errors.New("no verdict in time")
	// ErrTooLarge says that the event is larger than its topic takes. Nothing
	// was sent.
	ErrTooLarge = errors.New("too large")
	// ErrOutcome says that an outcome cannot be read, or is not of this route.
	// Nothing was sent.
	ErrOutcome = errors.New("outcome refused")
)

// A Submission is an event that comes in. Its parts are not changed, and must
// not be by the caller, not even afterwards: an event that the bus did not
// take in time may still be on its way.
type Submission struct {
	Topic   string // an input of a route
	Value   []byte // nil is null
	Headers []dedup.Header
	Time    time.Time // the event time, unless the route has a field for it
	// WaitForBroker waits for a bus that cannot be reached until the context is done;
	// without it the answer is ErrBusAway at once.
	WaitForBroker bool
}

// Header returns the first header of that name. Headers of oncebus's own prefix
// do not come in.
func (s *Submission) Header(name string) ([]byte, bool) {
	for i := range s.Headers {
		if s.Headers[i].Key == name && !wire.IsOurs(name) {
			return s.Headers[i].Value, true
		}
	}
	return nil, false
}

// Derive picks the event's route and derives its dedup key. It fails only as
// long as it is not known whether the routes file fits the app.
func (f *IngressClient) Derive(s *Submission) (rules.Derived, error) {
	if f.at.Load() == nil {
		return rules.Derived{}, fmt.Errorf("%w: %w", ErrKafkaUnavailable, f.Ready())
	}
	deriver := f.derivers.Get().(*rules.Deriver) //nolint:forcetypeassert // what New makes
	defer f.derivers.Put(deriver)
	return deriver.Derive(&rules.Input{Topic: s.Topic, Value: s.Value, Headers: s, Timestamp: s.Time.UnixMilli()}), nil
}

// Await waits until events are taken.
func (f *IngressClient) Await(ctx context.Context) error {
	_, err := f.reach(ctx, true)
	return err
}

// Submit puts an event on the bus and returns once all in-sync replicas have
// it. d is what Derive says of it.
func (f *IngressClient) Submit(ctx context.Context, s *Submission, d *rules.Derived) error {
	return f.publish(ctx, s, d, dedup.Address{})
}

// Address is where the verdict on one of this client's requests goes, as of now.
func (f *IngressClient) Address(request uint64) dedup.Address {
	address := dedup.Address{Ingress: f.number, Request: request}
	if at := f.at.Load(); at != nil {
		address.Partition = at.partition
	}
	return address
}

// SubmitAndWait puts an event on the bus and returns the verdict on it. Where a route in
// claim mode lets copies wait (while_in_progress: wait), a copy gets the outcome of the
// first; if there is none when ctx is done, the verdict without it.
func (f *IngressClient) SubmitAndWait(ctx context.Context, s *Submission, d *rules.Derived) (wire.Answer, error) {
	q := newWaiter(d)
	ask := f.asks.begin(q)
	defer f.asks.end(ask)
	if err := f.publish(ctx, s, d, dedup.Address{Ingress: f.number, Request: ask}); err != nil {
		return wire.Answer{}, err
	}
	answer, told := f.await(ctx, q.answers, wire.Answer{})
	if !told {
		return wire.Answer{}, ErrNoVerdict
	}
	// Only a copy waits on: the first is told that it runs.
	for more := true; more && answer.OutcomeFollows && answer.Verdict == dedup.InProgress; {
		answer, more = f.await(ctx, q.answers, answer)
	}
	answer.Key = q.key // an outcome has that of the original, which may be a neighbour
	return answer, nil
}

// await returns the next answer to a question, or the one there was if none
// comes in time.
func (f *IngressClient) await(ctx context.Context, answers <-chan wire.Answer, before wire.Answer) (answer wire.Answer, more bool) {
	select {
	case answer := <-answers:
		return answer, true
	case <-ctx.Done():
	case <-f.done:
	}
	select {
	case answer := <-answers: // both at once
		return answer, true
	default:
		return before, false
	}
}

func (f *IngressClient) publish(ctx context.Context, s *Submission, d *rules.Derived, ask dedup.Address) error {
	at, err := f.reach(ctx, s.WaitForBroker)
	if err != nil {
		return err
	}
	if ask.IsSet() {
		ask.Partition = at.partition
	}
	err = f.send(ctx, at, f.record(at, s, d, ask), s.WaitForBroker)
	if d.Finding == rules.KeyMissing && errors.Is(err, ErrKafkaUnavailable) {
		return fmt.Errorf("%w: %w", ErrMissingKey, err)
	}
	return err
}

// reach returns where events go, or an error if that cannot be reached. With
// hold it waits: an event that was not handed over yet is not underway when
// its sender has given up.
func (f *IngressClient) reach(ctx context.Context, hold bool) (*clientState, error) {
	for {
		why, changed := f.bus.look()
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", ErrKafkaUnavailable, ctx.Err())
		case why == nil:
			return f.at.Load(), nil
		case !hold:
			return nil, fmt.Errorf("%w: %w", ErrKafkaUnavailable, why)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrKafkaUnavailable, why)
		case <-f.done:
			return nil, fmt.Errorf("%w: %w", ErrKafkaUnavailable, why)
		}
	}
}

// record makes the bus's record of an event. A keyed one goes straight to its
// task, in the envelope the router would give it; one without a key to its raw
// topic, where the router does with it as the route says.
func (f *IngressClient) record(at *clientState, s *Submission, d *rules.Derived, ask dedup.Address) *kgo.Record {
	rec := &kgo.Record{Topic: s.Topic, Value: s.Value, Timestamp: s.Time, Headers: make([]kgo.RecordHeader, 0, len(s.Headers)+1)}
	own := kgo.RecordHeader{Key: wire.HeaderReplyTo}
	switch {
	case d.Finding == rules.Keyed && !d.Route.Prepartitioned:
		env := wire.Envelope{
			Route: []byte(d.Route.Name), Digest: d.Digest, Key: d.Key, EventTime: d.Time, Timestamp: s.Time.UnixMilli(),
			Details: wire.DetailsOf(d), ReplyTo: ask, FromIngress: true,
		}
		rec.Topic, rec.Partition = at.rt.Topology.Repartition, at.rt.Hasher.Partition(&d.Routing)
		rec.Timestamp = time.Time{} // that topic's is the broker's present; the event's is in the envelope
		own = kgo.RecordHeader{Key: wire.EnvelopeHeader, Value: env.Append(make([]byte, 0, env.Size()))}
	case d.Finding == rules.Keyed:
		rec.Key = []byte(wire.KeyText(&d.Key))
	default:
		rec.Partition = int32(f.spread.Add(1) & 0x7fffffff)
	}
	if own.Value == nil && ask.IsSet() {
		own.Value = ask.AppendText(nil)
	}
	if own.Value != nil {
		rec.Headers = append(rec.Headers, own)
	}
	rec.Headers = wire.AppendForeign(rec.Headers, s.Headers)
	return rec
}

// send produces a record and waits until it is on the bus.
//
// Its context is not ctx: franz-go takes a record whose context is cancelled
// for one it may forget, and whether the broker has it is then open; worse, one
// that follows can be acknowledged and not be there (franz-go #1217). So a
// record that was handed over is delivered, if late, and if it was sent again
// in the meantime, one of the two is a copy.
func (f *IngressClient) send(ctx context.Context, at *clientState, rec *kgo.Record, hold bool) error {
	if n, most := wire.RecordBytes(rec), int(at.rt.BatchBytes(rec.Topic)); n > most {
		return fmt.Errorf("%w: %d bytes with headers, topic %s takes %d", ErrTooLarge, n, rec.Topic, most)
	}
	sender := f.sender.Load()
	if sender == nil {
		return fmt.Errorf("%w: %w", ErrKafkaUnavailable, cmp.Or(f.Ready(), errStopping))
	}
	sent := make(chan error, 1)
	sender.TryProduce(context.Background(), rec, func(_ *kgo.Record, err error) { sent <- err })
	for {
		why, changed := f.bus.look()
		if why != nil && !hold {
			return fmt.Errorf("%w: not acknowledged: %w", ErrKafkaUnavailable, why)
		}
		select {
		case err := <-sent:
			return f.sent(sender, rec, err)
		case <-ctx.Done():
			return fmt.Errorf("%w: not acknowledged in time: %w", ErrKafkaUnavailable, ctx.Err())
		case <-changed:
		}
	}
}

// sent says what a record's delivery came to.
func (f *IngressClient) sent(sender *kgo.Client, rec *kgo.Record, err error) error {
	if err == nil {
		f.heard.Store(time.Now().UnixNano())
		return nil
	}
	if !errors.Is(err, kgo.ErrMaxBuffered) && !errors.Is(err, kgo.ErrClientClosed) {
		select {
		case f.broken <- breakage{sender, err}:
		default: // it is looked at already
		}
	}
	if errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) {
		// One in its batch was: a limit was lowered since it was read, and is
		// read again now (see renew).
		return fmt.Errorf("%w: topic %s refuses a batch: %w", ErrKafkaUnavailable, rec.Topic, err)
	}
	return fmt.Errorf("%w: produce to %s: %w", ErrKafkaUnavailable, rec.Topic, kafka.Denied(err, "Write", kafka.ResourceTopic, rec.Topic))
}

// SubmitOutcome puts on the bus what became of an attempt, for an executor
// that has no client of it: token is the claim token that came with the event.
// The task judges it like one from the route's outcomes topic, which it is.
func (f *IngressClient) SubmitOutcome(ctx context.Context, route *rules.Route, token []byte, kind dedup.OutcomeKind, value []byte, headers []dedup.Header) error {
	at, err := f.reach(ctx, false)
	if err != nil {
		return err
	}
	if route.Mode != rules.ClaimMode {
		return fmt.Errorf("%w: route %s is not in claim mode", ErrOutcome, route.Name)
	}
	rec := &kgo.Record{Topic: route.Claim.Outcomes, Value: value, Timestamp: time.Now(), Headers: []kgo.RecordHeader{
		{Key: wire.HeaderClaimToken, Value: token}, {Key: wire.HeaderOutcome, Value: []byte(kind.String())},
	}}
	rec.Headers = wire.AppendForeign(rec.Headers, headers)
	found, read, reason := at.rt.ReadOutcome(rec)
	switch {
	case reason != "":
		return fmt.Errorf("%w: %s", ErrOutcome, reason)
	case found.Namespace != route.Namespace:
		return fmt.Errorf("%w: header %s: the claim is of route %s, not %s", ErrOutcome, wire.HeaderClaimToken, found.Name, route.Name)
	case read.Token.Attempt == 0: // made by the operator's tool, which writes to the topic
		return fmt.Errorf("%w: header %s: names no attempt; it has to be the one that came with the event", ErrOutcome, wire.HeaderClaimToken)
	}
	rec.Partition = wire.PlaceByDigest(&read.Token.Digest)
	return f.send(ctx, at, rec, false)
}
