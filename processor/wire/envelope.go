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
const EnvelopeHeader = "oncebus-envelope" // internal, repartition topic: the values that the router derived from the record, and its original timestamp

// EnvelopeVersion is the first byte of every envelope. The manifest pins it.
const EnvelopeVersion = 1

// Envelope has the values that the router or the ingress derived from a record.
type Envelope struct {
	Route     []byte // name: a number would change with the order of the file
	Digest    dedup.Digest
	Key       [32]byte
	EventTime int64 // ms
	Timestamp int64 // the original record's, ms
	From      dedup.Position

	Details
	Outcome *OutcomeEnvelope // of an outcome, which also has Route, Timestamp and From; nil for an event

	ReplyTo dedup.Address // of the request that gets the verdict; zero for none
	// Replaces is the address of a request for the key that its client gave up; zero for
	// none. Earlier builds refuse it, so only an app whose tokens name it has one.
	Replaces dedup.Address
	// FromIngress reports that the ingress wrote the record. It has no raw record,
	// and From is its own position.
	FromIngress bool
	// IsProgress reports that the record is a progress record: its value is an encoded
	// Progress, and it has no other field.
	IsProgress bool
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
	return Details{Fingerprint: d.Fingerprint, Request: d.Request, Adjacent: d.Adjacent, HasAdjacent: d.HasAdjacent, Shift: d.Shift}
}

func (d *Details) any() bool { return d.Fingerprint != 0 || d.Request != "" || d.HasAdjacent }

// OutcomeEnvelope has the values that the router read from an outcome.
type OutcomeEnvelope struct {
	Kind    dedup.OutcomeKind
	Token   dedup.Token
	StartID []byte // of a kind that asks; nil for none
}

// Headers returns token and kind as headers.
func (o *OutcomeEnvelope) Headers() []kgo.RecordHeader {
	return []kgo.RecordHeader{{Key: HeaderClaimToken, Value: o.Token.Append(nil)}, {Key: HeaderOutcome, Value: []byte(o.Kind.String())}}
}

// Size returns an upper bound of the bytes that Append appends.
func (e *Envelope) Size() int {
	n := 2 + 16 + 32 + 6*binary.MaxVarintLen64 + len(e.Route)
	if e.Details.any() {
		n += 8 + 1 + 2*16 + binary.MaxVarintLen64 + len(e.Request)
	}
	if e.ReplyTo.IsSet() {
		n += dedup.AddressBytesMax
	}
	if e.Shift != 0 {
		n += binary.MaxVarintLen64
	}
	if e.Replaces.IsSet() {
		n += dedup.AddressBytesMax
	}
	if e.Outcome != nil {
		n += 3 + dedup.TokenBytesMax + len(e.Outcome.StartID)
	}
	return n
}

var errEnvelope = errors.New("unreadable envelope")

// Flags of an envelope. Each adds the field of its name.
const (
	flagOutcome = 1 << iota
	flagReplyTo
	flagFromIngress // without a field
	flagDetails
	flagShift
	flagProgress // without a field
	flagReplaces
	flagsKnown = flagOutcome | flagReplyTo | flagFromIngress | flagDetails | flagShift | flagProgress | flagReplaces
)

func (e *Envelope) flags() (flags byte) {
	for _, f := range [...]struct {
		flag byte
		set  bool
	}{
		{flagOutcome, e.Outcome != nil},
		{flagReplyTo, e.ReplyTo.IsSet()},
		{flagFromIngress, e.FromIngress},
		{flagDetails, e.Details.any()},
		{flagShift, e.Shift != 0},
		{flagProgress, e.IsProgress},
		{flagReplaces, e.Replaces.IsSet()},
	} {
		if f.set {
			flags |= f.flag
		}
	}
	return flags
}

// Append appends the encoding of e:
//
//	version 1 | flags 1 | digest 16 | key 32 | event time varint |
//	timestamp varint | topic, partition, offset uvarint |
//	[kind of outcome 1 | length of token 1 | token | [start id]] | [address] | [details] |
//	[shift varint] | [address of the request that it replaces] | name of the route
//
// Only a kind that asks has a start id: its length 1, and its bytes.
func (e *Envelope) Append(dst []byte) []byte {
	flags := e.flags()
	dst = append(dst, EnvelopeVersion, flags)
	dst = append(dst, e.Digest[:]...)
	dst = append(dst, e.Key[:]...)
	dst = binary.AppendVarint(dst, e.EventTime)
	dst = binary.AppendVarint(dst, e.Timestamp)
	dst = binary.AppendUvarint(dst, uint64(e.From.Topic))
	dst = binary.AppendUvarint(dst, uint64(uint32(e.From.Partition)))
	dst = binary.AppendUvarint(dst, uint64(e.From.Offset))
	if flags&flagOutcome != 0 {
		dst = append(dst, byte(e.Outcome.Kind), 0)
		mark := len(dst)
		dst = e.Outcome.Token.Append(dst)
		dst[mark-1] = byte(len(dst) - mark)
		if e.Outcome.Kind.Asks() {
			dst = append(append(dst, byte(len(e.Outcome.StartID))), e.Outcome.StartID...)
		}
	}
	if flags&flagReplyTo != 0 {
		dst = e.ReplyTo.Append(dst)
	}
	if flags&flagDetails != 0 {
		dst = e.Details.append(dst)
	}
	if flags&flagShift != 0 {
		dst = binary.AppendVarint(dst, e.Shift)
	}
	if flags&flagReplaces != 0 {
		dst = e.Replaces.Append(dst)
	}
	return append(dst, e.Route...)
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

// decode reads what append wrote.
func (d *Details) decode(c *dedup.Cursor) {
	d.Fingerprint = c.Uint64()
	if d.HasAdjacent = c.Flag(); d.HasAdjacent {
		for i := range d.Adjacent {
			copy(d.Adjacent[i][:], c.Bytes(len(d.Adjacent[i])))
		}
	}
	d.Request = string(c.Bytes(int(c.Uvarint(uint64(c.Left())))))
}

func (o *OutcomeEnvelope) decode(c *dedup.Cursor) (err error) {
	o.Kind = dedup.OutcomeKind(c.Byte())
	token := c.Bytes(int(c.Byte()))
	if c.Bad() {
		return nil // Envelope.decode reports it
	}
	if _, ok := dedup.ParseOutcomeKind([]byte(o.Kind.String())); !ok {
		return fmt.Errorf("%w: unknown kind of outcome %d", errEnvelope, byte(o.Kind))
	}
	if o.Token, err = dedup.ParseToken(token); err != nil {
		return fmt.Errorf("%w: %w", errEnvelope, err)
	}
	if o.Kind.Asks() {
		if id := c.Bytes(int(c.Byte())); len(id) > 0 {
			o.StartID = id
		}
	}
	return nil
}

// ReadEnvelope decodes the envelope of a repartition record into e. A record without
// an envelope shows a bug or a foreign producer, because only the router and the
// ingress produce to that topic.
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
	c := dedup.NewCursor(b)
	version, flags := c.Byte(), c.Byte()
	if !c.Bad() && version != EnvelopeVersion {
		return fmt.Errorf("%w: version %d, this build reads %d", errEnvelope, version, EnvelopeVersion)
	}
	if flags&^byte(flagsKnown) != 0 {
		return fmt.Errorf("%w: unknown flags %#x", errEnvelope, flags)
	}
	*e = Envelope{FromIngress: flags&flagFromIngress != 0, IsProgress: flags&flagProgress != 0}
	copy(e.Digest[:], c.Bytes(len(e.Digest)))
	copy(e.Key[:], c.Bytes(len(e.Key)))
	e.EventTime, e.Timestamp = c.Varint(), c.Varint()
	e.From = c.Position()
	if flags&flagOutcome != 0 {
		e.Outcome = new(OutcomeEnvelope)
		if err := e.Outcome.decode(&c); err != nil {
			return err
		}
	}
	if flags&flagReplyTo != 0 {
		e.ReplyTo = c.Address()
	}
	if flags&flagDetails != 0 {
		e.Details.decode(&c)
	}
	if flags&flagShift != 0 {
		e.Shift = c.Varint()
	}
	if flags&flagReplaces != 0 {
		e.Replaces = c.Address()
	}
	e.Route = c.Rest()
	if c.Bad() {
		return fmt.Errorf("%w: cut short or out of range in %d bytes", errEnvelope, len(b))
	}
	return nil
}
