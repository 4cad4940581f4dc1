package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// UnreadableError is about a record of an internal topic that this build cannot read: oncebus did not
// write it, a newer build wrote it, or it is damaged. Such a record is no event, so it does not become
// a dead letter. Its partition waits until an operator decides to skip the record.
type UnreadableError struct {
	Offset int64  // offset of the record, or of the first record of a batch
	After  int64  // offset after an unreadable batch; 0 for a single record
	Record string // topic/partition/offset of the record
	Digest string // digest of key, value and headers, or what identifies the batch
	shown  string // the beginning of the record's bytes, escaped
	advice string // what an operator should do
	cause  error
}

// The advice about a record of an internal topic, and the advice about a batch with a wrong checksum.
const (
	foreignAdvice = "only oncebus may write this topic: find who wrote it, and revoke the right; if a later build of oncebus wrote it, run that build; else skip it"
	corruptAdvice = "each fetch brought the same bytes: the leader has damaged them on its disk or in its memory, and another replica may have them whole: make that one the leader, then decide: what is right by then is read, else it is skipped"
)

// Unreadable returns the error about a record that cannot be read because of cause.
func Unreadable(rec *kgo.Record, cause error) *UnreadableError {
	record := fmt.Sprintf("%s/%d/%d", rec.Topic, rec.Partition, rec.Offset)
	return &UnreadableError{Offset: rec.Offset, Record: record, Digest: DigestOf(rec), shown: showRecord(rec), advice: foreignAdvice, cause: cause}
}

// UnreadableBatch returns the error about a batch that was not decompressed. It stands for all records
// of the batch.
func UnreadableBatch(topic string, partition int32, first, last int64, cause error) *UnreadableError {
	return &UnreadableError{
		Offset: first, After: last + 1, Record: fmt.Sprintf("%s/%d/%d", topic, partition, first), Digest: fmt.Sprintf("batch up to %d", last),
		shown: fmt.Sprintf("the records at offsets %d to %d", first, last), advice: foreignAdvice, cause: cause,
	}
}

// CorruptBatch returns the error about a batch with a wrong checksum, in any topic. After stays 0, so that a
// reader reads the batch again before it skips it: the checksum may be right by then.
func CorruptBatch(topic string, partition int32, first, last int64, digest string, cause error) *UnreadableError {
	e := UnreadableBatch(topic, partition, first, last, cause)
	e.After, e.Digest, e.advice = 0, digest, corruptAdvice
	return e
}

// Is reports whether e and other are about the same record with the same bytes.
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

// DigestOf returns a digest of key, value and headers of a record.
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

// shownMax bounds how many bytes of a key, value or header an error text shows.
const shownMax = 48

// showRecord shows the beginning of a record's parts. It escapes them, because anybody may have written
// the record.
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
