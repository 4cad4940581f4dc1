package wire

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// The headers oncebus adds (product.md section 5, and README "Headers").
const (
	HeaderRoute     = "oncebus-route"
	HeaderKey       = "oncebus-key"
	HeaderVerdict   = "oncebus-verdict"
	HeaderFirst     = "oncebus-first"
	HeaderFirstTime = "oncebus-first-time"
	HeaderSource    = "oncebus-source"
	HeaderReason    = "oncebus-reason"
	HeaderTimestamp = "oncebus-timestamp"
	HeaderValueHash = "oncebus-value-sha256"
	HeaderValueSize = "oncebus-value-bytes"
	HeaderBatchLast = "oncebus-batch-last"

	// Of claim mode.
	HeaderClaimToken   = "oncebus-claim-token"
	HeaderAttempt      = "oncebus-attempt"
	HeaderOutcome      = "oncebus-outcome" // read, on outcomes; kept where they are refused
	HeaderClaimStatus  = "oncebus-claim-status"
	HeaderRequestID    = "oncebus-request-id"
	HeaderFirstRequest = "oncebus-first-request"

	headerPrefix = "oncebus-"
)

// PlaceByDigest does so for what belongs to a row.
func PlaceByDigest(d *dedup.Digest) int32 { return int32(binary.BigEndian.Uint32(d[:4])) }

func KeyText(key *[32]byte) string { return hex.EncodeToString(key[:]) }

// IsOurs reports whether a header name starts with our prefix, in any case.
func IsOurs(name string) bool {
	if len(name) < len(headerPrefix) {
		return false
	}
	for i := range len(headerPrefix) {
		c := name[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != headerPrefix[i] {
			return false
		}
	}
	return true
}

// RecordOverhead covers the batch header and the record's own length fields.
const RecordOverhead = 61 + 40

func RecordBytes(r *kgo.Record) int {
	n := RecordOverhead + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value) + 10
	}
	return n
}

// AppendForeign appends the headers that are not of our prefix.
func AppendForeign(to []kgo.RecordHeader, headers []dedup.Header) []kgo.RecordHeader {
	for i := range headers {
		if !IsOurs(headers[i].Key) {
			to = append(to, kgo.RecordHeader{Key: headers[i].Key, Value: headers[i].Value})
		}
	}
	return to
}

// Headers gives dedup a record's headers without copying them.
type Headers []kgo.RecordHeader

// Header returns the first header of that name.
func (h *Headers) Header(name string) ([]byte, bool) {
	for i := range *h {
		if (*h)[i].Key == name {
			return (*h)[i].Value, true
		}
	}
	return nil, false
}

func InputOf(rec *kgo.Record) rules.Input {
	return rules.Input{
		Topic: rec.Topic, Key: rec.Key, Value: rec.Value,
		Headers:   (*Headers)(&rec.Headers),
		Timestamp: rec.Timestamp.UnixMilli(),
	}
}

// outcomeHeaderMax bounds what is kept of token and kind where they cannot be read: who
// made them up may have made them as long as a dead letter can be.
const outcomeHeaderMax = 256

// OutcomeHeaders returns token and kind of an outcome as they came.
func OutcomeHeaders(rec *kgo.Record) (said []kgo.RecordHeader) {
	for _, name := range [...]string{HeaderClaimToken, HeaderOutcome} {
		if value, ok := (*Headers)(&rec.Headers).Header(name); ok {
			said = append(said, kgo.RecordHeader{Key: name, Value: value[:min(len(value), outcomeHeaderMax)]})
		}
	}
	return said
}

// HeaderLease of a checkpoint row has the two times that leases run by beside
// those of the records, task.began and task.up: with them the log alone tells
// why a claim was claimed anew, or was not. Nobody goes on from them.
const HeaderLease = "oncebus-lease"

// HeaderReplyTo is a return address. On a raw record anybody may have written
// it: it decides where a verdict is told, and nothing else. Who is told one
// that is not theirs does not take it (question.tell).
const HeaderReplyTo = "oncebus-reply-to"

// Headers of a verdict beside those of replies. The last four stand for
// themselves and have no value.
const (
	headerSettled = "oncebus-has-outcome"     // the record carries an outcome
	headerPassed  = "oncebus-forwarded"       // the event went to the output
	headerWaits   = "oncebus-outcome-follows" // the outcome will be told too
	headerOmitted = "oncebus-omitted"         // the outcome's result is left out
)
