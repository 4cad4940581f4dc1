package oracle

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// An envelope is the record key that the router or the ingress gives to a record in the repartition topic. The
// original record key is at its end.
type envelope struct {
	digest          digest
	key             [32]byte
	time, timestamp int64 // of the event, and of the input record, ms
	from            position
	ingress         bool   // the ingress wrote the record, so it has no input record
	replyTo         string // return address of the HTTP request, as in the verdict; "" if there is none
	outcome         []byte // for an outcome: its kind, token and start id
	route           []byte
	fingerprint     uint64
	request         string // the sender's request id; "" if there is none
	replaces        string // address of an earlier request for the same key whose client is gone; "" if there is none
	sender          string // "" if the event has none
	seed            bool   // the record is no event, but a key that another system knew
	streamTime      bool   // the record is a seed without a key: it has the stream time of the task in another cluster
	shadow          bool   // the record is no event, but the verdict on one, for the task of another key
	recordKey       []byte // the original record key; nil if there was none
}

// Flags of an envelope:
const (
	flagRecordKey = 1 << iota
	flagHashed
	flagIngress
	flagReplyTo
	flagDetails
	flagOutcome
	flagProgress
	flagShift
	flagReplaces
	flagSender
	flagSeed
	flagTime
	flagShadow
	flagTenant
)

const envelopeVersion = 2

// kindStart is the number of the first kind of outcome that is a question.
const kindStart = 5

// unwrapped returns a copy of a record in the repartition topic that has the original record key, and the
// envelope separately. If the envelope is invalid, the copy has no record key.
func unwrapped(r Record) *Record {
	r.envelope, r.Key = r.Key, nil
	if e, err := openEnvelope(&r, 0); err == nil {
		r.Key = e.recordKey
	}
	return &r
}

func allUnwrapped(records []Record) []*Record {
	all := make([]*Record, len(records))
	for i, r := range records {
		all[i] = unwrapped(r)
	}
	return all
}

// flagsOf returns the flags of a record in the repartition topic; 0 if it has no envelope.
func flagsOf(r *Record) uint64 {
	if len(r.envelope) == 0 || r.envelope[0] != envelopeVersion {
		return 0
	}
	flags, _ := binary.Uvarint(r.envelope[1:])
	return flags
}

// isOutcome reports whether a record in the repartition topic is an outcome.
func isOutcome(r *Record) bool { return flagsOf(r)&flagOutcome != 0 }

// isProgress reports whether a record in the repartition topic is a progress record.
func isProgress(r *Record) bool { return flagsOf(r)&flagProgress != 0 }

// isSeed reports whether a record in the repartition topic is a seed.
func isSeed(r *Record) bool { return flagsOf(r)&flagSeed != 0 }

// openEnvelope reads: version 1 | flags, uvarint | length of the route's name, uvarint, and the name | topic, partition,
// uvarints | timestamp 8, big-endian | offset, uvarint | outcome or event | address | details | shift, varint | address
// of the request that it replaces | length of the sender 1, and the sender | length of the tenant 1, and the tenant |
// original record key.
//
//   - An outcome: kind 1, length of token 1, token, for a start or renewal also the length of its id 1 and the id.
//   - An event: its time minus the timestamp, varint, digest 16, dedup key 32. In place of the dedup key there may be
//     start and length, uvarints, of a part of the value: the key is then the SHA-256 of that part. A seed has its
//     run 8 in place of the key, and a record for a shadow the verdict 1.
//   - An address: partition, uvarint, ingress 8, request 8.
//   - Details: fingerprint 8, 0 or 1 and two digests, length of the request id, uvarint, request id.
//
// A flag tells, for each of the fields from address on, whether it is there. repartition is the number of the repartition
// topic: a record that the ingress wrote there is its own source, and its position needs the number.
func openEnvelope(r *Record, repartition uint16) (e envelope, err error) {
	if len(r.envelope) == 0 {
		return e, errors.New("has no record key, so no envelope")
	}
	flags := flagsOf(r)
	if flags&flagProgress != 0 || flags >= flagTenant<<1 || r.envelope[0] != envelopeVersion {
		return e, fmt.Errorf("has an invalid envelope: %x", r.envelope)
	}
	f := fields{rest: r.envelope[1:]}
	f.unsigned(1 << 63)
	e.route = f.bytes(int(f.unsigned(1 << 31)))
	e.from = position{uint16(f.unsigned(1 << 16)), int32(f.unsigned(1 << 31)), 0}
	e.timestamp = int64(binary.BigEndian.Uint64(f.bytes(8)))
	e.from.offset = int64(f.unsigned(1 << 63))
	if flags&flagOutcome != 0 {
		e.readOutcome(&f)
	} else {
		e.seed, e.streamTime = flags&flagSeed != 0, flags&flagTime != 0
		e.shadow = flags&flagShadow != 0
		e.readEvent(&f, flags&flagHashed != 0, r.Value)
	}
	if flags&flagReplyTo != 0 {
		e.replyTo = f.address()
	}
	if flags&flagDetails != 0 {
		e.fingerprint = binary.LittleEndian.Uint64(f.bytes(8))
		if f.byte() == 1 {
			f.bytes(2 * len(e.digest))
		}
		e.request = string(f.bytes(int(f.unsigned(1 << 31))))
	}
	if flags&flagShift != 0 {
		f.signed()
	}
	if flags&flagReplaces != 0 {
		e.replaces = f.address()
	}
	if flags&flagSender != 0 {
		e.sender = string(f.bytes(int(f.byte())))
	}
	if flags&flagTenant != 0 {
		f.bytes(int(f.byte()))
	}
	if flags&flagRecordKey != 0 {
		e.recordKey = f.bytes(len(f.rest))
	}
	if e.ingress = flags&flagIngress != 0; e.ingress {
		e.from = position{repartition, r.Partition, r.Offset}
	}
	if f.bad || len(f.rest) > 0 {
		return e, fmt.Errorf("has an invalid envelope: %x", r.envelope)
	}
	return e, nil
}

func (e *envelope) readOutcome(f *fields) {
	start := f.rest
	kind := f.byte()
	f.bytes(int(f.byte()))
	if kind >= kindStart {
		f.bytes(int(f.byte()))
	}
	e.outcome = start[:len(start)-len(f.rest)]
}

// readEvent reads the part of the envelope that describes an event. value is the value of the record.
func (e *envelope) readEvent(f *fields, hashed bool, value []byte) {
	e.time = e.timestamp + f.signed()
	copy(e.digest[:], f.bytes(len(e.digest)))
	if e.seed {
		f.bytes(8)
		return
	}
	if e.shadow {
		f.byte()
		return
	}
	if !hashed {
		copy(e.key[:], f.bytes(len(e.key)))
		return
	}
	start, n := f.unsigned(1<<31), f.unsigned(1<<31)
	if n == 0 || start+n > uint64(len(value)) {
		f.bad = true
		return
	}
	e.key = sha256.Sum256(value[start : start+n])
}

// fields reads fields from a slice of bytes. After an error, bad is true and all further fields are zero.
type fields struct {
	rest []byte
	bad  bool
}

func (f *fields) take(n int) {
	if n <= 0 {
		f.bad, f.rest = true, nil
		return
	}
	f.rest = f.rest[n:]
}

func (f *fields) signed() int64 {
	v, n := binary.Varint(f.rest)
	f.take(n)
	return v
}

func (f *fields) unsigned(below uint64) uint64 {
	v, n := binary.Uvarint(f.rest)
	f.take(n)
	f.bad = f.bad || v >= below
	return v
}

// bytes returns the next n bytes.
func (f *fields) bytes(n int) []byte {
	if n < 0 || n > len(f.rest) {
		f.bad, f.rest = true, nil
		return make([]byte, max(0, min(n, 64)))
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) byte() byte { return f.bytes(1)[0] }

// address reads an address and returns it as in the verdict's header: big-endian, in hexadecimal digits.
func (f *fields) address() string {
	var b [20]byte
	binary.BigEndian.PutUint32(b[:], uint32(f.unsigned(1<<31)))
	binary.BigEndian.PutUint64(b[4:], binary.LittleEndian.Uint64(f.bytes(8)))
	binary.BigEndian.PutUint64(b[12:], binary.LittleEndian.Uint64(f.bytes(8)))
	return hex.EncodeToString(b[:])
}

// entries skips a list of times by namespace id.
func (f *fields) entries() {
	for n := f.unsigned(513); n > 0 && !f.bad; n-- {
		f.take(min(1, len(f.rest)))
		f.signed()
	}
}
