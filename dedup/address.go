package dedup

import (
	"encoding/binary"
	"encoding/hex"
)

// An Address names the in-flight HTTP request that gets the verdict on an event. A producer of the input topic
// can forge an address: that changes who receives the verdict, never the verdict. To make a forged address
// useless, the numbers of requests are random, and an ingress ignores a verdict whose key is not the key of the
// request.
type Address struct {
	Partition int32  // partition of the verdicts topic
	Ingress   uint64 // random number of the ingress process; 0: no address
	Request   uint64 // random number of its in-flight request
}

// IsSet reports whether this is an address, not the zero value.
func (a Address) IsSet() bool { return a.Ingress != 0 }

// names reports whether a and b name the same request. Their partitions may differ: an ingress changes the
// partition when an operator adds partitions to the verdicts topic.
func (a Address) names(b Address) bool { return a.Ingress == b.Ingress && a.Request == b.Request }

// AddressTextBytes is the length of an address as text.
const AddressTextBytes = 2 * addressBytes

const addressBytes = 4 + 8 + 8

// AppendText appends the address as 40 lower-case hex digits: partition 4 bytes,
// ingress 8 and request 8, big-endian.
func (a Address) AppendText(dst []byte) []byte {
	var raw [addressBytes]byte
	binary.BigEndian.PutUint32(raw[:], uint32(a.Partition))
	binary.BigEndian.PutUint64(raw[4:], a.Ingress)
	binary.BigEndian.PutUint64(raw[12:], a.Request)
	return hex.AppendEncode(dst, raw[:])
}

// ParseAddress reads what AppendText wrote. It returns false for any other text,
// and for an address that is not set.
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

// Append appends the address as it is encoded in rows and envelopes, in at most AddressBytesMax bytes:
// partition uvarint | ingress 8 | request 8.
func (a Address) Append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(uint32(a.Partition)))
	dst = binary.LittleEndian.AppendUint64(dst, a.Ingress)
	return binary.LittleEndian.AppendUint64(dst, a.Request)
}

// AddressBytesMax is the length of the longest address that Append makes, in bytes.
const AddressBytesMax = binary.MaxVarintLen32 + 8 + 8
