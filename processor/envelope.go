package processor

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// envelopeHeader is the first header of every record of the repartition
// topic. The rest of the record is the original one, but for its timestamp:
// the broker stamps that topic itself, which gives every task a clock that
// stands in the log.
const envelopeHeader = "oncebus-envelope"

const envelopeVersion = 1

// envelope is what the router found out about a record.
type envelope struct {
	route     []byte // name: a number would change with the order of the file
	digest    dedup.Digest
	key       [32]byte
	eventTime int64 // ms
	timestamp int64 // the original record's, ms
	from      dedup.Position
}

// envelopeMaxBytes is the most that append needs beside the route's name.
const envelopeMaxBytes = 1 + 16 + 32 + 6*binary.MaxVarintLen64

var errEnvelope = errors.New("unreadable envelope")

func (e *envelope) append(dst []byte) []byte {
	dst = append(dst, envelopeVersion)
	dst = append(dst, e.digest[:]...)
	dst = append(dst, e.key[:]...)
	dst = binary.AppendVarint(dst, e.eventTime)
	dst = binary.AppendVarint(dst, e.timestamp)
	dst = binary.AppendUvarint(dst, uint64(e.from.Topic))
	dst = binary.AppendUvarint(dst, uint64(uint32(e.from.Partition)))
	dst = binary.AppendUvarint(dst, uint64(e.from.Offset))
	return append(dst, e.route...)
}

// readEnvelope decodes the envelope of a repartition record. Only a router
// writes that topic, so a record without one is our bug or a stranger's.
func readEnvelope(rec *kgo.Record, e *envelope) error {
	if len(rec.Headers) == 0 || rec.Headers[0].Key != envelopeHeader {
		return fmt.Errorf("%w: record %s/%d/%d has no %s header; only oncebus may write this topic",
			errEnvelope, rec.Topic, rec.Partition, rec.Offset, envelopeHeader)
	}
	if err := e.decode(rec.Headers[0].Value); err != nil {
		return fmt.Errorf("record %s/%d/%d: %w", rec.Topic, rec.Partition, rec.Offset, err)
	}
	return nil
}

func (e *envelope) decode(b []byte) error {
	const fixed = 1 + 16 + 32
	if len(b) < fixed {
		return fmt.Errorf("%w: %d bytes", errEnvelope, len(b))
	}
	if b[0] != envelopeVersion {
		return fmt.Errorf("%w: version %d, this build reads %d", errEnvelope, b[0], envelopeVersion)
	}
	copy(e.digest[:], b[1:17])
	copy(e.key[:], b[17:49])
	b = b[fixed:]
	var fields [5]uint64
	for i := range fields {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return fmt.Errorf("%w: cut short in field %d", errEnvelope, i)
		}
		fields[i], b = v, b[n:]
	}
	e.route = b
	if fields[2] > 1<<16-1 || fields[3] > 1<<31-1 || fields[4] > 1<<63-1 {
		return fmt.Errorf("%w: position out of range", errEnvelope)
	}
	e.eventTime, e.timestamp = unzigzag(fields[0]), unzigzag(fields[1])
	e.from = dedup.Position{Topic: uint16(fields[2]), Partition: int32(fields[3]), Offset: int64(fields[4])}
	return nil
}

// unzigzag undoes the zigzag form in which AppendVarint writes signed numbers.
func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }
