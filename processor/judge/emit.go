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

// ownHeadersMax is the highest number of oncebus headers on one emitted record,
// ownHeadersPlain that without a reason and outside claim mode.
const ownHeadersMax, ownHeadersPlain = 14, 3

// original is an input record as its producer wrote it, also if it came through the
// repartition topic.
type original struct {
	rec       *kgo.Record
	recordKey []byte // without the envelope; nil for none
	headers   []kgo.RecordHeader
	timestamp int64 // ms
	from      dedup.Position
}

// originalOf returns a raw record, read from a position.
func originalOf(rec *kgo.Record, from dedup.Position) original {
	return original{rec: rec, recordKey: rec.Key, headers: rec.Headers, timestamp: rec.Timestamp.UnixMilli(), from: from}
}

// Emitter builds and sends the records of one worker's open transaction, by the
// policies of their routes. It reuses its memory in the next one.
type Emitter struct {
	rt       *app.App
	send     func(*kgo.Record) error
	refusals map[RefusalID]*Refusal // of transactions since the last commit

	records arena[kgo.Record]
	headers arena[kgo.RecordHeader]
	bytes   arena[byte]
	Delays  Delays
	Counts  []uint64 // [route index * countersMax + counterIndex], of the open transaction
	// Awaited reports that a request by HTTP waits for the open transaction.
	Awaited bool
	Trace   bool     // whether to note the sampled events
	Traced  []Traced // those of the open transaction
	current current
	limits  knownLimits
}

// knownLimits are the limits of the topic of the last record: most records go to the topic
// of the one before.
type knownLimits struct {
	topic  string
	of     *map[string]app.TopicLimits // that they are from
	limits app.TopicLimits
}

// limitsOf returns the limits of a topic, valid until the next call.
func (e *Emitter) limitsOf(topic string) *app.TopicLimits {
	if of := e.rt.Limits.Load(); of != e.limits.of || topic != e.limits.topic {
		e.limits = knownLimits{topic: topic, of: of, limits: e.rt.Limit(topic)}
	}
	return &e.limits.limits
}

// current has what is read of one record while it is processed. It is here because pointers
// to it are passed on: of its own it would be allocated for each record.
type current struct {
	envelope  wire.Envelope
	candidate candidate
	claim     dedup.ClaimDecision
}

// NewEmitter returns an emitter. send gives a record to the client, which may read it
// until the transaction has ended. It returns an error if the topic is already known to
// refuse this record for good; the transaction then has to be aborted.
func NewEmitter(rt *app.App, send func(*kgo.Record) error) *Emitter {
	return &Emitter{rt: rt, send: send, refusals: map[RefusalID]*Refusal{}, Counts: make([]uint64, len(rt.Routes)*countersMax), Delays: newDelays(len(rt.Routes))}
}

// Reset drops the transaction's records. Every promise must have been called:
// franz-go reads a record until then.
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

// Release frees the memory that Reset keeps. No transaction may be open.
func (e *Emitter) Release() {
	e.Traced = nil
	e.records, e.headers, e.bytes = arena[kgo.Record]{}, arena[kgo.RecordHeader]{}, arena[byte]{}
}

func (e *Emitter) count(route *app.Route, what counterIndex) {
	e.Counts[route.Index*countersMax+int(what)]++
}

// countEnded counts the keys of a route's namespace that its stream time left behind.
func (e *Emitter) countEnded(route *app.Route, ended dedup.Ended) {
	e.Counts[route.Index*countersMax+int(endedWindows)] += ended.Windows
	e.Counts[route.Index*countersMax+int(endedRetentions)] += ended.Retentions
}

func (e *Emitter) countOutcome(route *app.Route, kind dedup.OutcomeKind, became outcomeResult) {
	e.count(route, firstOutcome+counterIndex(kind)*counterIndex(outcomeResults)+counterIndex(became))
}

// NewRecord returns an empty record, valid until the transaction has ended.
func (e *Emitter) NewRecord() *kgo.Record { return &e.records.take(1)[0] }

// produce sends a record about an input record. If its topic refuses it, the next attempt
// finds the refusal.
func (e *Emitter) produce(r *kgo.Record, about dedup.Position) {
	if err := e.send(r); err != nil {
		e.refuse(RefusalID{about, r.Topic}, err)
	}
	failpoint.Hit(failpoint.AfterOutput)
}

// event is an original with its verdict and all that its headers need.
type event struct {
	original
	route   *app.Route
	verdict dedup.Verdict
	// counted is the verdict that conclude counted. A duplicate whose topic then refuses it has
	// another verdict in its dead letter, and is a duplicate all the same.
	counted dedup.Verdict
	key     *[32]byte // see dedupKey
	// envelope is that of a routed event, nil for any other. Its dedup key may have to be
	// computed first, so only dedupKey reads key.
	envelope   *wire.Envelope
	first      *dedup.Row // of the first event, for duplicates
	reason     string     // for duplicates and dead letters
	tenant     []byte     // of a route with tenants; else empty
	turn       tenantTurn // of the tenant
	brokerTime int64      // ms
	after      int64      // offset after a batch that was not decompressed; else 0

	digest dedup.Digest // of key; zero without one
	wire.Details
	claim          *dedup.Row         // the claim of a dispatched event
	token          dedup.Token        // of claim
	outcomeHeaders []kgo.RecordHeader // token and kind, of a refused outcome

	replyTo        dedup.Address        // of the request that waits for the verdict; zero for none
	replaces       dedup.Address        // of a request that its client gave up; zero for none
	claimed        *dedup.ClaimDecision // the decision, in claim mode
	emitted        bool                 // to the output
	outcomeFollows bool                 // to replyTo, after the verdict
}

// dedupKey returns the event's dedup key; nil if none could be derived.
func (ev *event) dedupKey() *[32]byte {
	if ev.key == nil && ev.envelope != nil {
		ev.key = ev.envelope.DedupKey(ev.rec.Value)
	}
	return ev.key
}

// emit sends ev to topic. If topic would refuse it, or has refused it, emit sends it to
// the dead-letter topic, at last without its value. It reports whether it sent ev to topic.
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
		ev.claim = nil // the event takes none, so an outcome with its token would be refused
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

// build makes the record: key, value, timestamp and foreign headers of the original,
// then the oncebus headers. It drops foreign headers with the oncebus prefix, so that a
// reader can trust every oncebus header.
func (e *Emitter) build(ev *event, topic string) *kgo.Record {
	r := e.NewRecord()
	r.Topic, r.Key, r.Value = topic, ev.recordKey, ev.rec.Value
	r.Timestamp = time.UnixMilli(ev.timestamp)
	own := ownHeadersPlain
	switch {
	case ev.reason != "" || ev.claim != nil:
		own = ownHeadersMax
	case headersOf(ev) == rules.Headers{}:
		own = 0 // most events: three unused headers would be 120 bytes that a collection scans
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

// appendRedriveAttempt appends the attempt of the redrive that produced the original, if one
// did. Without it in the dead letter the next redrive would begin to count again.
func (ev *event) appendRedriveAttempt(to []kgo.RecordHeader) []kgo.RecordHeader {
	for i := range ev.headers {
		if _, ok := wire.RedriveAttempt(&ev.headers[i]); ok {
			return append(to, ev.headers[i])
		}
	}
	return to
}

// placeByKey returns the number by which a record without a record key gets its
// partition: one number for all duplicates of a dedup key.
func placeByKey(ev *event) int32 {
	k := ev.dedupKey()
	if k == nil {
		return int32(ev.from.Offset & 0x7fffffff)
	}
	return int32(uint32(k[0])<<24 | uint32(k[1])<<16 | uint32(k[2])<<8 | uint32(k[3]))
}

// allHeaders are those of every record but the unique events of plain routes.
var allHeaders = rules.Headers{Route: true, Key: true, Verdict: true}

// headersOf returns which of the first three headers an event gets. A unique event of a
// plain route gets what its route asks for: what comes out is what went in.
func headersOf(ev *event) rules.Headers {
	if ev.verdict == dedup.Unique && ev.route.Mode != rules.ClaimMode {
		return ev.route.Headers
	}
	return allHeaders
}

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

// appendConnectHeaders appends the headers of Kafka Connect that have a meaning here. A reader
// of the last header of a name gets these, also if the original has them too.
func (e *Emitter) appendConnectHeaders(to []kgo.RecordHeader, ev *event) []kgo.RecordHeader {
	return append(to,
		kgo.RecordHeader{Key: wire.HeaderConnectTopic, Value: []byte(e.rt.TopicName(ev.from.Topic))},
		kgo.RecordHeader{Key: wire.HeaderConnectPartition, Value: strconv.AppendInt(nil, int64(ev.from.Partition), 10)},
		kgo.RecordHeader{Key: wire.HeaderConnectOffset, Value: strconv.AppendInt(nil, ev.from.Offset, 10)},
		kgo.RecordHeader{Key: wire.HeaderConnectException, Value: append([]byte("oncebus."), wire.VerdictText(ev.verdict)...)},
		kgo.RecordHeader{Key: wire.HeaderConnectMessage, Value: []byte(ev.reason)})
}

// fits reports whether the record fits into a batch of its topic. It compresses one that
// fits only so: a broker judges compressed batches.
func (e *Emitter) fits(r *kgo.Record) bool {
	limits := e.limitsOf(r.Topic)
	return wire.RecordBytes(r) <= int(limits.MaxBytes) || kafka.Precompress(r, int(limits.MaxBytes), limits.ReadMax)
}

// tooLarge returns why a record of n bytes does not fit.
func (e *Emitter) tooLarge(topic string, n int) string {
	limits := e.limitsOf(topic)
	return fmt.Sprintf(wire.ReasonTooLarge+"%s: %d bytes with headers, %s is %d, and it takes more compressed", topic, n, limits.BytesSetting, limits.MaxBytes)
}

// misfit returns why the topic would refuse the record; "" if it would accept it. A
// refused record would abort its transaction at every attempt. brokerTime is that of the
// event. An event that waited in Kafka since may be too old by now.
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

// tooOld reports whether a topic would refuse a timestamp as too old, and the broker
// time now: it has advanced since the event's.
func (e *Emitter) tooOld(topic string, timestamp, brokerTime int64) (now int64, old bool) {
	limits := e.limitsOf(topic)
	if limits.BeforeMaxMS >= app.Forever || limits.AppendTime {
		return brokerTime, false
	}
	now = max(brokerTime, e.rt.Clock.Now())
	return now, timestamp < now-limits.BeforeMaxMS
}

// timestamp returns the timestamp of a reply or verdict: the broker time of its event
// or, if that is too old for the topic, that of now.
func (e *Emitter) timestamp(topic string, brokerTime int64) int64 {
	if now, old := e.tooOld(topic, brokerTime, brokerTime); old {
		return now
	}
	return brokerTime
}

// deadLetterPointer emits a dead letter for a record that the dead-letter topic would
// refuse: position, digest and oncebus headers, with the broker's time. The record itself
// is still in its input topic. A topic that refused forms of it gets no value, and after
// the second one no record key.
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
	// If the topic would only refuse the timestamp, the value fits.
	r.Value = ev.rec.Value
	if forms > 0 || !e.fits(r) {
		r.Value = nil
	}
	e.produce(r, ev.from)
}

// conclude counts an event, replies to it if it is of claim mode and has no claim and, if a
// request waits for the verdict, produces it. It runs once for each event.
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

// byPolicy forwards, drops or dead-letters an event that was not judged.
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

// applyLatePolicy gives the reason: the change of the window, stream time, how far the event's
// own source had come, or, for an event that all of them leave in time, the stored row whose
// window it comes before.
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
	if ev.reason == "" { // else it is after its window
		ev.reason = "duplicate " + (time.Duration(eventTime-ev.first.First) * time.Millisecond).String() + " after the first, window " + ev.route.Window.String()
	}
	e.emit(ev, topic)
}
