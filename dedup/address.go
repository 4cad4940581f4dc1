package dedup

import (
	"encoding/binary"
	"encoding/hex"
)

// An Address says where the verdict on an event goes: to whoever put the event
// on the bus and waits. Who may write to a raw topic can write any address: it
// decides no verdict, but it does decide who is told one. So the number of a
// question cannot be guessed, and who asks takes no verdict on another key.
type Address struct {
	Partition int32  // of the verdicts topic
	Ingress   uint64 // drawn by the asking process; 0: nobody asks
	Request   uint64 // which of its questions: a number that nobody can guess
}

// Asked tells whether somebody waits at the address.
func (a Address) IsSet() bool { return a.Ingress != 0 }

// AddressTextBytes is the length of an address as text.
const AddressTextBytes = 2 * addressBytes

const addressBytes = 4 + 8 + 8

// AppendText appends the address as 40 lower-case hex digits: partition 4,
// front 8 and question 8 bytes, big-endian.
func (a Address) AppendText(dst []byte) []byte {
	var raw [addressBytes]byte
	binary.BigEndian.PutUint32(raw[:], uint32(a.Partition))
	binary.BigEndian.PutUint64(raw[4:], a.Ingress)
	binary.BigEndian.PutUint64(raw[12:], a.Request)
	return hex.AppendEncode(dst, raw[:])
}

// ParseAddress reads what AppendText wrote; false for anything else, and for
// the address of nobody.
func ParseAddress(text []byte) (Address, bool) {
	if len(text) != AddressTextBytes {
		return Address{}, false
	}
	var raw [addressBytes]byte
	for i, c := range text {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		default:
			return Address{}, false
		}
		raw[i/2] = raw[i/2]<<4 | c
	}
	a := Address{
		Partition: int32(binary.BigEndian.Uint32(raw[:])),
		Ingress:   binary.BigEndian.Uint64(raw[4:]), Request: binary.BigEndian.Uint64(raw[12:]),
	}
	return a, a.Partition >= 0 && a.IsSet()
}

// Append appends the address as rows and envelopes have it, AddressBytesMax at
// most: partition uvarint | front 8 | question 8.
func (a Address) Append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(uint32(a.Partition)))
	dst = binary.LittleEndian.AppendUint64(dst, a.Ingress)
	return binary.LittleEndian.AppendUint64(dst, a.Request)
}

// AddressBytesMax is the longest address that Append makes.
const AddressBytesMax = binary.MaxVarintLen32 + 8 + 8
