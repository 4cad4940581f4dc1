package front

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// Errors of Submit and SubmitAndWait. If Kafka has the event after one of them, a second
// one is a duplicate, with two exceptions: after ErrMissingKey, and after ErrUnacknowledged
// or ErrNoVerdict on a route that may forward events unchecked
// (rules.Route.MayForwardUnchecked). Then both may be emitted.
var (
	// ErrKafkaUnavailable says that Kafka did not acknowledge the event in time,
	// or that too many events of all paths wait. Kafka may still receive it.
	ErrKafkaUnavailable = errors.New("kafka did not acknowledge the event")
	// ErrUnacknowledged comes with ErrKafkaUnavailable for an event that was sent: Kafka
	// may have it. Without it Kafka never gets the event.
	ErrUnacknowledged = errors.New("kafka may have the event")
	// ErrMissingKey comes with ErrKafkaUnavailable for an event without a key: if
	// it is sent again, it may be emitted twice.
	ErrMissingKey = errors.New("an event without a key")
	// ErrHeld says that a hold is in force, so that the app accepts no event. Nothing was
	// sent.
	ErrHeld = errors.New("the app is held")
	// ErrNoVerdict says that Kafka has the event, and that no verdict arrived in
	// time.
	ErrNoVerdict = errors.New("no verdict in time")
	// ErrKept says that Kafka is unavailable, and that the event is on the disk of this process
	// until Kafka has it. If it is sent again, it is a duplicate.
	ErrKept = errors.New("kept until kafka is back")
	// ErrTooLarge says that the event exceeds max.message.bytes of its topic or its
	// output. Nothing was sent.
	ErrTooLarge = errors.New("too large")
	// ErrOutcome says that an outcome cannot be read, or is not of this route.
	// Nothing was sent.
	ErrOutcome = errors.New("outcome refused")
)

// A Submission is an event to submit. The caller must never change its parts, because
// the client may send an event after the call has returned.
type Submission struct {
	Path    string // of the request, for which the bounds of waiting events apply
	Topic   string // an input of a route
	Value   []byte // nil is null
	Headers []dedup.Header
	Time    time.Time // the event time, unless the route has a field for it
	// Source is the client's address, for a route whose sender it is; "" for none.
	Source string
	// WaitForBroker waits for an unreachable Kafka until the context is done;
	// without it the call returns ErrKafkaUnavailable at once.
	WaitForBroker bool `json:"-"`
	// Keep keeps the event on disk while Kafka is unavailable: the call returns ErrKept.
	Keep bool `json:"-"`
}

// Header returns the first header of that name. It ignores headers with the prefix
// oncebus-.
func (s *Submission) Header(name string) ([]byte, bool) {
	for i := range s.Headers {
		if s.Headers[i].Key == name && !wire.IsReserved(name) {
			return s.Headers[i].Value, true
		}
	}
	return nil, false
}

// Derive chooses the event's route and derives its dedup key. It returns
// ErrKafkaUnavailable until the routes file was compared with the app's manifest.
func (f *IngressClient) Derive(s *Submission) (rules.Derived, error) {
	if f.at.Load() == nil {
		return rules.Derived{}, fmt.Errorf("%w: %w", ErrKafkaUnavailable, f.Ready())
	}
	return f.derive(s), nil
}

func (f *IngressClient) derive(s *Submission) rules.Derived {
	deriver := <-f.derivers
	defer func() {
		deriver.Release()
		f.derivers <- deriver
	}()
	began := time.Now()
	derived := deriver.Derive(&rules.Input{Topic: s.Topic, Value: s.Value, Headers: s, Timestamp: s.Time.UnixMilli()})
	f.seconds.Observe(time.Since(began).Seconds())
	return derived
}

// Await waits until events are accepted.
func (f *IngressClient) Await(ctx context.Context) error {
	_, err := f.reach(ctx, true)
	return err
}

// Submit produces an event and returns once all in-sync replicas have it. d is the
// result of Derive. Its errors wrap one of those above.
func (f *IngressClient) Submit(ctx context.Context, s *Submission, d *rules.Derived) error {
	return f.publish(ctx, s, d, addresses{})
}

// Address returns the current return address of one of this client's requests.
func (f *IngressClient) Address(request uint64) dedup.Address {
	address := dedup.Address{Ingress: f.number, Request: request}
	if at := f.at.Load(); at != nil {
		address.Partition = at.partition
	}
	return address
}

// addresses are those that an event carries.
type addresses struct {
	replyTo  dedup.Address // of its request; zero for none
	replaces dedup.Address // of a request for its key whose client is gone; zero for none
}

// SubmitAndWait produces an event and returns the verdict on it. On a route with
// while_in_progress: wait a duplicate gets the outcome of the first event, or the
// verdict without it if ctx is done before. The next request for the key then takes its
// place among those that wait.
func (f *IngressClient) SubmitAndWait(ctx context.Context, s *Submission, d *rules.Derived) (wire.Answer, error) {
	return f.submitAndWait(ctx, s, d, wait{outcome: ctx, of: (*wire.Answer).Waits})
}

// SubmitAndAwaitOutcome is SubmitAndWait on a route with answer: outcome: the first request
// of a key waits for its outcome too. ctx bounds the wait for the verdict. outcome bounds that
// for the outcome; if it is done before, the answer is the verdict.
func (f *IngressClient) SubmitAndAwaitOutcome(ctx, outcome context.Context, s *Submission, d *rules.Derived) (wire.Answer, error) {
	return f.submitAndWait(ctx, s, d, wait{outcome: outcome, of: (*wire.Answer).AwaitsOutcome})
}

// wait says which answers are followed by the outcome for which the request waits, and for
// how long it does.
type wait struct {
	outcome context.Context //nolint:containedctx // of the request
	of      func(*wire.Answer) bool
}

func (f *IngressClient) submitAndWait(ctx context.Context, s *Submission, d *rules.Derived, w wait) (wire.Answer, error) {
	q := newWaiter(d)
	id := f.inFlight.begin(q)
	defer f.inFlight.end(id)
	to := addresses{replyTo: dedup.Address{Ingress: f.number, Request: id}}
	at := f.at.Load()
	if d.Finding != rules.Keyed || !d.Route.Claim.Wait || at == nil || !at.rt.TokensNameApp {
		return f.waitForAnswer(ctx, s, d, q, to, w)
	}
	to.replaces = f.gone.take(d.Digest)
	answer, err := f.waitForAnswer(ctx, s, d, q, to, w)
	sent := err == nil || errors.Is(err, ErrNoVerdict)
	if !sent && to.replaces.IsSet() { // perhaps not in Kafka, then it took no place
		f.gone.add(d.Digest, to.replaces)
	}
	if errors.Is(err, ErrNoVerdict) || errors.Is(err, ErrKafkaUnavailable) || answer.Waits() {
		f.gone.add(d.Digest, to.replyTo)
	}
	return answer, err
}

// waitForAnswer produces an event and waits for its answer.
func (f *IngressClient) waitForAnswer(ctx context.Context, s *Submission, d *rules.Derived, q *waiter, to addresses, w wait) (wire.Answer, error) {
	if err := f.publish(ctx, s, d, to); err != nil {
		return wire.Answer{}, err
	}
	answer, arrived := f.await(ctx, q.answers, wire.Answer{})
	if !arrived {
		return wire.Answer{}, ErrNoVerdict
	}
	for more := true; more && w.of(&answer); {
		if answer, more = f.await(w.outcome, q.answers, answer); more {
			answer.Awaited = true
		}
	}
	answer.Key = q.key // an outcome has the first event's key, which may be in an adjacent bucket
	return answer, nil
}

// await returns the next answer, or before if none arrives in time.
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

// publish produces an event, or keeps it if the route wants that and Kafka is unavailable.
func (f *IngressClient) publish(ctx context.Context, s *Submission, d *rules.Derived, to addresses) error {
	if s.Keep && f.kept.has(d) {
		return f.keep(s, d, fmt.Errorf("%w: an earlier event of the key is kept", ErrKafkaUnavailable))
	}
	err := f.produce(ctx, s, d, to)
	switch {
	case !s.Keep, !errors.Is(err, ErrKafkaUnavailable), errors.Is(ctx.Err(), context.Canceled): // the last has no response
		return err
	case d.Finding != rules.Keyed && errors.Is(err, ErrUnacknowledged): // Kafka may have it, and finds no duplicate of it
		return err
	}
	return f.keep(s, d, err)
}

func (f *IngressClient) produce(ctx context.Context, s *Submission, d *rules.Derived, to addresses) error {
	at, err := f.reach(ctx, s.WaitForBroker)
	if err != nil {
		return err
	}
	if hold := f.holds.InForce(); hold != nil {
		return fmt.Errorf("%w: %s", ErrHeld, hold.Reason)
	}
	if to.replyTo.IsSet() {
		to.replyTo.Partition = at.partition
	}
	rec := f.record(at, s, d, to)
	if err := fits(at, rec, s, d); err != nil {
		return err
	}
	err = f.send(ctx, at, s.Path, rec, s.WaitForBroker)
	if d.Finding == rules.KeyMissing && errors.Is(err, ErrKafkaUnavailable) {
		return fmt.Errorf("%w: %w", ErrMissingKey, err)
	}
	return err
}

// reach returns the state of the client, or ErrKafkaUnavailable if Kafka is
// unreachable. With waitForBroker it waits for Kafka until ctx is done, before
// anything is produced.
func (f *IngressClient) reach(ctx context.Context, waitForBroker bool) (*clientState, error) {
	for {
		why, changed := f.brokers.get()
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", ErrKafkaUnavailable, ctx.Err())
		case why == nil:
			return f.at.Load(), nil
		case !waitForBroker:
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

// record returns the record of an event. One with a key goes to its task, in the
// envelope that the router would write. One without a key goes to its raw topic, where
// the router applies the route's policy.
func (f *IngressClient) record(at *clientState, s *Submission, d *rules.Derived, to addresses) *kgo.Record {
	rec := &kgo.Record{Topic: s.Topic, Value: s.Value, Timestamp: s.Time, Headers: make([]kgo.RecordHeader, 0, len(s.Headers)+1)}
	enveloped := d.Finding == rules.Keyed && !d.Route.Prepartitioned
	switch {
	case enveloped:
		env := wire.Envelope{
			Route: []byte(d.Route.WireName()), Digest: d.Digest, Hashed: d.Hashed, Key: d.Key, EventTime: d.Time, Timestamp: s.Time.UnixMilli(),
			Details: wire.DetailsOf(d), ReplyTo: to.replyTo, FromIngress: true, Replaces: to.replaces, Tenant: []byte(d.Tenant),
		}
		if d.Route.Sender.Travels() && d.Route.Sender.Kind == rules.SenderHTTPSource {
			env.Sender = rules.AppendSender(nil, []byte(s.Source))
		}
		rec.Topic, rec.Partition = at.rt.Topology.Repartition, at.rt.Hasher.Partition(&d.Routing)
		rec.Timestamp = time.Time{} // the broker sets that topic's; the event's is in the envelope
		rec.Key = env.Append(make([]byte, 0, env.Size()))
	case d.Finding == rules.Keyed:
		rec.Key = []byte(wire.KeyText(&d.Key))
	default:
		rec.Partition = int32(f.spread.Add(1) & 0x7fffffff)
	}
	if !enveloped && to.replyTo.IsSet() {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: wire.HeaderReplyTo, Value: to.replyTo.AppendText(nil)})
	}
	rec.Headers = wire.AppendForeign(rec.Headers, s.Headers)
	return rec
}

// send produces a record of a path and waits for its acknowledgement until ctx is done.
//
// The produce does not use ctx and is never cancelled: after a cancellation a later
// acknowledged record can be missing (franz-go #1217). So a record may be delivered
// after send returned. If the client has sent it again, one of the two is a duplicate.
func (f *IngressClient) send(ctx context.Context, at *clientState, path string, rec *kgo.Record, waitForBroker bool) error {
	sender, sent, err := f.begin(at, path, rec)
	if err != nil {
		return err
	}
	for {
		why, changed := f.brokers.get()
		if why != nil && !waitForBroker {
			return fmt.Errorf("%w: %w: %w", ErrKafkaUnavailable, ErrUnacknowledged, why)
		}
		select {
		case err := <-sent:
			return f.sent(sender, rec, err)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w: %w", ErrKafkaUnavailable, ErrUnacknowledged, ctx.Err())
		case <-changed:
		}
	}
}

// begin hands a record of a path to the producer. Its result comes on sent.
func (f *IngressClient) begin(at *clientState, path string, rec *kgo.Record) (sender *kgo.Client, sent <-chan error, err error) {
	if sender = f.sender.Load(); sender == nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrKafkaUnavailable, cmp.Or(f.Ready(), errStopping))
	}
	waiting, err := f.buffer.add(at, path, rec)
	if err != nil {
		return nil, nil, err
	}
	result := make(chan error, 1)
	acknowledged := func(_ *kgo.Record, err error) {
		waiting.remove()
		result <- err
	}
	if large := f.large.Load(); kafka.IsPrecompressed(rec) {
		go func() { acknowledged(rec, large.send(rec, func() (*kgo.Client, error) { return f.newSender(at) })) }()
	} else {
		sender.TryProduce(context.Background(), rec, acknowledged)
	}
	return sender, result, nil
}

// sent returns the result of a record's delivery, and sends a failure to renew.
func (f *IngressClient) sent(sender *kgo.Client, rec *kgo.Record, err error) error {
	if err == nil {
		f.acknowledged.Store(time.Now().UnixNano())
		return nil
	}
	if !errors.Is(err, kgo.ErrMaxBuffered) && !errors.Is(err, kgo.ErrClientClosed) {
		select {
		case f.broken <- produceFailure{sender, err}:
		default: // renew has an earlier one to handle
		}
	}
	if errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) {
		// The batch exceeds a limit that was lowered since the client read it. renew
		// reads it again. Or the broker compresses it by itself, and less.
		if kafka.IsPrecompressed(rec) {
			return fmt.Errorf("%w: topic %s refuses it: %w", ErrTooLarge, rec.Topic, err)
		}
		return fmt.Errorf("%w: topic %s refuses a batch: %w", ErrKafkaUnavailable, rec.Topic, err)
	}
	if errors.Is(err, kgo.ErrMaxBuffered) { // it was never sent
		return fmt.Errorf("%w: produce to %s: %w", ErrKafkaUnavailable, rec.Topic, err)
	}
	return fmt.Errorf("%w: %w: produce to %s: %w", ErrKafkaUnavailable, ErrUnacknowledged, rec.Topic, kafka.Denied(err, "Write", kafka.ResourceTopic, rec.Topic))
}

// SubmitOutcome produces the outcome of an attempt to the route's outcomes topic, for
// an executor without a Kafka client. token is the claim token of the event. The error
// wraps ErrOutcome if the outcome is invalid.
func (f *IngressClient) SubmitOutcome(ctx context.Context, route *rules.Route, token []byte, kind dedup.OutcomeKind, value []byte, headers []dedup.Header) error {
	at, err := f.reach(ctx, false)
	if err != nil {
		return err
	}
	own := []kgo.RecordHeader{{Key: wire.HeaderClaimToken, Value: token}, {Key: wire.HeaderOutcome, Value: []byte(kind.String())}}
	return f.sendOutcome(ctx, at, route, value, wire.AppendForeign(own, headers))
}

// SubmitUnclaimed produces the outcome of an event without a claim. to is the header
// oncebus-reply-to of the event. Its errors are those of SubmitOutcome.
func (f *IngressClient) SubmitUnclaimed(ctx context.Context, route *rules.Route, to []byte, kind dedup.OutcomeKind, value []byte, headers []dedup.Header) error {
	at, err := f.reach(ctx, false)
	if err != nil {
		return err
	}
	own := []kgo.RecordHeader{{Key: wire.HeaderReplyTo, Value: to}, {Key: wire.HeaderOutcome, Value: []byte(kind.String())}}
	rec := &kgo.Record{Topic: route.Claim.Outcomes, Value: value, Timestamp: time.Now(), Headers: wire.AppendForeign(own, headers)}
	address, _, reason, _ := app.ReadUnclaimed(rec)
	if reason != "" {
		return fmt.Errorf("%w: %s", ErrOutcome, reason)
	}
	rec.Partition = int32(address.Request & math.MaxInt32) // any
	if err := fitsTopic(at, rec); err != nil {
		return err
	}
	return f.send(ctx, at, outcomesPath(route), rec, false)
}

// AskAndWait produces a start or renewal of an attempt to the route's outcomes topic and
// returns the answer. token is the claim token of the event, startID names the executor; a
// renewal may have none. If it is sent again, the answer is the same, unless the claim has
// changed since. Its errors are those of SubmitOutcome, or ErrNoVerdict.
func (f *IngressClient) AskAndWait(ctx context.Context, route *rules.Route, token []byte, kind dedup.OutcomeKind, startID []byte) (wire.Answer, error) {
	at, err := f.reach(ctx, false)
	if err != nil {
		return wire.Answer{}, err
	}
	q := &waiter{answers: make(chan wire.Answer, 2), token: string(token)}
	id := f.inFlight.begin(q)
	defer f.inFlight.end(id)
	address := dedup.Address{Partition: at.partition, Ingress: f.number, Request: id}
	headers := []kgo.RecordHeader{
		{Key: wire.HeaderClaimToken, Value: token}, {Key: wire.HeaderOutcome, Value: []byte(kind.String())},
		{Key: wire.HeaderStartID, Value: startID}, {Key: wire.HeaderReplyTo, Value: address.AppendText(nil)},
	}
	if err := f.sendOutcome(ctx, at, route, nil, headers); err != nil {
		return wire.Answer{}, err
	}
	answer, arrived := f.await(ctx, q.answers, wire.Answer{})
	if !arrived {
		return wire.Answer{}, ErrNoVerdict
	}
	return answer, nil
}

// sendOutcome produces an outcome to the route's outcomes topic. The error wraps ErrOutcome
// if the outcome is invalid.
func (f *IngressClient) sendOutcome(ctx context.Context, at *clientState, route *rules.Route, value []byte, headers []kgo.RecordHeader) error {
	if route.Mode != rules.ClaimMode {
		return fmt.Errorf("%w: route %s is not in claim mode", ErrOutcome, route.Name)
	}
	rec := &kgo.Record{Topic: route.Claim.Outcomes, Value: value, Timestamp: time.Now(), Headers: headers}
	found, read, reason := at.rt.ReadOutcome(rec)
	switch {
	case reason != "":
		return fmt.Errorf("%w: %s", ErrOutcome, reason)
	case found.Namespace != route.Namespace:
		return fmt.Errorf("%w: header %s: the claim is of route %s, not %s", ErrOutcome, wire.HeaderClaimToken, found.Name, route.Name)
	}
	rec.Partition = wire.PartitionByDigest(&read.Token.Digest)
	if err := fitsTopic(at, rec); err != nil {
		return err
	}
	return f.send(ctx, at, outcomesPath(route), rec, false)
}
