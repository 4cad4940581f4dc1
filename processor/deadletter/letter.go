package deadletter

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// Position names a record of a topic.
type Position struct {
	Topic     string
	Partition int32
	Offset    int64
}

// String returns topic/partition/offset.
func (p Position) String() string { return fmt.Sprintf("%s/%d/%d", p.Topic, p.Partition, p.Offset) }

// MarshalText implements encoding.TextMarshaler.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// IsSet reports whether p names a record.
func (p Position) IsSet() bool { return p.Topic != "" }

// ParsePosition reads topic/partition/offset.
func ParsePosition(s string) (Position, error) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 || parts[0] == "" {
		return Position{}, fmt.Errorf("%q is no position, want TOPIC/PARTITION/OFFSET", s)
	}
	partition, err := strconv.ParseInt(parts[1], 10, 32)
	offset, errOffset := strconv.ParseInt(parts[2], 10, 64)
	if err := errors.Join(err, errOffset); err != nil || partition < 0 || offset < 0 {
		return Position{}, fmt.Errorf("%q is no position, want TOPIC/PARTITION/OFFSET with numbers from 0", s)
	}
	return Position{parts[0], int32(partition), offset}, nil
}

// Class groups dead letters by the kind of their reason. The text of a reason cannot be used for that, because
// it contains positions and times.
type Class string

// The classes. Each of the first five stands for a verdict.
const (
	MissingKey Class = "missing_key"
	Late       Class = "late"
	Limited    Class = "limited"
	Collision  Class = "collision"
	Invalid    Class = "invalid"   // the event could not be read
	Future     Class = "future"    // the event time is too far ahead
	TooLarge   Class = "too_large" // the record is too large for a topic
	Refused    Class = "refused"   // a topic refused the record, but not because of its size
	Outcome    Class = "outcome"   // an outcome of an executor that was refused
	Reply      Class = "reply"     // a reply that its topic refused; the event itself was processed
	Answer     Class = "answer"    // an answer that its topic refused
	Batch      Class = "batch"     // a batch that the app did not decompress
	Foreign    Class = "foreign"   // not written by oncebus
)

// Classes lists all classes.
var Classes = []Class{MissingKey, Late, Limited, Collision, Invalid, Future, TooLarge, Refused, Outcome, Reply, Answer, Batch, Foreign}

// Letter is a dead letter.
type Letter struct {
	At      Position
	Record  *kgo.Record // the record in the dead-letter topic
	Route   string
	Verdict string
	Reason  string
	Class   Class
	Key     string // the dedup key, 64 hex digits; "" if none could be derived
	// Origin is the position of the record that became the dead letter. If the event came by HTTP, that record
	// is in the repartition topic.
	Origin Position
	// Last is the last offset of the batch that begins at Origin; 0 if the dead letter is about a single
	// record.
	Last int64
	// Attempt is how often the record was redriven so far.
	Attempt int
	// Time is in Unix ms: the timestamp of the original if TimeKnown, otherwise the timestamp of the dead
	// letter.
	Time      int64
	TimeKnown bool
	// Size (bytes) and Hash (SHA-256 in hexadecimal digits) describe the original's value if the dead letter is
	// only a pointer, which means that it does not contain the whole original.
	Size int64
	Hash string
}

// IsPointer reports whether the dead letter does not contain the whole original.
func (l *Letter) IsPointer() bool { return l.Hash != "" }

// Read parses a record of a dead-letter topic. The class is Foreign if oncebus did not write the record.
func Read(rec *kgo.Record) *Letter {
	l := &Letter{At: Position{rec.Topic, rec.Partition, rec.Offset}, Record: rec, Class: Foreign, Time: rec.Timestamp.UnixMilli()}
	own := wire.Headers(rec.Headers[ownFrom(rec.Headers):])
	text := func(name string) string {
		value, _ := own.Header(name)
		return string(value)
	}
	l.Route, l.Verdict, l.Reason, l.Key = text(wire.HeaderRoute), text(wire.HeaderVerdict), text(wire.HeaderReason), text(wire.HeaderKey)
	origin, err := ParsePosition(text(wire.HeaderSource))
	if l.Route == "" || l.Reason == "" || err != nil {
		return l
	}
	l.Origin, l.Hash = origin, text(wire.HeaderValueHash)
	for i := range own {
		if attempt, ok := wire.RedriveAttempt(&own[i]); ok {
			l.Attempt = attempt
		}
	}
	if last, err := ParsePosition(text(wire.HeaderBatchLast)); err == nil {
		l.Last = last.Offset
	}
	l.Size, _ = strconv.ParseInt(text(wire.HeaderValueSize), 10, 64) // 0 unless the dead letter is a pointer
	l.readTime(text)
	l.Class = classOf(l)
	return l
}

// readTime finds the timestamp of the original. A dead letter that is not a pointer has the timestamp of the
// original, unless the broker has replaced it.
func (l *Letter) readTime(text func(string) string) {
	name := ""
	switch {
	case l.IsPointer():
		name = wire.HeaderTimestamp
	case l.Record.Attrs.TimestampType() != kafka.TimestampAppend:
		l.TimeKnown = true
		return
	case text(wire.HeaderFirst) == text(wire.HeaderSource): // the original is itself the first event
		name = wire.HeaderFirstTime
	}
	if at, err := strconv.ParseInt(text(name), 10, 64); err == nil {
		l.Time, l.TimeKnown = at, true
	}
}

// ownFrom returns the index of the first header that oncebus has added. All headers before it come from the
// original, because oncebus removes the original's headers with its own prefix and then appends its headers.
func ownFrom(headers []kgo.RecordHeader) int {
	for i := range headers {
		if wire.IsReserved(headers[i].Key) {
			return i
		}
	}
	return len(headers)
}

// classOf returns the class of a dead letter, from its reason and its verdict.
func classOf(l *Letter) Class {
	switch {
	case strings.HasPrefix(l.Reason, wire.ReasonBatch):
		return Batch
	case strings.HasPrefix(l.Reason, wire.ReasonOutcome):
		return Outcome
	case strings.HasPrefix(l.Reason, wire.ReasonReply):
		return Reply
	case strings.HasPrefix(l.Reason, wire.ReasonAnswer):
		return Answer
	}
	switch l.Verdict {
	case dedup.MissingKey.String():
		return MissingKey
	case dedup.Late.String():
		return Late
	case dedup.Limited.String():
		return Limited
	case dedup.Collision.String():
		return Collision
	}
	switch {
	case strings.HasPrefix(l.Reason, wire.ReasonTooLarge):
		return TooLarge
	case strings.HasPrefix(l.Reason, "event time "):
		return Future
	case strings.HasPrefix(l.Reason, wire.ReasonRefused), strings.HasPrefix(l.Reason, "timestamp "), strings.HasPrefix(l.Reason, "no record key: topic "):
		return Refused
	}
	return Invalid
}
