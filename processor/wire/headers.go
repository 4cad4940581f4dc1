package wire

import (
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// The headers that oncebus adds. Each comment names the records and the value; a test
// generates HEADERS.md from them.
const (
	// every record; unique events of plain routes only if the route asks: the name of
	// its route
	HeaderRoute = "oncebus-route"
	// every record with a key, and dead letters of outcomes whose claim exists; unique
	// events of plain routes only if the route asks: the dedup key, 64 hex digits
	HeaderKey = "oncebus-key"
	// every record; unique events of plain routes only if the route asks: the verdict
	HeaderVerdict = "oncebus-verdict"
	// duplicates, dead letters, events that were not judged, replies without a
	// claim or without their result: why, in words
	HeaderReason = "oncebus-reason"
	// as oncebus-reason: topic/partition/offset of the first record of the key;
	// for an outcome, of the event that claimed the key; of the record itself if
	// the key has no first record
	HeaderFirst = "oncebus-first"
	// as oncebus-reason: event time of that record, in ms
	HeaderFirstTime = "oncebus-first-time"
	// as oncebus-reason, and replies: topic/partition/offset of the record itself;
	// of a reply, of the event that it replies to
	HeaderSource = "oncebus-source"
	// dead letters that did not fit whole: timestamp of the original, in ms
	HeaderTimestamp = "oncebus-timestamp"
	// dead letters that did not fit whole: SHA-256 of the original's value
	HeaderValueHash = "oncebus-value-sha256"
	// dead letters that did not fit whole: size of the original's value
	HeaderValueSize = "oncebus-value-bytes"
	// dead letters of batches that were not decompressed, and replies to them:
	// topic/partition/offset of the batch's last record; oncebus-source is its
	// first
	HeaderBatchLast = "oncebus-batch-last"

	// records that oncebus dead-letters redrive produced, and their dead letters: how
	// often the record was redriven; any producer can forge it, so it only ends loops
	HeaderRedriveAttempt = "oncebus-redrive-attempt"

	// output in claim mode, answers, and dead letters of outcomes: token of the
	// attempt, for its outcome; of a dead letter as the outcome had it, at most 256 bytes
	HeaderClaimToken = "oncebus-claim-token"
	// output in claim mode, replies and answers: how often the key was claimed; 0 in
	// a reply without a claim
	HeaderAttempt = "oncebus-attempt"
	// outcomes, answers to a question, and dead letters of outcomes: kind of the outcome,
	// from the executor; of a dead letter at most 256 bytes
	HeaderOutcome = "oncebus-outcome"
	// replies: in_progress, submitted, completed, failed, rejected or erased;
	// bypassed or forwarded if an event went to the output without a claim; no
	// header if the event has no claim and went elsewhere
	HeaderClaimStatus = "oncebus-claim-status"
	// replies: the sender's id of the request that gets the reply
	HeaderRequestID = "oncebus-request-id"
	// replies: the sender's id of the request whose event made the attempt: the first, or
	// the one that took the claim over
	HeaderFirstRequest = "oncebus-first-request"
	// outcomes start and renew, and their answers: name of the executor that asks, 1
	// to 128 bytes; required for start
	HeaderStartID = "oncebus-start-id"
	// answers: granted, or superseded; superseded without oncebus-outcome is the answer to no question
	HeaderAnswer = "oncebus-answer"
	// answers: the start id to which the current attempt was granted
	HeaderStartedBy = "oncebus-started-by"

	headerPrefix = "oncebus-"
)

// The headers with which Kafka Connect describes a dead letter, for tools that read those. They
// come after the headers of oncebus. Numbers are decimal digits, as in Connect.
const (
	// dead letters with `ONCEBUS_DEAD_LETTER_CONNECT_HEADERS`: topic of the record itself
	HeaderConnectTopic = "__connect.errors.topic"
	// dead letters with `ONCEBUS_DEAD_LETTER_CONNECT_HEADERS`: its partition
	HeaderConnectPartition = "__connect.errors.partition"
	// dead letters with `ONCEBUS_DEAD_LETTER_CONNECT_HEADERS`: its offset
	HeaderConnectOffset = "__connect.errors.offset"
	// dead letters with `ONCEBUS_DEAD_LETTER_CONNECT_HEADERS`: `oncebus.` and the verdict
	HeaderConnectException = "__connect.errors.exception.class.name"
	// dead letters with `ONCEBUS_DEAD_LETTER_CONNECT_HEADERS`: the reason
	HeaderConnectMessage = "__connect.errors.exception.message"
)

// PartitionByDigest returns the number from which the partitioner computes the partition of a record
// without a record key. All records of a dedup key thus go to the same partition.
func PartitionByDigest(d *dedup.Digest) int32 { return int32(binary.BigEndian.Uint32(d[:4])) }

// KeyText returns a dedup key as 64 hex digits.
func KeyText(key *[32]byte) string { return hex.EncodeToString(key[:]) }

// IsReserved reports whether a header name starts with oncebus-, in any case.
func IsReserved(name string) bool {
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

// RecordOverhead is the size in bytes of a batch header plus the length fields of one record.
const RecordOverhead = 61 + 40

// The beginnings of the reasons in dead letters. They tell a reader of the topic which kind of dead
// letter it is.
const (
	// ReasonQuota begins the reason of an event whose tenant is over its quota.
	ReasonQuota = "quota: "
	// ReasonTooLarge begins the reason of an event that is too large for a topic.
	ReasonTooLarge = "too large for topic "
	// ReasonRefused begins the reason of an event that a broker rejected.
	ReasonRefused = "refused by topic "
	// ReasonOutcome begins the reason of an outcome that was refused.
	ReasonOutcome = "outcome refused: "
	// ReasonReply begins the reason of a reply that its topic rejected. The dead letter has the value
	// of the reply; the event itself was processed.
	ReasonReply = "reply "
	// ReasonAnswer begins the reason of an answer that its topic rejected.
	ReasonAnswer = "answer "
	// ReasonBatch begins the reason of a batch that was not decompressed.
	ReasonBatch = "the batch of offsets "
)

// redriveAttemptDigits bounds the length of HeaderRedriveAttempt, so that no producer can enlarge dead
// letters with it.
const redriveAttemptDigits = 6

// RedriveAttempt returns how often a record was redriven, from the header h; ok is false if h is
// another header or has a value that redrive does not write.
func RedriveAttempt(h *kgo.RecordHeader) (attempt int, ok bool) {
	if h.Key != HeaderRedriveAttempt || len(h.Value) == 0 || len(h.Value) > redriveAttemptDigits {
		return 0, false
	}
	for _, c := range h.Value {
		if c < '0' || c > '9' {
			return 0, false
		}
		attempt = 10*attempt + int(c-'0')
	}
	return attempt, true
}

// RecordBytes returns an upper bound for the size of a record in an uncompressed batch of its own.
func RecordBytes(r *kgo.Record) int {
	n := RecordOverhead + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value) + 10
	}
	return n
}

// AppendForeign appends those headers that do not have the prefix oncebus-.
func AppendForeign(to []kgo.RecordHeader, headers []dedup.Header) []kgo.RecordHeader {
	for i := range headers {
		if !IsReserved(headers[i].Key) {
			to = append(to, kgo.RecordHeader{Key: headers[i].Key, Value: headers[i].Value})
		}
	}
	return to
}

// Headers implements rules.HeaderSource for a record's headers.
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

// Own returns the first oncebus header of that name; if there is none, the first header whose name
// differs only in letter case. Executors may copy the names from HTTP, where header names have no case.
// Other headers need the exact name, as always in Kafka.
func (h *Headers) Own(name string) ([]byte, bool) {
	if value, ok := h.Header(name); ok {
		return value, true
	}
	for i := range *h {
		if strings.EqualFold((*h)[i].Key, name) {
			return (*h)[i].Value, true
		}
	}
	return nil, false
}

// InputOf returns a raw record as the input of key derivation. The input shares the record's memory.
func InputOf(rec *kgo.Record) (in rules.Input) {
	SetInput(&in, rec)
	return in
}

// SetInput is InputOf into an existing input. It sets field by field: to copy the whole input to the
// heap is expensive while a garbage collection is in progress.
func SetInput(in *rules.Input, rec *kgo.Record) {
	in.Topic, in.Key, in.Value = rec.Topic, rec.Key, rec.Value
	in.Headers = (*Headers)(&rec.Headers)
	in.Timestamp = rec.Timestamp.UnixMilli()
}

// OutcomeHeaderMax is the largest number of bytes of an invalid token or kind in a dead letter: a
// producer may send a token as long as the whole record.
const OutcomeHeaderMax = 256

// OutcomeHeaders returns the token, kind and start id headers of an outcome, each shortened to
// OutcomeHeaderMax bytes.
func OutcomeHeaders(rec *kgo.Record) (headers []kgo.RecordHeader) {
	for _, name := range [...]string{HeaderClaimToken, HeaderOutcome, HeaderStartID} {
		if value, ok := (*Headers)(&rec.Headers).Own(name); ok {
			headers = append(headers, kgo.RecordHeader{Key: name, Value: value[:min(len(value), OutcomeHeaderMax)]})
		}
	}
	return headers
}

// HeaderLease of a checkpoint row has the two broker times on which leases depend, in addition to the
// times of the records. Programs that read the log recompute with them when leases ended; oncebus never
// reads them.
const HeaderLease = "oncebus-lease" // internal, checkpoints of the changelog: the two broker times that leases depend on, in addition to those of the records; for readers of the log only

// HeaderSweep marks a row that a sweep wrote again. oncebus never reads the header.
const HeaderSweep = "oncebus-sweep" // internal, rows of the changelog: the row was written again, unchanged, so that an older part of the changelog can be deleted; for readers of the log only

// HeaderReplyTo is a return address. Any producer of a raw topic can forge it, so it only selects who
// receives a verdict. An ingress ignores a verdict on another key.
const HeaderReplyTo = "oncebus-reply-to" // internal, raw topics, output events without a key whose sender waits for the outcome, outcomes topics, repartition topic, verdicts: address of the request that waits for the verdict, or for the outcome

// Headers that only a verdict record has. They are flags without a value.
const (
	// internal, verdicts: the record carries an outcome
	headerHasOutcome = "oncebus-has-outcome"
	// internal, verdicts: the event went to the output
	headerForwarded = "oncebus-forwarded"
	// internal, verdicts: the outcome will be sent too
	headerOutcomeFollows = "oncebus-outcome-follows"
	// internal, verdicts: the outcome's result is left out
	headerOmitted = "oncebus-omitted"
)
