package processor

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// A front puts events on the bus for senders that wait for the verdict. Its
// events bear a return address, and whoever judges one tells the verdict by a
// record of <app>-verdicts, in the transaction that holds the judgement: a
// verdict that a front reads is one that stands.

// headerReplyTo is a return address. On a raw record anybody may have written
// it: it decides where a verdict is told, and nothing else. Who is told one
// that is not theirs does not take it (question.tell).
const headerReplyTo = "oncebus-reply-to"

// Headers of a verdict beside those of replies. The last four stand for
// themselves and have no value.
const (
	headerHasOutcome     = "oncebus-has-outcome"     // the record carries an outcome
	headerForwarded      = "oncebus-forwarded"       // the event went to the output
	headerOutcomeFollows = "oncebus-outcome-follows" // the outcome will be told too
	headerOmitted        = "oncebus-omitted"         // the outcome's result is left out
)

// verdictHeadersMax is the most headers of ours on a verdict.
const verdictHeadersMax = 14

// asked returns the address that a record gives.
func (r *routeInfo) asked(rec *kgo.Record) dedup.Address {
	if r.HTTP == nil {
		return dedup.Address{}
	}
	text, _ := (*recordHeaders)(&rec.Headers).Header(headerReplyTo)
	address, ok := dedup.ParseAddress(text)
	if !ok {
		return dedup.Address{}
	}
	return address
}

// conclude ends the judgement on an event: it is counted and, if somebody
// waits for it, told. Every verdict comes through here, once.
func (e *emitter) conclude(ev *event) {
	e.tally(ev.route, tally(ev.verdict))
	if ev.ask.Asked() {
		e.tellEvent(ev)
	}
}

// noteWaiting notes that the claim just recorded holds the event's address.
func (ev *event) noteWaiting(c *dedup.Claimed) {
	if n := len(c.Claim.Requests); n > 0 {
		last := &c.Claim.Requests[n-1]
		ev.waits = last.At == ev.from && last.Return.Asked()
	}
}

// telling is a verdict on its way to who asked.
type telling struct {
	to      dedup.Address
	verdict dedup.Verdict
	key     *[32]byte    // nil if none could be derived
	row     *dedup.Row   // of the first copy; nil if there is none
	claim   *dedup.Claim // of row, in claim mode
	status  string       // in claim mode
	reason  string
	value   []byte
	headers []dedup.Header // of the outcome
	present int64          // ms

	settled, passed, waits, omitted bool
}

func (e *emitter) tellEvent(ev *event) {
	a := telling{to: ev.ask, verdict: ev.verdict, key: ev.key, row: ev.first, reason: ev.reason, present: ev.present, passed: ev.passed, waits: ev.waits}
	// A limit or a topic that does not take it may have decided otherwise.
	if c := ev.claimed; c != nil && c.Verdict == ev.verdict {
		a.row, a.claim, a.status = &c.Row, &c.Claim, c.Row.Status.String()
		if ev.verdict == dedup.Replayed {
			outcome := reply{verdict: ev.verdict, claim: &c.Claim, value: c.Claim.Result}
			a.value, a.headers, a.settled = c.Claim.Result, c.Claim.Headers, true
			a.reason = outcome.omitted(ev.route)
			a.omitted = a.reason != ""
		}
	}
	e.tell(&a)
}

// tellOutcome tells the outcome to a request that waited for it.
func (e *emitter) tellOutcome(route *routeInfo, r *reply) {
	if !r.to.Return.Asked() {
		return
	}
	a := telling{
		to: r.to.Return, verdict: r.verdict, key: &r.claim.Key, row: r.row, claim: r.claim, status: r.status, reason: r.omitted(route),
		value: r.value, headers: r.headers, present: r.present, settled: true, passed: r.verdict == dedup.Unique,
	}
	a.omitted = a.reason != ""
	e.tell(&a)
}

// tell produces a verdict. What the topic does not take goes without the result.
func (e *emitter) tell(a *telling) {
	topic := e.rt.topology.verdicts
	if a.to.Partition >= e.rt.topology.topics[topic].partitions {
		return // nobody's address
	}
	r := &e.records.take(1)[0]
	stamp := e.stamp(topic, a.present)
	r.Topic, r.Partition, r.Value, r.Timestamp = topic, a.to.Partition, a.value, time.UnixMilli(stamp)
	r.Headers = e.headers.take(len(a.headers) + verdictHeadersMax)[:0]
	for _, h := range a.headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	r.Headers = e.verdictHeaders(r.Headers, a)
	misfit := e.misfit(r, stamp)
	switch {
	case misfit == "":
		e.produce(r)
	case a.value != nil || a.headers != nil:
		a.value, a.headers, a.omitted, a.reason = nil, nil, true, misfit
		e.tell(a)
	default: // somebody gave the topic a limit; the event must not wait for that
	}
}

func (e *emitter) verdictHeaders(headers []kgo.RecordHeader, a *telling) []kgo.RecordHeader {
	headers = append(headers,
		kgo.RecordHeader{Key: headerReplyTo, Value: a.to.AppendText(e.bytes.take(dedup.AddressTextBytes)[:0])},
		kgo.RecordHeader{Key: headerVerdict, Value: e.rt.verdictBytes[a.verdict]})
	if a.key != nil {
		text := e.bytes.take(2 * len(a.key))
		hex.Encode(text, a.key[:])
		headers = append(headers, kgo.RecordHeader{Key: headerKey, Value: text})
	}
	if a.row != nil {
		headers = append(headers,
			kgo.RecordHeader{Key: headerFirst, Value: e.rt.positionText(a.row.At)},
			kgo.RecordHeader{Key: headerFirstTime, Value: strconv.AppendInt(nil, a.row.First, 10)})
	}
	if a.claim != nil {
		headers = append(headers,
			kgo.RecordHeader{Key: headerClaimStatus, Value: []byte(a.status)},
			kgo.RecordHeader{Key: headerAttempt, Value: strconv.AppendUint(nil, uint64(a.row.Attempt), 10)})
		if a.claim.Original != nil {
			headers = append(headers, kgo.RecordHeader{Key: headerFirstRequest, Value: a.claim.Original})
		}
	}
	if a.reason != "" {
		headers = append(headers, kgo.RecordHeader{Key: headerReason, Value: []byte(a.reason)})
	}
	for _, flag := range [...]struct {
		name string
		set  bool
	}{{headerHasOutcome, a.settled}, {headerForwarded, a.passed}, {headerOutcomeFollows, a.waits}, {headerOmitted, a.omitted}} {
		if flag.set {
			headers = append(headers, kgo.RecordHeader{Key: flag.name})
		}
	}
	return headers
}

// Answer is what became of an event that was asked for.
type Answer struct {
	Verdict dedup.Verdict
	// Status is that of the claim, or the kind of the outcome; "" outside of
	// claim mode.
	Status string
	// Settled says that there is an outcome: Value and Headers are the
	// executor's.
	Settled bool
	Key     string // the dedup key as text; "" if none could be derived
	Attempt uint32 // of the claim
	// First is where the first copy stands, FirstTime its event time, and
	// FirstRequest the id its sender has for it; where there is one.
	First        string
	FirstTime    time.Time
	FirstRequest string
	Reason       string // why, where the verdict alone does not say it
	Value        []byte // nil is null
	Headers      []dedup.Header
	// Omitted says that the outcome's result was too long to be kept or told.
	Omitted bool
	// Passed says that the event itself went on to the output.
	Passed bool

	waits bool // the outcome will be told as well
}

// addressOf reads the address of a verdict.
func addressOf(rec *kgo.Record) (dedup.Address, bool) {
	// The last one is ours: an outcome's headers stand before.
	for i := len(rec.Headers) - 1; i >= 0; i-- {
		if rec.Headers[i].Key == headerReplyTo {
			return dedup.ParseAddress(rec.Headers[i].Value)
		}
	}
	return dedup.Address{}, false
}

// readAnswer reads a verdict; false for one that this build does not know.
func readAnswer(rec *kgo.Record) (Answer, bool) {
	a := Answer{Value: rec.Value}
	known := false
	for i := range rec.Headers {
		h := &rec.Headers[i]
		if !isOurs(h.Key) {
			a.Headers = append(a.Headers, dedup.Header{Key: h.Key, Value: h.Value})
			continue
		}
		text := string(h.Value)
		switch h.Key {
		case headerVerdict:
			for _, v := range dedup.Verdicts {
				if v.String() == text {
					a.Verdict, known = v, true
				}
			}
		case headerClaimStatus:
			a.Status = text
		case headerKey:
			a.Key = text
		case headerAttempt:
			n, _ := strconv.ParseUint(text, 10, 32) // ours: 0 where it is not there
			a.Attempt = uint32(n)
		case headerFirst:
			a.First = text
		case headerFirstTime:
			if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
				a.FirstTime = time.UnixMilli(ms)
			}
		case headerFirstRequest:
			a.FirstRequest = text
		case headerReason:
			a.Reason = text
		case headerHasOutcome:
			a.Settled = true
		case headerForwarded:
			a.Passed = true
		case headerOutcomeFollows:
			a.waits = true
		case headerOmitted:
			a.Omitted = true
		}
	}
	return a, known
}
