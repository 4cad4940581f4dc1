package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// An UnreadableError is about a record of an internal topic that this build cannot read: it
// is not ours, of a newer build, or damaged. It is no event, so it is no dead letter either.
// Its partition waits until an operator skips the record.
type UnreadableError struct {
	Offset int64  // of the record
	After  int64  // of the record or batch after it; 0 for that of a record
	Record string // its topic/partition/offset
	Digest string // of all that it has
	shown  string // the beginning of its bytes, escaped
	advice string // what an operator is to do
	cause  error
}

// The advice about a record of an internal topic, and about a batch with a wrong checksum.
const (
	foreignAdvice = "only oncebus may write this topic: find who wrote it, and revoke the right; if a later build of oncebus wrote it, run that build; else skip it"
	corruptAdvice = "each fetch brought the same bytes: the leader has damaged them on its disk or in its memory, and another replica may have them whole: make that one the leader, then decide: what is right by then is read, else it is skipped"
)

// Unreadable returns the error about a record that was not read because of cause.
func Unreadable(rec *kgo.Record, cause error) *UnreadableError {
	record := fmt.Sprintf("%s/%d/%d", rec.Topic, rec.Partition, rec.Offset)
	return &UnreadableError{Offset: rec.Offset, Record: record, Digest: DigestOf(rec), shown: showRecord(rec), advice: foreignAdvice, cause: cause}
}

// UnreadableBatch returns the error about a batch that was not decompressed. It stands for its
// records.
func UnreadableBatch(topic string, partition int32, first, last int64, cause error) *UnreadableError {
	return &UnreadableError{
		Offset: first, After: last + 1, Record: fmt.Sprintf("%s/%d/%d", topic, partition, first), Digest: fmt.Sprintf("batch up to %d", last),
		shown: fmt.Sprintf("the records at offsets %d to %d", first, last), advice: foreignAdvice, cause: cause,
	}
}

// CorruptBatch returns the error about a batch with a wrong checksum, in any topic. It says nothing
// about where to go on without a look: the batch may be right by then.
func CorruptBatch(topic string, partition int32, first, last int64, digest string, cause error) *UnreadableError {
	e := UnreadableBatch(topic, partition, first, last, cause)
	e.After, e.Digest, e.advice = 0, digest, corruptAdvice
	return e
}

// Is reports whether e is about the same record, with the same bytes.
func (e *UnreadableError) Is(other error) bool {
	o, ok := other.(*UnreadableError)
	return ok && o != nil && e.Record == o.Record && e.Digest == o.Digest
}

// Error implements error.
func (e *UnreadableError) Error() string {
	return fmt.Sprintf("record %s: %v; it has %s; %s", e.Record, e.cause, e.shown, e.advice)
}

// Unwrap returns why the record was not read.
func (e *UnreadableError) Unwrap() error { return e.cause }

// DigestOf returns a digest of all that a record has.
func DigestOf(rec *kgo.Record) string {
	h := sha256.New()
	part := func(b []byte) { _, _ = fmt.Fprintf(h, "%d,%t,%s", len(b), b == nil, b) } // a hash returns no error
	part(rec.Key)
	part(rec.Value)
	for i := range rec.Headers {
		part([]byte(rec.Headers[i].Key))
		part(rec.Headers[i].Value)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// shownMax bounds how many bytes of a key, a value or a header are shown.
const shownMax = 48

// showRecord shows the beginning of a record's parts, escaped, because anybody may have chosen
// them.
func showRecord(rec *kgo.Record) string {
	text := fmt.Sprintf("key %s, value %s, %d headers", showBytes(rec.Key), showBytes(rec.Value), len(rec.Headers))
	if len(rec.Headers) > 0 {
		text += ", the first " + showBytes([]byte(rec.Headers[0].Key)) + ": " + showBytes(rec.Headers[0].Value)
	}
	text += ", timestamp " + rec.Timestamp.UTC().Format(time.RFC3339)
	if rec.ProducerID >= 0 {
		text += ", producer id " + strconv.FormatInt(rec.ProducerID, 10)
	}
	return text
}

func showBytes(b []byte) string {
	switch {
	case b == nil:
		return "null"
	case len(b) > shownMax:
		return fmt.Sprintf("%s... (%d bytes)", strconv.QuoteToASCII(string(b[:shownMax])), len(b))
	}
	return strconv.QuoteToASCII(string(b))
}
