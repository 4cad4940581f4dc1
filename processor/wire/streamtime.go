package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// StreamTime is what a task knew about event time in a namespace, in another cluster.
type StreamTime struct {
	At int64 // ms
	// Changed reports that the window of the namespace had changed; Since and LateBefore are as in
	// KnownSince.
	Changed           bool
	Since, LateBefore int64
}

// Value returns the record value of a stream time: null, or Since and LateBefore as varints.
func (s *StreamTime) Value() []byte {
	if !s.Changed {
		return nil
	}
	return binary.AppendVarint(binary.AppendVarint(nil, s.Since), s.LateBefore)
}

// ReadStreamTime decodes the stream time in a record with this envelope.
func ReadStreamTime(rec *kgo.Record, e *Envelope) (StreamTime, error) {
	s := StreamTime{At: e.EventTime, Changed: rec.Value != nil}
	if !s.Changed {
		return s, nil
	}
	c := dedup.NewCursor(rec.Value)
	s.Since, s.LateBefore = c.Varint(), c.Varint()
	if !c.Done() {
		return s, fmt.Errorf("%w: a stream time with %d bytes in its value", errEnvelope, len(rec.Value))
	}
	return s, nil
}

// streamTimes has the stream time by namespace id. Each namespace has its own stream time, so that a
// backlog of one route does not make the events of another route late.
type streamTimes struct {
	At  [256]int64
	Has [256]bool
}

// Of returns the stream time of a namespace id in ms, or dedup.NoStreamTime.
func (s *streamTimes) Of(namespaceID uint8) int64 {
	if !s.Has[namespaceID] {
		return dedup.NoStreamTime
	}
	return s.At[namespaceID]
}

// append appends, for each namespace with a stream time: id 1, stream time varint.
func (s *streamTimes) append(dst []byte) []byte {
	for namespaceID, has := range s.Has {
		if has {
			dst = binary.AppendVarint(append(dst, byte(namespaceID)), s.At[namespaceID])
		}
	}
	return dst
}
