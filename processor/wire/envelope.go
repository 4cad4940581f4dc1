package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// EnvelopeVersion is the first byte of every envelope. The manifest pins it.
const EnvelopeVersion = 2

// Envelope has the values that the router or the ingress derived from a record. Its encoding is the
// record key of every record in the repartition topic, and ends with the original record key.
// Everything else in that record is as in the original, except for the timestamp: the broker sets it,
// so that a replay of the log reads the same broker time.
//
// The envelope is in the record key and not in a header, because each header costs the reader two allocations
// for each record.
type Envelope struct {
	Route  []byte // name of the route; a number would change with the order of the routes file
	Digest dedup.Digest
	// Hashed is the part of the value whose SHA-256 is the dedup key. If Hashed is set, the encoding leaves out
	// the key: its 32 bytes would not compress, and few events need the key again.
	Hashed    rules.Part
	Key       [32]byte // read it with DedupKey
	EventTime int64    // ms
	Timestamp int64    // of the original record, ms
	From      dedup.Position

	Details
	Outcome   *OutcomeEnvelope // set for an outcome, which also has Route, Timestamp, From and RecordKey; nil for an event
	RecordKey []byte           // record key of the original; nil for none

	ReplyTo dedup.Address // address of the request that gets the verdict; zero for none
	// Replaces is the address of an earlier request for the same key, for which its client no longer waits; zero
	// for none. Earlier builds refuse this field, so only an app whose tokens name the app writes it.
	Replaces dedup.Address
	// Sender is the name of the event's sender (rules.AppendSender), in a route whose sender is not in
	// the record itself; empty for none. Earlier builds refuse this field, so only such a route writes
	// it.
	Sender []byte
	// Tenant is the event's tenant, in a route with tenants; empty for none. Earlier builds refuse this
	// field, so only such a route writes it.
	Tenant []byte
	// FromIngress reports that the ingress wrote the record. There is no raw record then, and From is
	// the position of the repartition record itself.
	FromIngress bool
	// IsProgress reports that the record is a progress record: its value is an encoded Progress, and no
	// other field is set.
	IsProgress bool
	// IsSeed reports that the record is a seed: its key was first seen at EventTime in another system.
	// From has dedup.SeedTopic as topic and the number of the seed in its file as offset. The value is
	// null or an encoded row of claim mode. Only an app at level 2 has seeds.
	IsSeed bool
	Seed   SeedRun // run that a seed belongs to
	// IsTime reports that the record is a seed without a key: it says that in another cluster the task had the
	// stream time EventTime for the namespace of the route. The value is null or an encoded KnownSince. Only an
	// app that came from another cluster has such records.
	IsTime bool
	// Shadow is set in a record by which the task of an event tells the event's verdict to the task of
	// its new key, which the shadow's rule derives. Route is then the name of the shadow's route,
	// Digest the digest of the new key, and From the position of the event. Only an app at level 2 has
	// such records.
	Shadow ShadowVerdict
	// IsQuery reports that the record is a question and not an event: the sender of an event with this key asks
	// for the outcome of the event. ReplyTo and FromIngress are set, and there is no value. Only an app at level
	// 2 has such records.
	IsQuery bool
}

// Details are the fields of an envelope that only some routes need.
type Details struct {
	Fingerprint uint64
	Request     string // request id of the client; "" for none
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
	StartID []byte // for a kind that asks (start or renew); nil for none
}

// Headers returns token and kind as headers.
func (o *OutcomeEnvelope) Headers() []kgo.RecordHeader {
	return []kgo.RecordHeader{{Key: HeaderClaimToken, Value: o.Token.Append(nil)}, {Key: HeaderOutcome, Value: []byte(o.Kind.String())}}
}

// DedupKey returns the dedup key of the event whose record has this value. It computes the key if only
// Hashed is set, and stores it in e.Key, which the result points to.
func (e *Envelope) DedupKey(value []byte) *[32]byte {
	if e.Hashed.IsSet() {
		e.Key = e.Hashed.Key(value)
	}
	return &e.Key
}

// Size returns an upper bound for the number of bytes that Append appends.
func (e *Envelope) Size() int {
	n := 1 + 8 + 16 + 32 + 8*binary.MaxVarintLen64 + len(e.Route) + len(e.RecordKey)
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
	if len(e.Sender) > 0 {
		n += 1 + len(e.Sender)
	}
	if len(e.Tenant) > 0 {
		n += 1 + len(e.Tenant)
	}
	if e.Outcome != nil {
		n += 3 + dedup.TokenBytesMax + len(e.Outcome.StartID)
	}
	if e.IsSeed {
		n += len(e.Seed)
	}
	if e.Shadow != 0 {
		n++
	}
	return n
}

var errEnvelope = errors.New("unreadable envelope")

// Flags of an envelope. Each flag says that the field of its name is present. Some flags are the whole
// information, and have no field.
const (
	flagRecordKey   = 1 << iota
	flagHashed      // in place of the key
	flagFromIngress // without a field
	flagReplyTo
	flagDetails
	flagOutcome
	flagProgress // without any field
	flagShift
	flagReplaces
	flagSender
	flagSeed   // in place of the key
	flagTime   // without a field, of a seed
	flagShadow // in place of the key
	flagTenant
	flagQuery       // without a field
	flagsKnown      = flagQuery<<1 - 1
	flagsOfOutcomes = flagOutcome | flagReplyTo | flagRecordKey
	flagsOfSeeds    = flagSeed | flagTime | flagDetails | flagShift
	flagsOfShadows  = flagShadow | flagDetails
	flagsOfQueries  = flagQuery | flagFromIngress | flagReplyTo // and perhaps flagDetails and flagShift
)

func (e *Envelope) flags() (flags uint64) {
	for _, f := range [...]struct {
		flag uint64
		set  bool
	}{
		{flagRecordKey, e.RecordKey != nil},
		{flagHashed, e.Hashed.IsSet()},
		{flagFromIngress, e.FromIngress},
		{flagReplyTo, e.ReplyTo.IsSet()},
		{flagDetails, e.Details.any()},
		{flagOutcome, e.Outcome != nil},
		{flagProgress, e.IsProgress},
		{flagShift, e.Shift != 0},
		{flagReplaces, e.Replaces.IsSet()},
		{flagSender, len(e.Sender) > 0},
		{flagSeed, e.IsSeed},
		{flagTime, e.IsTime},
		{flagShadow, e.Shadow != 0},
		{flagTenant, len(e.Tenant) > 0},
		{flagQuery, e.IsQuery},
	} {
		if f.set {
			flags |= f.flag
		}
	}
	return flags
}

// Append appends the encoding of e:
//
//	version 1 | flags uvarint | length uvarint and name of the route |
//	topic, partition uvarint | timestamp 8, big-endian | offset uvarint |
//	outcome, or event | [address] | [details] | [shift varint] |
//	[address of the request that it replaces] | [length of the sender 1, sender] |
//	[length of the tenant 1, tenant] | [record key]
//
// An outcome is: its kind 1, the length of its token 1, the token; for a kind that asks, also the
// length of the start id 1 and the start id.
//
// An event is: its time as the difference to the timestamp, varint; its digest 16; then one of: the key
// 32, start and length (uvarints) of the part of the value that is hashed, the run of a seed, or the
// verdict 1 of a shadow.
//
// A progress record ends after the flags.
//
// The fields that are equal in neighbouring records come first, up to the high bytes of the timestamp, so that a
// compressor finds all of them in one piece.
func (e *Envelope) Append(dst []byte) []byte {
	flags := e.flags()
	dst = binary.AppendUvarint(append(dst, EnvelopeVersion), flags)
	if e.IsProgress {
		return dst
	}
	dst = append(binary.AppendUvarint(dst, uint64(len(e.Route))), e.Route...)
	dst = binary.AppendUvarint(dst, uint64(e.From.Topic))
	dst = binary.AppendUvarint(dst, uint64(uint32(e.From.Partition)))
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.Timestamp))
	dst = binary.AppendUvarint(dst, uint64(e.From.Offset))
	if e.Outcome != nil {
		dst = e.Outcome.append(dst)
	} else {
		dst = e.appendEvent(dst)
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
	if flags&flagSender != 0 {
		dst = append(append(dst, byte(len(e.Sender))), e.Sender...)
	}
	if flags&flagTenant != 0 {
		dst = append(append(dst, byte(len(e.Tenant))), e.Tenant...)
	}
	return append(dst, e.RecordKey...)
}

func (e *Envelope) appendEvent(dst []byte) []byte {
	dst = binary.AppendVarint(dst, e.EventTime-e.Timestamp) // may overflow; decodeEvent then overflows back
	dst = append(dst, e.Digest[:]...)
	if e.IsSeed {
		return append(dst, e.Seed[:]...)
	}
	if e.Shadow != 0 {
		return append(dst, byte(e.Shadow))
	}
	if !e.Hashed.IsSet() {
		return append(dst, e.Key[:]...)
	}
	return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(e.Hashed.Start)), uint64(e.Hashed.Length))
}

func (e *Envelope) decodeEvent(c *dedup.Cursor, flags uint64) {
	e.EventTime = e.Timestamp + c.Varint()
	copy(e.Digest[:], c.Bytes(len(e.Digest)))
	if flags&flagShadow != 0 {
		if e.Shadow = ShadowVerdict(c.Byte()); e.Shadow&ShadowSent == 0 || e.Shadow > shadowBitsKnown {
			c.Fail()
		}
		return
	}
	if e.IsSeed {
		copy(e.Seed[:], c.Bytes(len(e.Seed)))
		return
	}
	if flags&flagHashed == 0 {
		copy(e.Key[:], c.Bytes(len(e.Key)))
		return
	}
	e.Hashed = rules.Part{Start: int(c.Uvarint(math.MaxInt32)), Length: int(c.Uvarint(math.MaxInt32))}
	if !e.Hashed.IsSet() {
		c.Fail()
	}
}

func (o *OutcomeEnvelope) append(dst []byte) []byte {
	dst = append(dst, byte(o.Kind), 0)
	mark := len(dst)
	dst = o.Token.Append(dst)
	dst[mark-1] = byte(len(dst) - mark)
	if o.Kind.Asks() {
		dst = append(append(dst, byte(len(o.StartID))), o.StartID...)
	}
	return dst
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

// decode reads the encoding that append wrote.
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

// ReadEnvelope decodes the envelope of a repartition record into e, whose slices then share the memory
// of the record key. Only the router and the ingress produce to that topic, so a record that cannot be
// read comes from a foreign producer or a newer build: the error is an UnreadableError.
func ReadEnvelope(rec *kgo.Record, e *Envelope) error {
	err := e.decode(rec.Key)
	if err == nil && !e.Hashed.In(rec.Value) {
		err = fmt.Errorf("%w: bytes %d to %d of the value are hashed, it has %d", errEnvelope, e.Hashed.Start, e.Hashed.Start+e.Hashed.Length, len(rec.Value))
	}
	if err != nil {
		return Unreadable(rec, err)
	}
	return nil
}

func (e *Envelope) decode(b []byte) error {
	c := dedup.NewCursor(b)
	version, flags := c.Byte(), c.Uvarint(math.MaxInt64)
	switch {
	case c.Bad():
		return fmt.Errorf("%w: the record key has only %d bytes", errEnvelope, len(b))
	case version != EnvelopeVersion:
		return fmt.Errorf("%w: version %d, this build reads %d", errEnvelope, version, EnvelopeVersion)
	case flags&^flagsKnown != 0:
		return fmt.Errorf("%w: unknown flags %#x", errEnvelope, flags)
	case flags&flagProgress != 0 && flags != flagProgress, flags&flagOutcome != 0 && flags&^flagsOfOutcomes != 0,
		flags&flagSeed != 0 && flags&^flagsOfSeeds != 0, flags&flagTime != 0 && flags != flagTime|flagSeed,
		flags&flagShadow != 0 && flags&^flagsOfShadows != 0,
		flags&flagQuery != 0 && flags&^(flagDetails|flagShift) != flagsOfQueries:
		return fmt.Errorf("%w: flags %#x contradict each other", errEnvelope, flags)
	}
	*e = Envelope{FromIngress: flags&flagFromIngress != 0, IsProgress: flags&flagProgress != 0, IsSeed: flags&flagSeed != 0, IsTime: flags&flagTime != 0, IsQuery: flags&flagQuery != 0}
	if !e.IsProgress {
		if err := e.decodeFields(&c, flags); err != nil {
			return err
		}
	}
	if !c.Done() {
		return fmt.Errorf("%w: cut short or out of range in %d bytes", errEnvelope, len(b))
	}
	return nil
}

func (e *Envelope) decodeFields(c *dedup.Cursor, flags uint64) error {
	e.Route = c.Bytes(int(c.Uvarint(uint64(c.Left()))))
	e.From.Topic, e.From.Partition = uint16(c.Uvarint(math.MaxUint16)), int32(c.Uvarint(math.MaxInt32))
	e.Timestamp = int64(c.BigUint64())
	e.From.Offset = int64(c.Uvarint(math.MaxInt64))
	if flags&flagOutcome == 0 {
		e.decodeEvent(c, flags)
	} else {
		e.Outcome = new(OutcomeEnvelope)
		if err := e.Outcome.decode(c); err != nil {
			return err
		}
	}
	if flags&flagReplyTo != 0 {
		e.ReplyTo = c.Address()
	}
	if flags&flagDetails != 0 {
		e.Details.decode(c)
	}
	if flags&flagShift != 0 {
		e.Shift = c.Varint()
	}
	if flags&flagReplaces != 0 {
		e.Replaces = c.Address()
	}
	if flags&flagSender != 0 {
		if e.Sender = c.Bytes(int(c.Byte())); len(e.Sender) == 0 || len(e.Sender) > rules.SenderBytesMax {
			c.Fail()
		}
	}
	if flags&flagTenant != 0 {
		if e.Tenant = c.Bytes(int(c.Byte())); len(e.Tenant) == 0 || len(e.Tenant) > rules.TenantBytesMax {
			c.Fail()
		}
	}
	if flags&flagRecordKey != 0 {
		e.RecordKey = c.Rest()
	}
	return nil
}
