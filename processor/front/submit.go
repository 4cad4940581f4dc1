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

// Errors of Submit and SubmitAndWait. If a sender repeats an event after one of these errors, and Kafka already
// has the first event, the second event is a duplicate. There are two exceptions, after which both events may
// be emitted: ErrMissingKey, and ErrUnacknowledged or ErrNoVerdict on a route that may forward events unchecked
// (rules.Route.MayForwardUnchecked).
var (
	// ErrKafkaUnavailable says that Kafka did not acknowledge the event in time, or that the limit of waiting
	// events of all paths is reached. Kafka may still receive the event.
	ErrKafkaUnavailable = errors.New("kafka did not acknowledge the event")
	// ErrUnacknowledged comes with ErrKafkaUnavailable if the event was sent: Kafka may have it. If
	// ErrKafkaUnavailable comes without ErrUnacknowledged, Kafka never gets the event.
	ErrUnacknowledged = errors.New("kafka may have the event")
	// ErrMissingKey comes with ErrKafkaUnavailable for an event without a key: if the sender repeats the event,
	// it may be emitted twice.
	ErrMissingKey = errors.New("an event without a key")
	// ErrHeld says that a hold is in force, so that the app accepts no event. Nothing was sent to Kafka.
	ErrHeld = errors.New("the app is held")
	// ErrNoVerdict says that Kafka has the event, but no verdict arrived in time.
	ErrNoVerdict = errors.New("no verdict in time")
	// ErrKept says that Kafka is unavailable, and that the event stays on the disk of this process until Kafka
	// has it. If the sender repeats the event, it is a duplicate.
	ErrKept = errors.New("kept until kafka is back")
	// ErrTooLarge says that the event exceeds max.message.bytes of its topic or its output. Nothing was sent to
	// Kafka.
	ErrTooLarge = errors.New("too large")
	// ErrOutcome says that an outcome is invalid or belongs to another route. Nothing was sent to Kafka.
	ErrOutcome = errors.New("outcome refused")
)

// A Submission is an event to submit. The caller must never change its parts, because the client may still send
// the event after the call has returned.
type Submission struct {
	Path    string // path of the request; the bounds on waiting events apply to it
	Topic   string // an input of a route
	Value   []byte // nil means a null value
	Headers []dedup.Header
	Time    time.Time // the event time, unless the route takes it from a field
	// Source is the HTTP client's address, for a route that takes it as sender; "" for none.
	Source string
	// WaitForBroker makes the call wait for an unreachable Kafka until its context is done. Without it the call
	// returns ErrKafkaUnavailable at once.
	WaitForBroker bool `json:"-"`
	// Keep makes the client keep the event on disk while Kafka is unavailable; the call then returns ErrKept.
	Keep bool `json:"-"`
}

// Header returns the value of the first header with a name. It ignores headers with the prefix oncebus-.
func (s *Submission) Header(name string) ([]byte, bool) {
	for i := range s.Headers {
		if s.Headers[i].Key == name && !wire.IsReserved(name) {
			return s.Headers[i].Value, true
		}
	}
	return nil, false
}

// Derive chooses the event's route and derives its dedup key. It returns ErrKafkaUnavailable until the client
// has compared the routes file with the app's manifest.
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

// Submit produces an event and returns once all in-sync replicas have it. d is the result of Derive. Its errors
// wrap the errors above.
func (f *IngressClient) Submit(ctx context.Context, s *Submission, d *rules.Derived) error {
	return f.publish(ctx, s, d, addresses{})
}

// Address returns the present return address of one of this client's requests.
func (f *IngressClient) Address(request uint64) dedup.Address {
	address := dedup.Address{Ingress: f.number, Request: request}
	if at := f.at.Load(); at != nil {
		address.Partition = at.partition
	}
	return address
}

// addresses are the request addresses that an event carries.
type addresses struct {
	replyTo  dedup.Address // return address of the event's own request; zero for none
	replaces dedup.Address // address of an earlier request for the key whose HTTP client is gone; zero for none
}

// SubmitAndWait produces an event and returns the verdict on it. On a route with while_in_progress: wait, a
// duplicate gets the outcome of the first event, or the verdict without an outcome if ctx is done before. In
// the latter case the next request for the key takes over the place of this request among the waiting requests.
func (f *IngressClient) SubmitAndWait(ctx context.Context, s *Submission, d *rules.Derived) (wire.Answer, error) {
	return f.submitAndWait(ctx, s, d, wait{outcome: ctx, of: (*wire.Answer).Waits})
}

// SubmitAndAwaitOutcome does the same as SubmitAndWait, for a route with answer: outcome: the first request of
// a key also waits for its outcome. ctx bounds the wait for the verdict, and outcome the wait for the outcome.
// If outcome is done before the outcome arrives, the answer is the verdict.
func (f *IngressClient) SubmitAndAwaitOutcome(ctx, outcome context.Context, s *Submission, d *rules.Derived) (wire.Answer, error) {
	return f.submitAndWait(ctx, s, d, wait{outcome: outcome, of: (*wire.Answer).AwaitsOutcome})
}

// wait says after which answers the request goes on waiting for an outcome, and until when.
type wait struct {
	outcome context.Context //nolint:containedctx // of the request
	of      func(*wire.Answer) bool
}

// submitAndWait registers the request for its answers, produces the event and waits. On a route whose requests
// wait in the claim of their key, the request takes over the place of an earlier request whose HTTP client is
// gone. If its own client goes away later, the next request takes over its place.
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
	if !sent && to.replaces.IsSet() { // the event may not be in Kafka; then it has not taken over the place
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
	answer.Key = q.key // an outcome has the first event's key, which may belong to an adjacent bucket
	return answer, nil
}

// await returns the next answer; if no answer arrives in time, it returns before, the answer so far.
func (f *IngressClient) await(ctx context.Context, answers <-chan wire.Answer, before wire.Answer) (answer wire.Answer, more bool) {
	select {
	case answer := <-answers:
		return answer, true
	case <-ctx.Done():
	case <-f.done:
	}
	select {
	case answer := <-answers: // the answer arrived at the same moment
		return answer, true
	default:
		return before, false
	}
}

// publish produces an event. If Kafka is unavailable and the route has on_kafka_unavailable: keep, publish
// keeps the event on disk.
func (f *IngressClient) publish(ctx context.Context, s *Submission, d *rules.Derived, to addresses) error {
	if s.Keep && f.kept.has(d) {
		return f.keep(s, d, fmt.Errorf("%w: an earlier event of the key is kept", ErrKafkaUnavailable))
	}
	err := f.produce(ctx, s, d, to)
	switch {
	// after a cancellation nobody waits for the response
	case !s.Keep, !errors.Is(err, ErrKafkaUnavailable), errors.Is(ctx.Err(), context.Canceled):
		return err
	// Kafka may have the event. A kept copy would be emitted, too, because without a key it is no duplicate
	case d.Finding != rules.Keyed && errors.Is(err, ErrUnacknowledged):
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

// reach returns the state of the client, or ErrKafkaUnavailable if Kafka is unreachable. With waitForBroker it
// waits for Kafka until ctx is done; nothing has been produced by then.
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

// record returns the Kafka record of an event. An event with a key goes to its task, in the envelope that the
// router would write. An event without a key goes to its raw topic, where the router applies the route's
// policy.
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
		rec.Timestamp = time.Time{} // the broker sets this topic's timestamps; the event's own is in the envelope
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

// send produces a record of a path and waits for the acknowledgement until ctx is done.
//
// The produce does not use ctx and is never cancelled: after a cancellation, a record that was acknowledged
// later can be missing (franz-go #1217). A record may therefore be delivered after send has returned. If the
// sender has repeated the event by then, one of the two records is a duplicate.
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

// begin hands a record of a path to the producer. The result of the delivery arrives on the channel sent.
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

// sent returns the result of a record's delivery as an error of this package, and tells renew about a failure.
func (f *IngressClient) sent(sender *kgo.Client, rec *kgo.Record, err error) error {
	if err == nil {
		f.acknowledged.Store(time.Now().UnixNano())
		return nil
	}
	if !errors.Is(err, kgo.ErrMaxBuffered) && !errors.Is(err, kgo.ErrClientClosed) {
		select {
		case f.broken <- produceFailure{sender, err}:
		default: // renew still has to handle an earlier failure
		}
	}
	if errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) {
		// There are two possible reasons. An operator may have lowered a limit since the client read it; renew
		// then reads the limits again. Or the broker compresses the batch again, with less effect than the
		// client.
		if kafka.IsPrecompressed(rec) {
			return fmt.Errorf("%w: topic %s refuses it: %w", ErrTooLarge, rec.Topic, err)
		}
		return fmt.Errorf("%w: topic %s refuses a batch: %w", ErrKafkaUnavailable, rec.Topic, err)
	}
	if errors.Is(err, kgo.ErrMaxBuffered) { // the record was never sent
		return fmt.Errorf("%w: produce to %s: %w", ErrKafkaUnavailable, rec.Topic, err)
	}
	return fmt.Errorf("%w: %w: produce to %s: %w", ErrKafkaUnavailable, ErrUnacknowledged, rec.Topic, kafka.Denied(err, "Write", kafka.ResourceTopic, rec.Topic))
}

// SubmitOutcome produces the outcome of an attempt to the route's outcomes topic, for an executor that has no
// Kafka client. token is the claim token of the event. The error wraps ErrOutcome if the outcome is invalid.
func (f *IngressClient) SubmitOutcome(ctx context.Context, route *rules.Route, token []byte, kind dedup.OutcomeKind, value []byte, headers []dedup.Header) error {
	at, err := f.reach(ctx, false)
	if err != nil {
		return err
	}
	own := []kgo.RecordHeader{{Key: wire.HeaderClaimToken, Value: token}, {Key: wire.HeaderOutcome, Value: []byte(kind.String())}}
	return f.sendOutcome(ctx, at, route, value, wire.AppendForeign(own, headers))
}

// SubmitUnclaimed produces the outcome of an event without a claim. to is the event's header oncebus-reply-to.
// The errors are the errors of SubmitOutcome.
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
	rec.Partition = int32(address.Request & math.MaxInt32) // any partition will do
	if err := fitsTopic(at, rec); err != nil {
		return err
	}
	return f.send(ctx, at, outcomesPath(route), rec, false)
}

// AskAndWait produces a start or renewal of an attempt to the route's outcomes topic, and returns the answer.
// token is the claim token of the event. startID names the executor; a renewal may omit it. If the executor
// asks again, it gets the same answer, unless the claim has changed since. The errors are the errors of
// SubmitOutcome, or ErrNoVerdict.
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

// sendOutcome produces an outcome to the route's outcomes topic. The error wraps ErrOutcome if the outcome is
// invalid.
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
