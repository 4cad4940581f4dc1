package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// EnvelopeHeader is the first header of every record of the repartition topic. The
// rest of the record is the original one, except for its timestamp: the broker sets
// it, so that a replay reads the same broker time.
const EnvelopeHeader = "oncebus-envelope" // internal, repartition topic: what the router derived from the record, and its original timestamp

// The versions of an envelope. Optional fields raise the version, so that older
// builds refuse the record.
const (
	EnvelopeVersion        = 1
	detailedVersion        = 2 // fingerprint, request id, adjacent digests
	outcomeEnvelopeVersion = 3
	addressedVersion       = 4 // return address, whether the ingress wrote it, optional details and shift
)

// Envelope is what the router, or the ingress, derived from a record.
type Envelope struct {
	Route     []byte // name: a number would change with the order of the file
	Digest    dedup.Digest
	Key       [32]byte
	EventTime int64 // ms
	Timestamp int64 // the original record's, ms
	From      dedup.Position

	Details
	Outcome *OutcomeEnvelope // of an outcome, which also has Route, Timestamp and From; nil for an event

	ReplyTo dedup.Address // where the verdict is sent; zero for nowhere
	// FromIngress says that the ingress wrote the record: it has no raw record,
	// and From is its own position.
	FromIngress bool
}

// Details are the fields that only some routes need.
type Details struct {
	Fingerprint uint64
	Request     string // the client's id; "" for none
	Adjacent    [2]dedup.Digest
	HasAdjacent bool
	Shift       int64 // see rules.Derived
}

// DetailsOf returns the details of a derived key.
func DetailsOf(d *rules.Derived) Details {
	return Details{Fingerprint: d.Fingerprint, Request: d.Request, Adjacent: d.Near, HasAdjacent: d.HasNear, Shift: d.Shift}
}

func (d *Details) any() bool { return d.Fingerprint != 0 || d.Request != "" || d.HasAdjacent }

// OutcomeEnvelope is what the router read from an outcome.
type OutcomeEnvelope struct {
	Kind  dedup.OutcomeKind
	Token dedup.Token
}

// Headers returns token and kind as headers.
func (o *OutcomeEnvelope) Headers() []kgo.RecordHeader {
	return []kgo.RecordHeader{{Key: HeaderClaimToken, Value: o.Token.Append(nil)}, {Key: HeaderOutcome, Value: []byte(o.Kind.String())}}
}

// Size returns an upper bound of the bytes that Append appends.
func (e *Envelope) Size() int {
	n := 1 + 16 + 32 + 6*binary.MaxVarintLen64 + len(e.Route)
	if e.Details.any() {
		n += 8 + 1 + 2*16 + binary.MaxVarintLen64 + len(e.Request)
	}
	if e.addressed() {
		n += 1 + dedup.AddressBytesMax + binary.MaxVarintLen64
	}
	if e.Outcome != nil {
		n += 2 + dedup.TokenBytesMax
	}
	return n
}

func (e *Envelope) addressed() bool { return e.FromIngress || e.ReplyTo.Asked() || e.Shift != 0 }

var errEnvelope = errors.New("unreadable envelope")

// Append appends the encoded envelope to dst.
func (e *Envelope) Append(dst []byte) []byte {
	version := byte(EnvelopeVersion)
	switch {
	case e.Outcome != nil:
		version = outcomeEnvelopeVersion
	case e.addressed():
		version = addressedVersion
	case e.Details.any():
		version = detailedVersion
	}
	dst = append(dst, version)
	dst = append(dst, e.Digest[:]...)
	dst = append(dst, e.Key[:]...)
	dst = binary.AppendVarint(dst, e.EventTime)
	dst = binary.AppendVarint(dst, e.Timestamp)
	dst = binary.AppendUvarint(dst, uint64(e.From.Topic))
	dst = binary.AppendUvarint(dst, uint64(uint32(e.From.Partition)))
	dst = binary.AppendUvarint(dst, uint64(e.From.Offset))
	switch version {
	case outcomeEnvelopeVersion:
		dst = append(dst, byte(e.Outcome.Kind), 0)
		mark := len(dst)
		dst = e.Outcome.Token.Append(dst)
		dst[mark-1] = byte(len(dst) - mark)
	case detailedVersion:
		dst = e.Details.append(dst)
	case addressedVersion:
		dst = e.appendAddressed(dst)
	}
	return append(dst, e.Route...)
}

// Flags of an addressed envelope.
const (
	flagReplyTo = 1 << iota
	flagFromIngress
	flagDetails
	flagShift
	flagsKnown = flagReplyTo | flagFromIngress | flagDetails | flagShift
)

// appendAddressed appends flags 1 | [address] | [details] | [shift varint].
func (e *Envelope) appendAddressed(dst []byte) []byte {
	mark := len(dst)
	dst = append(dst, 0)
	if e.ReplyTo.Asked() {
		dst[mark] |= flagReplyTo
		dst = e.ReplyTo.Append(dst)
	}
	if e.FromIngress {
		dst[mark] |= flagFromIngress
	}
	if e.Details.any() {
		dst[mark] |= flagDetails
		dst = e.Details.append(dst)
	}
	if e.Shift != 0 {
		dst[mark] |= flagShift
		dst = binary.AppendVarint(dst, e.Shift)
	}
	return dst
}

// decodeAddressed decodes what appendAddressed wrote, and returns the bytes after it.
func (e *Envelope) decodeAddressed(b []byte) ([]byte, error) {
	if len(b) == 0 || b[0]&^flagsKnown != 0 {
		return nil, fmt.Errorf("%w: cut short in the flags, or an unknown flag", errEnvelope)
	}
	flags := b[0]
	b = b[1:]
	if flags&flagReplyTo != 0 {
		var ok bool
		if e.ReplyTo, b, ok = dedup.DecodeAddress(b); !ok {
			return nil, fmt.Errorf("%w: cut short in the return address", errEnvelope)
		}
	}
	e.FromIngress = flags&flagFromIngress != 0
	if flags&flagDetails != 0 {
		var err error
		if b, err = e.Details.decode(b); err != nil {
			return nil, err
		}
	}
	if flags&flagShift != 0 {
		var n int
		if e.Shift, n = binary.Varint(b); n <= 0 {
			return nil, fmt.Errorf("%w: cut short in the shift", errEnvelope)
		}
		b = b[n:]
	}
	return b, nil
}

// append appends fingerprint 8 | 0, or 1 and the adjacent digests 32 | length of the
// request id uvarint | request id.
func (d *Details) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, d.Fingerprint)
	if d.HasAdjacent {
		dst = append(append(append(dst, 1), d.Adjacent[0][:]...), d.Adjacent[1][:]...)
	} else {
		dst = append(dst, 0)
	}
	dst = binary.AppendUvarint(dst, uint64(len(d.Request)))
	return append(dst, d.Request...)
}

// decode decodes what append wrote, and returns the bytes after it.
func (d *Details) decode(b []byte) ([]byte, error) {
	cut := fmt.Errorf("%w: cut short in the details", errEnvelope)
	if len(b) < 9 {
		return nil, cut
	}
	d.Fingerprint = binary.LittleEndian.Uint64(b)
	d.HasAdjacent, b = b[8] == 1, b[9:]
	if d.HasAdjacent {
		if len(b) < 32 {
			return nil, cut
		}
		copy(d.Adjacent[0][:], b)
		copy(d.Adjacent[1][:], b[16:])
		b = b[32:]
	}
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, cut
	}
	b = b[n:]
	d.Request = string(b[:size])
	return b[size:], nil
}

func (o *OutcomeEnvelope) decode(b []byte) (rest []byte, err error) {
	if len(b) < 2 || len(b) < 2+int(b[1]) {
		return nil, fmt.Errorf("%w: cut short in the outcome", errEnvelope)
	}
	if _, ok := dedup.ParseOutcomeKind([]byte(dedup.OutcomeKind(b[0]).String())); !ok {
		return nil, fmt.Errorf("%w: outcome %d", errEnvelope, b[0])
	}
	o.Kind = dedup.OutcomeKind(b[0])
	if o.Token, err = dedup.ParseToken(b[2 : 2+int(b[1])]); err != nil {
		return nil, fmt.Errorf("%w: %w", errEnvelope, err)
	}
	return b[2+int(b[1]):], nil
}

// ReadEnvelope decodes the envelope of a repartition record into e. A record without
// one comes from a bug or from another program, because only the router and the
// ingress write to that topic.
func ReadEnvelope(rec *kgo.Record, e *Envelope) error {
	if len(rec.Headers) == 0 || rec.Headers[0].Key != EnvelopeHeader {
		return fmt.Errorf("%w: record %s/%d/%d has no %s header; only oncebus may write this topic",
			errEnvelope, rec.Topic, rec.Partition, rec.Offset, EnvelopeHeader)
	}
	if err := e.decode(rec.Headers[0].Value); err != nil {
		return fmt.Errorf("record %s/%d/%d: %w", rec.Topic, rec.Partition, rec.Offset, err)
	}
	return nil
}

func (e *Envelope) decode(b []byte) error {
	const fixed = 1 + 16 + 32
	if len(b) < fixed {
		return fmt.Errorf("%w: %d bytes", errEnvelope, len(b))
	}
	version := b[0]
	if version < EnvelopeVersion || version > addressedVersion {
		return fmt.Errorf("%w: version %d, this build reads %d to %d", errEnvelope, version, EnvelopeVersion, addressedVersion)
	}
	copy(e.Digest[:], b[1:17])
	copy(e.Key[:], b[17:49])
	b = b[fixed:]
	var fields [5]uint64
	for i := range fields {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return fmt.Errorf("%w: cut short in field %d", errEnvelope, i)
		}
		fields[i], b = v, b[n:]
	}
	e.Details, e.Outcome, e.ReplyTo, e.FromIngress = Details{}, nil, dedup.Address{}, false
	var err error
	switch version {
	case detailedVersion:
		b, err = e.Details.decode(b)
	case outcomeEnvelopeVersion:
		e.Outcome = new(OutcomeEnvelope)
		b, err = e.Outcome.decode(b)
	case addressedVersion:
		b, err = e.decodeAddressed(b)
	}
	if err != nil {
		return err
	}
	e.Route = b
	if fields[2] > 1<<16-1 || fields[3] > 1<<31-1 || fields[4] > 1<<63-1 {
		return fmt.Errorf("%w: position out of range", errEnvelope)
	}
	e.EventTime, e.Timestamp = unzigzag(fields[0]), unzigzag(fields[1])
	e.From = dedup.Position{Topic: uint16(fields[2]), Partition: int32(fields[3]), Offset: int64(fields[4])}
	return nil
}

// unzigzag decodes the zigzag form of a signed number, which AppendVarint writes.
func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }
