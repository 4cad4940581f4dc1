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

// A Claim is the part of a row that only claim mode has: the requests that wait for the outcome, and the
// outcome.
type Claim struct {
	// Key is the dedup key; the row itself has only the digest of the key.
	Key [32]byte
	// Since is when the current attempt was claimed, in broker time, Unix milliseconds. It is 0 if no outcome
	// of the attempt can arrive, see Forwarded.
	Since int64
	// Original is the request id of the event that made the current attempt; nil if the route does not say
	// where events have a request id, or if the event has no request id.
	Original []byte
	// Taker is the position of the event that made the current attempt, if a duplicate took the claim over;
	// nil if the first event of the key made it.
	Taker *Position
	// Route is the name of the route whose event made the current attempt; nil if the namespace has only one
	// route.
	Route []byte
	// Requests lists the requests to which the outcome is sent: first the request that made the claim, then the
	// requests of the duplicates that wait for the outcome.
	Requests []Request
	// Bypassed reports that a worker also forwarded an event of the key unchecked. The executor may have run
	// that event, so an outcome of kind failed or rejected does not free the key.
	Bypassed bool
	// AppToken reports that the token of the current attempt names the app. In that case a token without an app
	// does not belong to this claim.
	AppToken bool
	// StartID names the executor to which the start of the current attempt was granted; nil if none was
	// granted. While StartID is set, the claim does not end with its lease.
	StartID []byte

	// Result and Headers are the recorded outcome of a completed claim.
	Result  []byte // nil is null
	Headers []Header
	// Omitted is the length of a result that was too long to record, in bytes with its headers, at least 1; 0
	// if the result was recorded.
	Omitted int
	// Hits counts the duplicates of the key, and LastHit is the broker time of the last duplicate, in Unix
	// milliseconds. Only rows of plain deduplication have these two, and the claim of such a row has no other
	// fields.
	Hits    uint64
	LastHit int64
	// OmittedDigest is the digest of the result that was not recorded. It is zero in a claim whose AppToken
	// is not set, because earlier builds cannot read the field.
	OmittedDigest ResultDigest
}

// Forwarded reports that no outcome can arrive: the executor got the event without a token, and no attempt with
// a token is open, because it failed or because there was none.
func (c *Claim) Forwarded() bool { return c.Bypassed && c.Since == 0 }

// setForwarded marks the claim as one that gets no outcome. Earlier builds read these two fields as a claim
// whose key an outcome of kind failed or rejected does not free.
func (c *Claim) setForwarded() { c.Bypassed, c.Since = true, 0 }

// Maker returns the position of the event that made the current attempt. first is the position of the key's
// first event.
func (c *Claim) Maker(first Position) Position {
	if c.Taker != nil {
		return *c.Taker
	}
	return first
}

// ResultDigest identifies a result: its value, and its headers in any order.
type ResultDigest [16]byte

// traceHeaders are the headers of W3C Trace Context and Baggage. Their values name the request that carried the
// result. If an executor sends the same result again, the values of these headers differ, so they are no part
// of the result.
var traceHeaders = []string{"traceparent", "tracestate", "baggage"}

// digestResult returns the digest of a result, without traceHeaders.
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

// completedWith reports whether the result of the completed claim equals the result of an outcome. If an
// earlier build omitted the result, it stored no digest, so only the lengths are compared.
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
	Key []byte // record key of the event, and of the reply; nil for none
	ID  []byte // the sender's own id; nil for none
	// Route is the name of the event's route; nil if the namespace has only one route.
	Route []byte
	// ReplyTo names the in-flight HTTP request that also gets the outcome; zero for none.
	ReplyTo Address
	// Until is the broker time after which the client of the HTTP request at ReplyTo no longer waits, in Unix
	// milliseconds; 0 for unknown. It is 0 in a claim whose AppToken is not set, because earlier builds cannot
	// read the field.
	Until int64
}

// Header is a record header of a recorded result.
type Header struct {
	Key   string
	Value []byte // nil is null
}

// RequestBytesMax is the longest id of a request in a claim, in bytes.
const RequestBytesMax = 1 << 10

const claimVersion = 1

// Flags of an encoded claim.
const (
	flagBypassed = 1 << iota
	flagAddressed
	flagRouted // older builds refuse it, so only a namespace with several routes sets it
	flagAppToken
	flagStarted
	flagTimed // only with flagAppToken, which the manifest allows once no older build runs
	flagTaken
	flagHits        // only alone: hits uvarint and last hit varint follow, and nothing else
	knownClaimFlags = flagBypassed | flagAddressed | flagRouted | flagAppToken | flagStarted | flagTimed | flagTaken
)

// setResult records the outcome's value and headers, up to limit bytes.
func (c *Claim) setResult(o *Outcome, limit int) {
	c.Result, c.Headers = o.Value, o.Headers
	if c.resultBytes() > limit {
		c.omitResult()
	}
}

// omitResult removes the result, and records the length of the result and, if the token names the app, its
// digest.
func (c *Claim) omitResult() {
	c.Omitted = max(1, c.resultBytes()) // headers may be empty
	if c.AppToken {
		c.OmittedDigest = digestResult(c.Result, c.Headers)
	}
	c.Result, c.Headers = nil, nil
}

// resultBytes returns the bytes of the result with its headers.
func (c *Claim) resultBytes() int {
	size := len(c.Result)
	for _, h := range c.Headers {
		size += len(h.Key) + len(h.Value)
	}
	return size
}

// flags returns the flags of the optional parts that the encoding of c contains.
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

// Append appends the encoding of c. A text is its length plus one and its bytes, or 0 for nil:
//
//		version 1 | flags 1 | key 32 | since varint | original | [route] |
//		[start id] | [taker] | requests uvarint |
//		requests | omitted uvarint | [digest 16] | result | headers uvarint | headers
//
//	  - A taker is a position: topic, partition and offset, each uvarint.
//	  - A request is a position, its key and its id. If the claim has addresses, each request continues with 0, or with 1 and its address;
//	    in a claim with deadlines the until varint follows each address. In a claim with routes the route ends
//	    the request.
//	  - A header is its name and value.
//	  - An omitted result has its digest if the token of the claim names the app.
//
// The claim of a row of plain deduplication is version 1 | flag 128 | hits uvarint | last hit varint.
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

// DecodeClaim decodes what Append wrote; nil is an empty claim. The texts of the claim alias b.
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

// takerOf reads the position of the taker; nil if nobody took the claim over.
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

// appendText appends a text as Claim.Append encodes it; Cursor.text reads it.
func appendText(dst, text []byte) []byte {
	if text == nil {
		return append(dst, 0)
	}
	dst = binary.AppendUvarint(dst, uint64(len(text))+1)
	return append(dst, text...)
}

// append appends the position as Cursor.Position reads it.
func (p Position) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(p.Topic))
	dst = binary.AppendUvarint(dst, uint64(uint32(p.Partition)))
	return binary.AppendUvarint(dst, uint64(p.Offset))
}
