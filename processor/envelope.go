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

// The versions of an envelope. A router that is newer than a task of an older
// build must not be misread by it, so what not every record has is a version of
// its own.
const (
	envelopeVersion        = 1
	detailedVersion        = 2 // fingerprint, request id, neighbours
	outcomeEnvelopeVersion = 3
	addressedVersion       = 4 // return address, who wrote it; then perhaps details and the order's shift
)

// envelope is what the router found out about a record.
type envelope struct {
	route     []byte // name: a number would change with the order of the file
	digest    dedup.Digest
	key       [32]byte
	eventTime int64 // ms
	timestamp int64 // the original record's, ms
	from      dedup.Position

	details
	outcome *outcomeEnvelope // of an outcome; it has route, timestamp and from besides

	ask dedup.Address // where the verdict is told; zero for nowhere
	// here says that a front wrote the record: it came by no other topic, and
	// from is where it stands itself.
	here bool
}

// details are what only some routes ask for.
type details struct {
	fingerprint uint64
	request     string // the sender's own id; "" for none
	near        [2]dedup.Digest
	hasNear     bool
	shift       int64 // see dedup.Derived
}

func detailsOf(d *dedup.Derived) details {
	return details{fingerprint: d.Fingerprint, request: d.Request, near: d.Near, hasNear: d.HasNear, shift: d.Shift}
}

func (d *details) any() bool { return d.fingerprint != 0 || d.request != "" || d.hasNear }

// outcomeEnvelope is what the router read of an outcome.
type outcomeEnvelope struct {
	kind  dedup.OutcomeKind
	token dedup.Token
}

// headers are token and kind as they came.
func (o *outcomeEnvelope) headers() []kgo.RecordHeader {
	return []kgo.RecordHeader{{Key: headerClaimToken, Value: o.token.Append(nil)}, {Key: headerOutcome, Value: []byte(o.kind.String())}}
}

// size is at least what append needs.
func (e *envelope) size() int {
	n := 1 + 16 + 32 + 6*binary.MaxVarintLen64 + len(e.route)
	if e.details.any() {
		n += 8 + 1 + 2*16 + binary.MaxVarintLen64 + len(e.request)
	}
	if e.addressed() {
		n += 1 + dedup.AddressBytesMax + binary.MaxVarintLen64
	}
	if e.outcome != nil {
		n += 2 + dedup.TokenBytesMax
	}
	return n
}

func (e *envelope) addressed() bool { return e.here || e.ask.Asked() || e.shift != 0 }

var errEnvelope = errors.New("unreadable envelope")

func (e *envelope) append(dst []byte) []byte {
	version := byte(envelopeVersion)
	switch {
	case e.outcome != nil:
		version = outcomeEnvelopeVersion
	case e.addressed():
		version = addressedVersion
	case e.details.any():
		version = detailedVersion
	}
	dst = append(dst, version)
	dst = append(dst, e.digest[:]...)
	dst = append(dst, e.key[:]...)
	dst = binary.AppendVarint(dst, e.eventTime)
	dst = binary.AppendVarint(dst, e.timestamp)
	dst = binary.AppendUvarint(dst, uint64(e.from.Topic))
	dst = binary.AppendUvarint(dst, uint64(uint32(e.from.Partition)))
	dst = binary.AppendUvarint(dst, uint64(e.from.Offset))
	switch version {
	case outcomeEnvelopeVersion:
		dst = append(dst, byte(e.outcome.kind), 0)
		mark := len(dst)
		dst = e.outcome.token.Append(dst)
		dst[mark-1] = byte(len(dst) - mark)
	case detailedVersion:
		dst = e.details.append(dst)
	case addressedVersion:
		dst = e.appendAddressed(dst)
	}
	return append(dst, e.route...)
}

// Flags of an addressed envelope.
const (
	flagAsked = 1 << iota
	flagHere
	flagDetails
	flagShift
	flagsKnown = flagAsked | flagHere | flagDetails | flagShift
)

// appendAddressed: flags 1 | [address] | [details] | [shift varint].
func (e *envelope) appendAddressed(dst []byte) []byte {
	mark := len(dst)
	dst = append(dst, 0)
	if e.ask.Asked() {
		dst[mark] |= flagAsked
		dst = e.ask.Append(dst)
	}
	if e.here {
		dst[mark] |= flagHere
	}
	if e.details.any() {
		dst[mark] |= flagDetails
		dst = e.details.append(dst)
	}
	if e.shift != 0 {
		dst[mark] |= flagShift
		dst = binary.AppendVarint(dst, e.shift)
	}
	return dst
}

// decodeAddressed reads what appendAddressed wrote and returns what follows it.
func (e *envelope) decodeAddressed(b []byte) ([]byte, error) {
	if len(b) == 0 || b[0]&^flagsKnown != 0 {
		return nil, fmt.Errorf("%w: cut short in the flags, or unknown ones", errEnvelope)
	}
	flags := b[0]
	b = b[1:]
	if flags&flagAsked != 0 {
		var ok bool
		if e.ask, b, ok = dedup.DecodeAddress(b); !ok {
			return nil, fmt.Errorf("%w: cut short in the return address", errEnvelope)
		}
	}
	e.here = flags&flagHere != 0
	if flags&flagDetails != 0 {
		var err error
		if b, err = e.details.decode(b); err != nil {
			return nil, err
		}
	}
	if flags&flagShift != 0 {
		var n int
		if e.shift, n = binary.Varint(b); n <= 0 {
			return nil, fmt.Errorf("%w: cut short in the shift", errEnvelope)
		}
		b = b[n:]
	}
	return b, nil
}

// append: fingerprint 8 | 0, or 1 and the neighbours 32 | length of the request
// id uvarint | request id.
func (d *details) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, d.fingerprint)
	if d.hasNear {
		dst = append(append(append(dst, 1), d.near[0][:]...), d.near[1][:]...)
	} else {
		dst = append(dst, 0)
	}
	dst = binary.AppendUvarint(dst, uint64(len(d.request)))
	return append(dst, d.request...)
}

// decode reads what append wrote and returns what follows it.
func (d *details) decode(b []byte) ([]byte, error) {
	cut := fmt.Errorf("%w: cut short in the details", errEnvelope)
	if len(b) < 9 {
		return nil, cut
	}
	d.fingerprint = binary.LittleEndian.Uint64(b)
	d.hasNear, b = b[8] == 1, b[9:]
	if d.hasNear {
		if len(b) < 32 {
			return nil, cut
		}
		copy(d.near[0][:], b)
		copy(d.near[1][:], b[16:])
		b = b[32:]
	}
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, cut
	}
	b = b[n:]
	d.request = string(b[:size])
	return b[size:], nil
}

func (o *outcomeEnvelope) decode(b []byte) (rest []byte, err error) {
	if len(b) < 2 || len(b) < 2+int(b[1]) {
		return nil, fmt.Errorf("%w: cut short in the outcome", errEnvelope)
	}
	if _, ok := dedup.ParseOutcomeKind([]byte(dedup.OutcomeKind(b[0]).String())); !ok {
		return nil, fmt.Errorf("%w: outcome %d", errEnvelope, b[0])
	}
	o.kind = dedup.OutcomeKind(b[0])
	if o.token, err = dedup.ParseToken(b[2 : 2+int(b[1])]); err != nil {
		return nil, fmt.Errorf("%w: %w", errEnvelope, err)
	}
	return b[2+int(b[1]):], nil
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
	version := b[0]
	if version < envelopeVersion || version > addressedVersion {
		return fmt.Errorf("%w: version %d, this build reads %d to %d", errEnvelope, version, envelopeVersion, addressedVersion)
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
	e.details, e.outcome, e.ask, e.here = details{}, nil, dedup.Address{}, false
	var err error
	switch version {
	case detailedVersion:
		b, err = e.details.decode(b)
	case outcomeEnvelopeVersion:
		e.outcome = new(outcomeEnvelope)
		b, err = e.outcome.decode(b)
	case addressedVersion:
		b, err = e.decodeAddressed(b)
	}
	if err != nil {
		return err
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
