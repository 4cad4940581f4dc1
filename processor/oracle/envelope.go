package oracle

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// An envelope is the header that the router or the ingress adds to a record in the
// repartition topic.
type envelope struct {
	digest          digest
	key             [32]byte
	time, timestamp int64 // of the event and of the raw record, ms
	from            position
	ingress         bool   // the ingress wrote the record: it has no raw record
	replyTo         string // return address of the request, as in the verdict; "" for none
	outcome         []byte // of an outcome: its kind, token and start id
	route           []byte
	fingerprint     uint64
	request         string // the sender's id; "" for none
	replaces        string // address of a request for the key whose client is gone; "" for none
}

// Flags of an envelope.
const flagOutcome, flagReplyTo, flagIngress, flagDetails, flagShift, flagProgress, flagReplaces = 1, 2, 4, 8, 16, 32, 64

// kindStart is the first kind of outcome that asks.
const kindStart = 5

// openEnvelope reads: version 1 | flags | digest 16 | dedup key 32 | event time, varint |
// timestamp, varint | topic, partition, offset, uvarints | of an outcome: kind 1, length
// of token 1, token, of a start or renewal the length of its id 1 and the id | address: partition, uvarint, ingress 8, request 8 | details:
// fingerprint 8, 0 or 1 and two digests, length of the request id, uvarint, request id |
// shift, varint | address of the request that it replaces | route's name. repartition is
// the number of the topic, for the position of a record that the ingress wrote: it is its
// own source.
func openEnvelope(r *Record, repartition uint16) (e envelope, err error) {
	if len(r.Headers) == 0 || r.Headers[0].Key != "oncebus-envelope" {
		return e, errors.New("has no envelope as its first header")
	}
	b := r.Headers[0].Value
	if len(b) < 50 || b[0] != 1 || b[1]&^(flagOutcome|flagReplyTo|flagIngress|flagDetails|flagShift|flagReplaces) != 0 {
		return e, fmt.Errorf("has an invalid envelope: %x", b)
	}
	copy(e.digest[:], b[2:])
	copy(e.key[:], b[18:])
	f := fields{rest: b[50:]}
	e.time, e.timestamp = f.signed(), f.signed()
	e.from = position{uint16(f.unsigned(1 << 16)), int32(f.unsigned(1 << 31)), int64(f.unsigned(1 << 63))}
	flags := b[1]
	if flags&flagOutcome != 0 {
		start := f.rest
		kind := f.byte()
		f.bytes(int(f.byte()))
		if kind >= kindStart {
			f.bytes(int(f.byte()))
		}
		e.outcome = start[:len(start)-len(f.rest)]
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
	if e.ingress = flags&flagIngress != 0; e.ingress {
		e.from = position{repartition, r.Partition, r.Offset}
	}
	if e.route = f.rest; f.bad {
		return e, fmt.Errorf("has an invalid envelope: %x", b)
	}
	return e, nil
}

// fields reads varints from a slice.
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

// address returns an address as the verdict's header has it: big-endian, in hex digits.
func (f *fields) address() string {
	var b [20]byte
	binary.BigEndian.PutUint32(b[:], uint32(f.unsigned(1<<31)))
	binary.BigEndian.PutUint64(b[4:], binary.LittleEndian.Uint64(f.bytes(8)))
	binary.BigEndian.PutUint64(b[12:], binary.LittleEndian.Uint64(f.bytes(8)))
	return hex.EncodeToString(b[:])
}

// entries skips times by namespace id.
func (f *fields) entries() {
	for n := f.unsigned(513); n > 0 && !f.bad; n-- {
		f.take(min(1, len(f.rest)))
		f.signed()
	}
}
