package judge

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
	"oncebus/state/failpoint"
)

// ownHeadersMax is the most headers that one emitted record gets from us,
// ownHeadersPlain the most without a reason and outside claim mode.
const ownHeadersMax, ownHeadersPlain = 13, 3

// original is an input record as its producer wrote it, wherever it was read.
type original struct {
	rec       *kgo.Record
	headers   []kgo.RecordHeader // without the envelope
	timestamp int64              // ms
	from      dedup.Position
}

// Emitter builds and sends the records of one worker's open transaction.
// Its memory is reused from one transaction to the next.
type Emitter struct {
	rt   *app.App
	send func(*kgo.Record)

	records arena[kgo.Record]
	headers arena[kgo.RecordHeader]
	bytes   arena[byte]
	Counts  []uint64 // [route index * tallies + tally], of the open transaction
}

// NewEmitter returns an emitter. send hands a record to the client, which may
// read it until the transaction has ended.
func NewEmitter(rt *app.App, send func(*kgo.Record)) *Emitter {
	return &Emitter{rt: rt, send: send, Counts: make([]uint64, len(rt.Routes)*tallies)}
}

// Reset drops the transaction's records. Every promise must have been called:
// franz-go reads a record until then.
func (e *Emitter) Reset() {
	e.records.reset()
	e.headers.reset()
	e.bytes.reset()
	clear(e.Counts)
}

// Release gives up the memory that reset keeps. No transaction is open.
func (e *Emitter) Release() {
	e.records, e.headers, e.bytes = arena[kgo.Record]{}, arena[kgo.RecordHeader]{}, arena[byte]{}
}

func (e *Emitter) tally(route *app.Route, what counterIndex) {
	e.Counts[route.Index*tallies+int(what)]++
}

func (e *Emitter) tallyOutcome(route *app.Route, kind dedup.OutcomeKind, became outcomeResult) {
	e.tally(route, tallyOutcomes+counterIndex(kind)*counterIndex(outcomeResults)+counterIndex(became))
}

// NewRecord returns an empty record, valid until the transaction has ended.
func (e *Emitter) NewRecord() *kgo.Record { return &e.records.take(1)[0] }

// produce sends a record.
func (e *Emitter) produce(r *kgo.Record) {
	e.send(r)
	failpoint.Hit(failpoint.AfterOutput)
}

// event is what is known about an original when it is emitted.
type event struct {
	original
	route      *app.Route
	verdict    dedup.Verdict
	key        *[32]byte  // nil if no key could be derived
	first      *dedup.Row // of the first copy, for duplicates
	reason     string     // for duplicates and dead letters
	brokerTime int64      // broker-observed present, ms
	last       int64      // of a batch that was not read, the last offset; else 0

	wire.Details
	claim          *dedup.Row         // the claim it runs under, in claim mode
	token          dedup.Token        // of claim
	outcomeHeaders []kgo.RecordHeader // token and kind, of an outcome that is refused

	replyTo dedup.Address        // of the request that waits for the verdict; zero for none
	claimed *dedup.ClaimDecision // the judgement, in claim mode
	passed  bool                 // it went to the output
	waits   bool                 // the outcome follows on replyTo
}

// emit sends ev to topic; if it does not fit there, to the dead-letter topic,
// and if it does not fit there either, without its value. It reports whether
// it went to topic.
func (e *Emitter) emit(ev *event, topic string) bool {
	r := e.build(ev, topic)
	misfit := e.misfit(r, ev.brokerTime)
	if misfit == "" {
		e.produce(r)
		ev.passed = topic == ev.route.Output
		return true
	}
	if topic != ev.route.DeadLetter {
		ev.reason, ev.verdict = misfit, dedup.Invalid
		e.deadLetter(ev)
		return false
	}
	e.deadLetterPointer(ev, r, misfit)
	return false
}

// deadLetter sends ev with its reason to the route's dead-letter topic.
func (e *Emitter) deadLetter(ev *event) {
	e.emit(ev, ev.route.DeadLetter)
}

// build makes the record: key, value, timestamp and foreign headers untouched,
// then our headers. A foreign header with our prefix is left out, so that a
// reader can trust every oncebus header.
func (e *Emitter) build(ev *event, topic string) *kgo.Record {
	r := e.NewRecord()
	r.Topic, r.Key, r.Value = topic, ev.rec.Key, ev.rec.Value
	r.Timestamp = time.UnixMilli(ev.timestamp)
	own := ownHeadersPlain
	if ev.reason != "" || ev.claim != nil {
		own = ownHeadersMax
	}
	headers := e.headers.take(len(ev.headers) + own)[:0]
	for i := range ev.headers {
		if !wire.IsReserved(ev.headers[i].Key) {
			headers = append(headers, ev.headers[i])
		}
	}
	r.Headers = e.ownHeaders(headers, ev)
	if ev.rec.Key == nil {
		r.Partition = placeByKey(ev)
	}
	return r
}

// placeByKey spreads records without a record key, all copies of one dedup
// key to the same place.
func placeByKey(ev *event) int32 {
	if ev.key == nil {
		return int32(ev.from.Offset & 0x7fffffff)
	}
	k := ev.key
	return int32(uint32(k[0])<<24 | uint32(k[1])<<16 | uint32(k[2])<<8 | uint32(k[3]))
}

func (e *Emitter) ownHeaders(headers []kgo.RecordHeader, ev *event) []kgo.RecordHeader {
	headers = append(headers, kgo.RecordHeader{Key: wire.HeaderRoute, Value: ev.route.NameBytes},
		kgo.RecordHeader{Key: wire.HeaderVerdict, Value: wire.VerdictText(ev.verdict)})
	if ev.key != nil {
		text := e.bytes.take(2 * len(ev.key))
		hex.Encode(text, ev.key[:])
		headers = append(headers, kgo.RecordHeader{Key: wire.HeaderKey, Value: text})
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
	if ev.last > 0 {
		last := ev.from
		last.Offset = ev.last
		headers = append(headers, kgo.RecordHeader{Key: wire.HeaderBatchLast, Value: e.rt.PositionText(last)})
	}
	return append(headers,
		kgo.RecordHeader{Key: wire.HeaderReason, Value: []byte(ev.reason)},
		kgo.RecordHeader{Key: wire.HeaderSource, Value: e.rt.PositionText(ev.from)},
		kgo.RecordHeader{Key: wire.HeaderFirst, Value: e.rt.PositionText(first)},
		kgo.RecordHeader{Key: wire.HeaderFirstTime, Value: strconv.AppendInt(nil, firstTime, 10)})
}

// misfit says why the topic would refuse the record; "" if it would not. A
// refused record would fail its transaction, again and again. The present is
// that of the event; an event that has waited since may have grown too old.
func (e *Emitter) misfit(r *kgo.Record, present int64) string {
	limits := e.rt.Limit(r.Topic)
	ts := r.Timestamp.UnixMilli()
	switch n := wire.RecordBytes(r); {
	case n > int(limits.MaxBytes):
		return fmt.Sprintf("too large for topic %s: %d bytes with headers, max.message.bytes is %d", r.Topic, n, limits.MaxBytes)
	case limits.Compacted && r.Key == nil:
		return fmt.Sprintf("no record key: topic %s is compacted and takes none without", r.Topic)
	case limits.AppendTime:
		return ""
	case limits.AfterMaxMS < app.Forever && ts-present > limits.AfterMaxMS:
		return fmt.Sprintf("timestamp %d is %d ms ahead of the broker, topic %s allows %d (message.timestamp.after.max.ms)", ts, ts-present, r.Topic, limits.AfterMaxMS)
	}
	if now, old := e.tooOld(r.Topic, ts, present); old {
		return fmt.Sprintf("timestamp %d is %d ms behind the broker, topic %s allows %d (message.timestamp.before.max.ms)", ts, now-ts, r.Topic, limits.BeforeMaxMS)
	}
	return ""
}

// tooOld tells whether a timestamp lies too far back for a topic, and by which
// clock: the broker's present has gone on since it was observed.
func (e *Emitter) tooOld(topic string, timestamp, present int64) (now int64, old bool) {
	limits := e.rt.Limit(topic)
	if limits.BeforeMaxMS >= app.Forever || limits.AppendTime {
		return present, false
	}
	now = max(present, e.rt.Clock.Now())
	return now, timestamp < now-limits.BeforeMaxMS
}

// stamp returns the timestamp of a record of our own: the present of what it
// answers or, where that lies too far back for the topic, that of now.
func (e *Emitter) stamp(topic string, present int64) int64 {
	if now, old := e.tooOld(topic, present, present); old {
		return now
	}
	return present
}

// deadLetterPointer emits what is left when not even the dead-letter topic
// takes the record as it is: where it stands, its digest and our headers, with
// the broker's own time. The record itself still stands in its input topic.
func (e *Emitter) deadLetterPointer(ev *event, full *kgo.Record, misfit string) {
	hash := sha256.Sum256(ev.rec.Value)
	if ev.reason == "" {
		ev.reason = misfit
	} else {
		ev.reason += "; not carried whole: " + misfit
	}
	r := e.NewRecord()
	r.Topic, r.Partition = full.Topic, placeByKey(ev)
	r.Headers = e.ownHeaders(e.headers.take(ownHeadersMax)[:0], ev)
	r.Headers = append(r.Headers,
		kgo.RecordHeader{Key: wire.HeaderTimestamp, Value: strconv.AppendInt(nil, ev.timestamp, 10)},
		kgo.RecordHeader{Key: wire.HeaderValueSize, Value: strconv.AppendInt(nil, int64(len(ev.rec.Value)), 10)},
		kgo.RecordHeader{Key: wire.HeaderValueHash, Value: []byte(hex.EncodeToString(hash[:]))})
	if limits := e.rt.Limit(r.Topic); wire.RecordBytes(r)+len(ev.rec.Key) <= int(limits.MaxBytes) {
		r.Key = ev.rec.Key
	}
	if limits := e.rt.Limit(r.Topic); r.Key == nil && limits.Compacted {
		r.Key = e.rt.PositionText(ev.from)
	}
	// The value goes along where only the timestamp was refused.
	r.Value = ev.rec.Value
	if wire.RecordBytes(r) > int(e.rt.Limit(r.Topic).MaxBytes) {
		r.Value = nil
	}
	e.produce(r)
}
