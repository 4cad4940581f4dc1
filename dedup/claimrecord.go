package dedup

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// A Claim is the part of a row that only claim mode has: the requests that wait for
// the outcome, and the outcome.
type Claim struct {
	// Key is the dedup key; the row has only its digest.
	Key [32]byte
	// Since is when the current attempt was claimed, in broker time, Unix
	// milliseconds; 0 if no outcome of it can arrive, see Forwarded.
	Since int64
	// Original is the request id of the event that made the current attempt; nil if the
	// route names none or the event has none.
	Original []byte
	// Taker is the position of the event that made the current attempt, if it took the
	// claim over; nil if the first event did.
	Taker *Position
	// Route is the name of the route whose event made the current attempt; nil if its
	// namespace has no other route.
	Route []byte
	// Requests get the outcome: the one that made the claim, then the duplicates
	// that wait for it.
	Requests []Request
	// Bypassed reports that an event of the key was also forwarded unchecked. The
	// executor may have run it, so a failure does not free the key.
	Bypassed bool
	// AppToken reports that the token of the current attempt names the app. Then a
	// token without one is not of this claim.
	AppToken bool
	// StartID names the executor to which the start of the current attempt was granted;
	// nil if none was. Then the lease does not end the claim.
	StartID []byte

	// Result and Headers are the recorded outcome of a completed claim.
	Result  []byte // nil is null
	Headers []Header
	// Omitted is the length of a result that was not recorded, in bytes with its
	// headers, at least 1; 0 if it was recorded.
	Omitted int
	// Hits counts the duplicates of the key, and LastHit is the broker time of the last one, in Unix
	// milliseconds. Only rows of plain deduplication have them, whose claim has nothing else.
	Hits    uint64
	LastHit int64
	// OmittedDigest is the digest of a result that was not recorded; zero in a claim
	// whose AppToken is not set, because earlier builds cannot read it.
	OmittedDigest ResultDigest
}

// Forwarded reports that the executor has the event without a token, and that no other
// attempt can end: it failed, or there was none. So no outcome can arrive.
func (c *Claim) Forwarded() bool { return c.Bypassed && c.Since == 0 }

// setForwarded makes the claim one without an outcome. Earlier builds read it as a claim
// that a failure does not free.
func (c *Claim) setForwarded() { c.Bypassed, c.Since = true, 0 }

// Maker returns the position of the event that made the current attempt. first is that of
// the first event.
func (c *Claim) Maker(first Position) Position {
	if c.Taker != nil {
		return *c.Taker
	}
	return first
}

// ResultDigest identifies a result: its value, and its headers in any order.
type ResultDigest [16]byte

// traceHeaders are the headers of W3C Trace Context and Baggage. They name the request
// that carried a result, so one result has others when it is sent again.
var traceHeaders = []string{"traceparent", "tracestate", "baggage"}

// digestResult returns the digest of a result.
func digestResult(value []byte, headers []Header) (d ResultDigest) {
	sorted := slices.DeleteFunc(slices.Clone(headers), func(h Header) bool { return slices.Contains(traceHeaders, h.Key) })
	slices.SortStableFunc(sorted, func(a, b Header) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), bytes.Compare(a.Value, b.Value))
	})
	text := appendText(nil, value)
	for _, h := range sorted {
		text = appendText(appendText(text, []byte(h.Key)), h.Value)
	}
	sum := sha256.Sum256(text)
	copy(d[:], sum[:])
	return d
}

// completedWith reports whether the completed claim has the result of an outcome. Of a
// result that an earlier build omitted only the length is known.
func (c *Claim) completedWith(o *Outcome) bool {
	if c.Omitted == 0 {
		return digestResult(c.Result, c.Headers) == digestResult(o.Value, o.Headers)
	}
	if c.OmittedDigest != (ResultDigest{}) {
		return c.OmittedDigest == digestResult(o.Value, o.Headers)
	}
	other := Claim{Result: o.Value, Headers: o.Headers}
	return c.Omitted == max(1, other.resultBytes())
}

// A Request is one event whose sender wants the outcome.
type Request struct {
	At  Position
	Key []byte // record key of the event and of the reply; nil for none
	ID  []byte // the sender's own id; nil for none
	// Route is the name of the event's route; nil if its namespace has no other route.
	Route []byte
	// ReplyTo is the in-flight request that also gets the outcome; zero for none.
	ReplyTo Address
	// Until is the broker time after which the client of that in-flight request waits no
	// more, in Unix milliseconds; 0 for unknown. It is 0 in a claim whose AppToken is not
	// set, because earlier builds cannot read it.
	Until int64
}

// Header is a record header of a recorded result.
type Header struct {
	Key   string
	Value []byte // nil is null
}

// RequestBytesMax bounds the id of a request in a claim.
const RequestBytesMax = 1 << 10

const claimVersion = 1

// Flags of an encoded claim.
const (
	flagBypassed = 1 << iota
	flagAddressed
	flagRouted // older builds refuse it, so a claim of a namespace with one route has none
	flagAppToken
	flagStarted
	flagTimed // only with flagAppToken, which the manifest allows once no older build runs
	flagTaken
	flagHits        // alone: hits uvarint and last hit varint follow, and nothing else
	knownClaimFlags = flagBypassed | flagAddressed | flagRouted | flagAppToken | flagStarted | flagTimed | flagTaken
)

// setResult records the outcome's value and headers, up to limit bytes.
func (c *Claim) setResult(o *Outcome, limit int) {
	c.Result, c.Headers = o.Value, o.Headers
	if c.resultBytes() > limit {
		c.omitResult()
	}
}

// omitResult removes the result and records its length.
func (c *Claim) omitResult() {
	c.Omitted = max(1, c.resultBytes()) // headers may be empty
	if c.AppToken {
		c.OmittedDigest = digestResult(c.Result, c.Headers)
	}
	c.Result, c.Headers = nil, nil
}

// resultBytes is the length of the result with its headers.
func (c *Claim) resultBytes() int {
	size := len(c.Result)
	for _, h := range c.Headers {
		size += len(h.Key) + len(h.Value)
	}
	return size
}

// flags returns which optional parts the encoding has.
func (c *Claim) flags() (flags byte) {
	if c.Bypassed {
		flags |= flagBypassed
	}
	if c.AppToken {
		flags |= flagAppToken
	}
	if c.StartID != nil {
		flags |= flagStarted
	}
	if c.Taker != nil {
		flags |= flagTaken
	}
	if slices.ContainsFunc(c.Requests, func(r Request) bool { return r.ReplyTo.IsSet() }) {
		flags |= flagAddressed
	}
	if c.AppToken && slices.ContainsFunc(c.Requests, func(r Request) bool { return r.ReplyTo.IsSet() && r.Until != 0 }) {
		flags |= flagTimed
	}
	if c.Route != nil || slices.ContainsFunc(c.Requests, func(r Request) bool { return r.Route != nil }) {
		flags |= flagRouted
	}
	return flags
}

// Append appends the encoding of c. A text is its length plus one and its bytes,
// or 0 for nil:
//
//	version 1 | flags 1 | key 32 | since varint | original | [route] |
//	[start id] | [taker] | requests uvarint |
//	requests | omitted uvarint | [digest 16] | result | headers uvarint | headers
//
// A taker is topic, partition and offset uvarint. A request is the same, key and id. In a claim with
// addresses 0 follows, or 1 and the address; in a claim with deadlines the address has its
// until varint. Of plain deduplication it is version 1 | flag 128 | hits uvarint | last hit varint. A header is its name and value. In a claim with routes the route follows
// the original, and ends each request. An omitted result has its digest if the token of the
// claim names the app.
func (c *Claim) Append(dst []byte) []byte {
	if c.Hits > 0 {
		dst = binary.AppendUvarint(append(dst, claimVersion, flagHits), c.Hits)
		return binary.AppendVarint(dst, c.LastHit)
	}
	flags := c.flags()
	routed := flags&flagRouted != 0
	dst = append(append(dst, claimVersion, flags), c.Key[:]...)
	dst = binary.AppendVarint(dst, c.Since)
	dst = appendText(dst, c.Original)
	if routed {
		dst = appendText(dst, c.Route)
	}
	if c.StartID != nil {
		dst = appendText(dst, c.StartID)
	}
	if c.Taker != nil {
		dst = c.Taker.append(dst)
	}
	dst = binary.AppendUvarint(dst, uint64(len(c.Requests)))
	for i := range c.Requests {
		r := &c.Requests[i]
		dst = r.At.append(dst)
		dst = appendText(appendText(dst, r.Key), r.ID)
		switch {
		case flags&flagAddressed == 0:
		case r.ReplyTo.IsSet():
			dst = r.ReplyTo.Append(append(dst, 1))
			if flags&flagTimed != 0 {
				dst = binary.AppendVarint(dst, r.Until)
			}
		default:
			dst = append(dst, 0)
		}
		if routed {
			dst = appendText(dst, r.Route)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(c.Omitted))
	if c.AppToken && c.Omitted > 0 {
		dst = append(dst, c.OmittedDigest[:]...)
	}
	dst = appendText(dst, c.Result)
	dst = binary.AppendUvarint(dst, uint64(len(c.Headers)))
	for _, h := range c.Headers {
		dst = appendText(appendText(dst, []byte(h.Key)), h.Value)
	}
	return dst
}

// DecodeClaim decodes what Append wrote; nil is an empty claim. The result
// aliases b.
func DecodeClaim(b []byte) (c Claim, err error) {
	if b == nil {
		return c, nil
	}
	r := NewCursor(b)
	if version := r.Byte(); version != claimVersion {
		return c, fmt.Errorf("%w: claim version %d, this build reads %d", ErrRow, version, claimVersion)
	}
	flags := r.Byte()
	if flags == flagHits {
		if c.Hits, c.LastHit = r.Uvarint(math.MaxUint64), r.Varint(); !r.Done() || c.Hits == 0 {
			return Claim{}, fmt.Errorf("%w: hits of %d bytes are cut short or too long", ErrRow, len(b))
		}
		return c, nil
	}
	if flags&^byte(knownClaimFlags) != 0 {
		return c, fmt.Errorf("%w: unknown claim flags %#x", ErrRow, flags)
	}
	c.Bypassed, c.AppToken = flags&flagBypassed != 0, flags&flagAppToken != 0
	copy(c.Key[:], r.Bytes(len(c.Key)))
	c.Since = r.Varint()
	c.Original = r.text()
	if flags&flagRouted != 0 {
		c.Route = r.text()
	}
	if flags&flagStarted != 0 {
		c.StartID = r.text()
	}
	c.Taker = takerOf(&r, flags)
	for n := r.Uvarint(uint64(len(b))); n > 0 && !r.Bad(); n-- {
		c.Requests = append(c.Requests, r.request(flags))
	}
	c.Omitted = int(r.Uvarint(1<<31 - 1))
	if c.AppToken && c.Omitted > 0 {
		copy(c.OmittedDigest[:], r.Bytes(len(c.OmittedDigest)))
	}
	c.Result = r.text()
	for n := r.Uvarint(uint64(len(b))); n > 0 && !r.Bad(); n-- {
		c.Headers = append(c.Headers, Header{string(r.text()), r.text()})
	}
	if !r.Done() {
		return Claim{}, fmt.Errorf("%w: claim of %d bytes is cut short, too long or out of range", ErrRow, len(b))
	}
	return c, nil
}

// takerOf reads the taker of a claim that was taken over.
func takerOf(r *Cursor, flags byte) *Position {
	if flags&flagTaken == 0 {
		return nil
	}
	taker := r.Position()
	return &taker
}

// request reads a request of a claim with these flags.
func (c *Cursor) request(flags byte) Request {
	r := Request{At: c.Position(), Key: c.text(), ID: c.text()}
	if flags&flagAddressed != 0 && c.Flag() {
		r.ReplyTo = c.Address()
		if flags&flagTimed != 0 {
			r.Until = c.Varint()
		}
	}
	if flags&flagRouted != 0 {
		r.Route = c.text()
	}
	return r
}

func appendText(dst, text []byte) []byte {
	if text == nil {
		return append(dst, 0)
	}
	dst = binary.AppendUvarint(dst, uint64(len(text))+1)
	return append(dst, text...)
}

func (p Position) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(p.Topic))
	dst = binary.AppendUvarint(dst, uint64(uint32(p.Partition)))
	return binary.AppendUvarint(dst, uint64(p.Offset))
}
