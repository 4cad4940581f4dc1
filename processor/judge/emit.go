package judge

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
	"oncebus/state/failpoint"
)

// ownHeadersMax is the highest number of oncebus headers on one emitted record; ownHeadersPlain is the
// highest number for a record without a reason in plain mode.
const ownHeadersMax, ownHeadersPlain = 14, 3

// original is an input record as its producer wrote it, also if the judge reads it from the repartition
// topic.
type original struct {
	rec       *kgo.Record
	recordKey []byte // the producer's key, not the key of the envelope; nil for none
	headers   []kgo.RecordHeader
	timestamp int64 // ms
	from      dedup.Position
}

// originalOf returns the original for a record that was read from its input topic at position from.
func originalOf(rec *kgo.Record, from dedup.Position) original {
	return original{rec: rec, recordKey: rec.Key, headers: rec.Headers, timestamp: rec.Timestamp.UnixMilli(), from: from}
}

// Emitter builds and sends the records of one worker's open transaction, as the policies of the routes
// say. The next transaction reuses its memory.
type Emitter struct {
	rt       *app.App
	send     func(*kgo.Record) error
	refusals map[RefusalID]*Refusal // records that brokers rejected in the transactions since the last commit

	records arena[kgo.Record]
	headers arena[kgo.RecordHeader]
	bytes   arena[byte]
	Delays  Delays
	Counts  []uint64 // [route index * countersMax + counterIndex], of the open transaction
	// Awaited reports that an HTTP request waits for the end of the open transaction.
	Awaited bool
	Trace   bool     // whether to keep the sampled events in Traced
	Traced  []Traced // the sampled events of the open transaction
	current current
	limits  knownLimits
}

// knownLimits caches the size limits of the topic of the last record: most records go to the same topic
// as the record before.
type knownLimits struct {
	topic  string
	of     *map[string]app.TopicLimits // the snapshot of all limits that these come from
	limits app.TopicLimits
}

// limitsOf returns the limits of a topic. The result is valid until the next call.
func (e *Emitter) limitsOf(topic string) *app.TopicLimits {
	if of := e.rt.Limits.Load(); of != e.limits.of || topic != e.limits.topic {
		e.limits = knownLimits{topic: topic, of: of, limits: e.rt.Limit(topic)}
	}
	return &e.limits.limits
}

// current has what is decoded of one record while it is processed. It is part of the emitter because
// pointers to it are passed on: as a local variable it would be allocated for each record.
type current struct {
	envelope  wire.Envelope
	candidate candidate
	claim     dedup.ClaimDecision
}

// NewEmitter returns an emitter. send gives a record to the client, which may read the record until the
// transaction has ended. send returns an error if the topic is already known to reject this record for
// good; the caller must then abort the transaction.
func NewEmitter(rt *app.App, send func(*kgo.Record) error) *Emitter {
	return &Emitter{rt: rt, send: send, refusals: map[RefusalID]*Refusal{}, Counts: make([]uint64, len(rt.Routes)*countersMax), Delays: newDelays(len(rt.Routes))}
}

// Reset drops the transaction's records. The client must have called the promise of every record
// before: franz-go reads a record until it calls the promise.
func (e *Emitter) Reset() {
	e.records.reset()
	e.headers.reset()
	e.bytes.reset()
	clear(e.Counts)
	e.Delays.reset()
	clear(e.Traced)
	e.Traced = e.Traced[:0]
	e.current, e.Awaited = current{}, false
	for _, r := range e.refusals {
		r.used = false
	}
}

// Release frees the memory that Reset keeps for the next transaction. No transaction may be open.
func (e *Emitter) Release() {
	e.Traced = nil
	e.records, e.headers, e.bytes = arena[kgo.Record]{}, arena[kgo.RecordHeader]{}, arena[byte]{}
}

func (e *Emitter) count(route *app.Route, what counterIndex) {
	e.Counts[route.Index*countersMax+int(what)]++
}

// countEnded counts the keys of a route's namespace whose window or retention ended because stream time
// moved.
func (e *Emitter) countEnded(route *app.Route, ended dedup.Ended) {
	e.Counts[route.Index*countersMax+int(endedWindows)] += ended.Windows
	e.Counts[route.Index*countersMax+int(endedRetentions)] += ended.Retentions
}

func (e *Emitter) countOutcome(route *app.Route, kind dedup.OutcomeKind, became outcomeResult) {
	e.count(route, firstOutcome+counterIndex(kind)*counterIndex(outcomeResults)+counterIndex(became))
}

// NewRecord returns an empty record, valid until the transaction has ended.
func (e *Emitter) NewRecord() *kgo.Record { return &e.records.take(1)[0] }

// produce sends a record that results from the input record at position about. If the topic rejects it,
// the next attempt of the transaction finds the refusal under that position.
func (e *Emitter) produce(r *kgo.Record, about dedup.Position) {
	if err := e.send(r); err != nil {
		e.refuse(RefusalID{about, r.Topic}, err)
	}
	failpoint.Hit(failpoint.AfterOutput)
}

// event is an input record with its verdict and everything that the headers of its output records need.
type event struct {
	original
	route   *app.Route
	verdict dedup.Verdict
	// counted is the verdict that conclude counted. It differs from verdict if the topic for duplicates
	// then rejects the duplicate: its dead letter has another verdict, but the event still counts as a
	// duplicate.
	counted dedup.Verdict
	key     *[32]byte // dedup key; read it with dedupKey only
	// envelope is the envelope of a routed event, nil for any other event. The dedup key of a routed
	// event may have to be computed first, which dedupKey does.
	envelope   *wire.Envelope
	first      *dedup.Row // row of the first event of the key, for duplicates
	reason     string     // for duplicates and dead letters
	tenant     []byte     // tenant of the event; empty in a route without tenants
	turn       tenantTurn // what the tenant's quota says about the event
	brokerTime int64      // ms
	after      int64      // offset after a batch that could not be decompressed; 0 for an event

	digest dedup.Digest // digest of key; zero without a key
	wire.Details
	claim          *dedup.Row         // address of the request that waits for the verdict; zero for none
	token          dedup.Token        // of claim
	outcomeHeaders []kgo.RecordHeader // token and kind of a refused outcome

	replyTo        dedup.Address        // request that waits for the verdict; zero for none
	replaces       dedup.Address        // request that its client gave up and that this event's request replaces; zero for none
	claimed        *dedup.ClaimDecision // decision on the claim, in claim mode
	emitted        bool                 // to the output topic
	outcomeFollows bool                 // an outcome follows to replyTo, after the verdict
}

// dedupKey returns the event's dedup key; nil if no key could be derived.
func (ev *event) dedupKey() *[32]byte {
	if ev.key == nil && ev.envelope != nil {
		ev.key = ev.envelope.DedupKey(ev.rec.Value)
	}
	return ev.key
}

// emit sends ev to topic and reports whether it did. If the topic would reject ev, or has rejected it
// in an earlier attempt, emit sends ev to the dead-letter topic instead. If that topic does not accept
// ev either, emit sends a dead letter that only points to it.
func (e *Emitter) emit(ev *event, topic string) bool {
	r := e.build(ev, topic)
	reason, forms := e.refused(ev.from, topic)
	misfit := cmp.Or(e.misfit(r, ev.brokerTime), reason)
	if topic == ev.route.DeadLetter {
		e.count(ev.route, deadLetters)
	}
	if misfit == "" {
		e.produce(r, ev.from)
		ev.emitted = topic == ev.route.Output
		return true
	}
	if topic != ev.route.DeadLetter {
		ev.reason, ev.verdict = misfit, dedup.Invalid
		ev.claim = nil // no claim is stored for the event, so an outcome with its token would be refused
		e.deadLetter(ev)
		return false
	}
	e.deadLetterPointer(ev, r, misfit, forms)
	return false
}

// deadLetter sends ev with its reason to the route's dead-letter topic.
func (e *Emitter) deadLetter(ev *event) {
	e.emit(ev, ev.route.DeadLetter)
}

// build makes the record: key, value, timestamp and foreign headers of the original, then the oncebus
// headers. It drops foreign headers with the oncebus prefix, so that a reader can trust every oncebus
// header.
func (e *Emitter) build(ev *event, topic string) *kgo.Record {
	r := e.NewRecord()
	r.Topic, r.Key, r.Value = topic, ev.recordKey, ev.rec.Value
	r.Timestamp = time.UnixMilli(ev.timestamp)
	own := ownHeadersPlain
	switch {
	case ev.reason != "" || ev.claim != nil:
		own = ownHeadersMax
	case headersOf(ev) == rules.Headers{}:
		own = 0 // the capacity for three unused headers would cost 120 bytes in most records
	}
	headers := e.headers.take(len(ev.headers) + own)[:0]
	for i := range ev.headers {
		if !wire.IsReserved(ev.headers[i].Key) {
			headers = append(headers, ev.headers[i])
		}
	}
	if topic == ev.route.DeadLetter {
		headers = ev.appendRedriveAttempt(headers)
	}
	r.Headers = e.ownHeaders(headers, ev)
	if topic == ev.route.Output && ev.awaitsUnclaimed() {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: wire.HeaderReplyTo, Value: ev.replyTo.AppendText(nil)})
	}
	if topic == ev.route.DeadLetter && e.rt.ConnectHeaders {
		r.Headers = e.appendConnectHeaders(r.Headers, ev)
	}
	if ev.recordKey == nil {
		r.Partition = placeByKey(ev)
	}
	return r
}

// appendRedriveAttempt appends the header with the redrive attempt, if a redrive produced the original.
// Without that header in the dead letter, the next redrive would count its attempts from the start.
func (ev *event) appendRedriveAttempt(to []kgo.RecordHeader) []kgo.RecordHeader {
	for i := range ev.headers {
		if _, ok := wire.RedriveAttempt(&ev.headers[i]); ok {
			return append(to, ev.headers[i])
		}
	}
	return to
}

// placeByKey returns the number by which a record without a record key gets its partition. It is
// derived from the dedup key, so all duplicates of a key go to the same partition.
func placeByKey(ev *event) int32 {
	k := ev.dedupKey()
	if k == nil {
		return int32(ev.from.Offset & 0x7fffffff)
	}
	return int32(uint32(k[0])<<24 | uint32(k[1])<<16 | uint32(k[2])<<8 | uint32(k[3]))
}

// allHeaders are the headers of every record except the unique events of routes in plain mode.
var allHeaders = rules.Headers{Route: true, Key: true, Verdict: true}

// headersOf returns which of the headers route, key and verdict an event gets. A unique event of a
// route in plain mode gets only the headers that its route asks for: by default the output equals the
// input.
func headersOf(ev *event) rules.Headers {
	if ev.verdict == dedup.Unique && ev.route.Mode != rules.ClaimMode {
		return ev.route.Headers
	}
	return allHeaders
}

// ownHeaders appends the oncebus headers that an event gets: route, verdict and key as its route asks for
// them, and the claim token in claim mode. If the event has a reason, ownHeaders also appends the reason, the
// position of the record, and the position of the first event.
func (e *Emitter) ownHeaders(headers []kgo.RecordHeader, ev *event) []kgo.RecordHeader {
	has := headersOf(ev)
	if has.Route {
		headers = append(headers, kgo.RecordHeader{Key: wire.HeaderRoute, Value: ev.route.NameBytes})
	}
	if has.Verdict {
		headers = append(headers, kgo.RecordHeader{Key: wire.HeaderVerdict, Value: wire.VerdictText(ev.verdict)})
	}
	if has.Key {
		if key := ev.dedupKey(); key != nil {
			text := e.bytes.take(2 * len(key))
			hex.Encode(text, key[:])
			headers = append(headers, kgo.RecordHeader{Key: wire.HeaderKey, Value: text})
		}
	}
	if ev.claim != nil {
		headers = append(headers,
			kgo.RecordHeader{Key: wire.HeaderClaimToken, Value: ev.token.Append(e.bytes.take(dedup.TokenBytesMax)[:0])},
			kgo.RecordHeader{Key: wire.HeaderAttempt, Value: strconv.AppendUint(nil, uint64(ev.claim.Attempt), 10)})
	}
	headers = append(headers, ev.outcomeHeaders...)
	if ev.reason == "" {
		return headers
	}
	first, firstTime := ev.from, ev.timestamp
	if ev.first != nil {
		first, firstTime = ev.first.At, ev.first.First
	}
	if ev.after > 0 {
		last := ev.from
		last.Offset = ev.after - 1
		headers = append(headers, kgo.RecordHeader{Key: wire.HeaderBatchLast, Value: e.rt.PositionText(last)})
	}
	return append(headers,
		kgo.RecordHeader{Key: wire.HeaderReason, Value: []byte(ev.reason)},
		kgo.RecordHeader{Key: wire.HeaderSource, Value: e.rt.PositionText(ev.from)},
		kgo.RecordHeader{Key: wire.HeaderFirst, Value: e.rt.PositionText(first)},
		kgo.RecordHeader{Key: wire.HeaderFirstTime, Value: strconv.AppendInt(nil, firstTime, 10)})
}

// appendConnectHeaders appends those dead-letter headers of Kafka Connect that have a meaning here. The
// original may already have headers of these names; a reader that takes the last header of a name gets
// ours.
func (e *Emitter) appendConnectHeaders(to []kgo.RecordHeader, ev *event) []kgo.RecordHeader {
	return append(to,
		kgo.RecordHeader{Key: wire.HeaderConnectTopic, Value: []byte(e.rt.TopicName(ev.from.Topic))},
		kgo.RecordHeader{Key: wire.HeaderConnectPartition, Value: strconv.AppendInt(nil, int64(ev.from.Partition), 10)},
		kgo.RecordHeader{Key: wire.HeaderConnectOffset, Value: strconv.AppendInt(nil, ev.from.Offset, 10)},
		kgo.RecordHeader{Key: wire.HeaderConnectException, Value: append([]byte("oncebus."), wire.VerdictText(ev.verdict)...)},
		kgo.RecordHeader{Key: wire.HeaderConnectMessage, Value: []byte(ev.reason)})
}

// fits reports whether the record fits into a batch of its topic. If the record fits only when
// compressed, fits compresses it: the broker checks the size of the compressed batch.
func (e *Emitter) fits(r *kgo.Record) bool {
	limits := e.limitsOf(r.Topic)
	return wire.RecordBytes(r) <= int(limits.MaxBytes) || kafka.Precompress(r, int(limits.MaxBytes), limits.ReadMax)
}

// tooLarge returns the reason for a record of n bytes that does not fit.
func (e *Emitter) tooLarge(topic string, n int) string {
	limits := e.limitsOf(topic)
	return fmt.Sprintf(wire.ReasonTooLarge+"%s: %d bytes with headers, %s is %d, and it takes more compressed", topic, n, limits.BytesSetting, limits.MaxBytes)
}

// misfit returns why the topic would reject the record; "" if the topic would accept it. The emitter checks that
// before sending, because a rejected record would abort its transaction at every attempt. brokerTime is the
// broker time of the event. If the event has waited in Kafka since then, its timestamp may be too old for the
// topic by now.
func (e *Emitter) misfit(r *kgo.Record, brokerTime int64) string {
	limits := e.limitsOf(r.Topic)
	ts := r.Timestamp.UnixMilli()
	switch {
	case !e.fits(r):
		return e.tooLarge(r.Topic, wire.RecordBytes(r))
	case limits.Compacted && r.Key == nil:
		return fmt.Sprintf("no record key: topic %s is compacted and takes none without", r.Topic)
	case limits.AppendTime:
		return ""
	case limits.AfterMaxMS < app.Forever && ts-brokerTime > limits.AfterMaxMS:
		return fmt.Sprintf("timestamp %d is %d ms ahead of the broker, topic %s allows %d (message.timestamp.after.max.ms)", ts, ts-brokerTime, r.Topic, limits.AfterMaxMS)
	}
	if now, old := e.tooOld(r.Topic, ts, brokerTime); old {
		return fmt.Sprintf("timestamp %d is %d ms behind the broker, topic %s allows %d (message.timestamp.before.max.ms)", ts, now-ts, r.Topic, limits.BeforeMaxMS)
	}
	return ""
}

// tooOld reports whether a topic would reject a timestamp as too old, and returns the broker time now,
// which is later than the broker time of the event.
func (e *Emitter) tooOld(topic string, timestamp, brokerTime int64) (now int64, old bool) {
	limits := e.limitsOf(topic)
	if limits.BeforeMaxMS >= app.Forever || limits.AppendTime {
		return brokerTime, false
	}
	now = max(brokerTime, e.rt.Clock.Now())
	return now, timestamp < now-limits.BeforeMaxMS
}

// timestamp returns the timestamp of a reply or verdict: the broker time of its event or, if that is
// too old for the topic, the broker time now.
func (e *Emitter) timestamp(topic string, brokerTime int64) int64 {
	if now, old := e.tooOld(topic, brokerTime, brokerTime); old {
		return now
	}
	return brokerTime
}

// deadLetterPointer emits a small dead letter in place of full, which the dead-letter topic would reject. The
// small one has the event's position, digest and oncebus headers, and the broker's time; the record itself is
// still in its input topic. forms is how many forms of the dead letter the topic has rejected already: after the
// first rejection the small dead letter has no value, after the second one no record key either.
func (e *Emitter) deadLetterPointer(ev *event, full *kgo.Record, misfit string, forms int) {
	hash := sha256.Sum256(ev.rec.Value)
	if ev.reason == "" {
		ev.reason = misfit
	} else {
		ev.reason += "; not carried whole: " + misfit
	}
	r := e.NewRecord()
	r.Topic, r.Partition = full.Topic, placeByKey(ev)
	r.Headers = e.ownHeaders(ev.appendRedriveAttempt(e.headers.take(ownHeadersMax)[:0]), ev)
	r.Headers = append(r.Headers,
		kgo.RecordHeader{Key: wire.HeaderTimestamp, Value: strconv.AppendInt(nil, ev.timestamp, 10)},
		kgo.RecordHeader{Key: wire.HeaderValueSize, Value: strconv.AppendInt(nil, int64(len(ev.rec.Value)), 10)},
		kgo.RecordHeader{Key: wire.HeaderValueHash, Value: []byte(hex.EncodeToString(hash[:]))})
	if e.rt.ConnectHeaders {
		r.Headers = e.appendConnectHeaders(r.Headers, ev)
	}
	if limits := e.rt.Limit(r.Topic); forms < 2 && wire.RecordBytes(r)+len(ev.recordKey) <= int(limits.MaxBytes) {
		r.Key = ev.recordKey
	}
	if limits := e.rt.Limit(r.Topic); r.Key == nil && limits.Compacted {
		r.Key = e.rt.PositionText(ev.from)
	}
	// If the topic rejects only the timestamp, the value fits and stays.
	r.Value = ev.rec.Value
	if forms > 0 || !e.fits(r) {
		r.Value = nil
	}
	e.produce(r, ev.from)
}

// conclude counts an event and informs its sender: by a reply, if the event is of claim mode and has no
// claim, and by a verdict record, if a request waits for the verdict. It runs once for each event.
func (e *Emitter) conclude(ev *event) {
	ev.counted = ev.verdict
	e.count(ev.route, counterIndex(ev.verdict))
	if e.Trace {
		e.trace(ev)
	}
	if ev.route.Mode == rules.ClaimMode && !ev.verdict.HasClaim() && e.rt.Outcomes[ev.rec.Topic] == nil {
		e.replyWithoutClaim(ev)
	}
	if ev.replyTo.IsSet() {
		e.respondToEvent(ev)
	}
}

// applyKeyPolicy applies the route's policy to an event without a key.
func (e *Emitter) applyKeyPolicy(ev *event, derived *rules.Derived) {
	if ev.route.Off && !derived.Unmatched {
		e.passOff(ev)
		return
	}
	ev.reason = derived.Reason
	policy := rules.DeadLetter
	ev.verdict = dedup.Invalid
	if derived.Finding == rules.KeyMissing {
		ev.verdict, policy = dedup.MissingKey, ev.route.OnMissingKey
	}
	e.byPolicy(ev, policy)
}

// byPolicy forwards, drops or dead-letters an event that gets no row, because it has no key, is late, is over a
// limit, or collides.
func (e *Emitter) byPolicy(ev *event, policy rules.Policy) {
	switch policy {
	case rules.Forward:
		ev.outcomeFollows = e.emit(ev, ev.route.Output) && ev.awaitsUnclaimed()
	case rules.Drop, rules.Reject:
	case rules.DeadLetter, rules.ToTopic, rules.Clamp:
		e.deadLetter(ev)
	}
	e.conclude(ev)
}

// applyLatePolicy applies the route's policy to a late event. The reason names what made the event late: the
// change of the window, stream time, or the highest event time of the event's own source. If it was none of
// these, the event lies before the window of the stored row, and the reason names that row.
func (e *Emitter) applyLatePolicy(ev *event, c *candidate) {
	ev.verdict = dedup.Late
	route := ev.route
	switch {
	case c.window.Changed && c.event.Time < c.window.LateBefore:
		ev.reason = fmt.Sprintf("event time %d cannot be judged: the window has changed to %v, and its rows are complete for events from %d on", c.event.Time, route.Window, c.window.LateBefore)
	case c.window.Late(c.event.Time, c.streamTime):
		ev.reason = fmt.Sprintf("event time %d cannot be judged: stream time is %d, window %v, grace %v", c.event.Time, c.streamTime, route.Window, route.Grace)
	case c.window.Late(c.event.Time, c.front):
		ev.reason = fmt.Sprintf("event time %d cannot be judged: its source had come to %d, window %v, grace %v", c.event.Time, c.front, route.Window, route.Grace)
	default:
		ev.reason = fmt.Sprintf("event time %d cannot be judged: the first event under the key has time %d, window %v", c.event.Time, c.prior.First, route.Window)
	}
	e.byPolicy(ev, route.OnLate)
}

// applyDuplicatePolicy counts a duplicate, and forwards it, sends it to the topic for duplicates, or drops it.
func (e *Emitter) applyDuplicatePolicy(ev *event, eventTime int64) {
	e.conclude(ev)
	var topic string
	switch ev.route.Duplicates.Policy {
	case rules.Forward:
		topic = ev.route.Output
	case rules.ToTopic:
		topic = ev.route.Duplicates.Topic
	case rules.DeadLetter, rules.Drop, rules.Clamp, rules.Reject:
		return
	}
	if ev.reason == "" { // a reason is already there if on_after_window rejects the event
		ev.reason = "duplicate " + (time.Duration(eventTime-ev.first.First) * time.Millisecond).String() + " after the first, window " + ev.route.Window.String()
	}
	e.emit(ev, topic)
}
