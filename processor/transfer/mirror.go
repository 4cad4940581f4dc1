package transfer

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/twmb/franz-go/pkg/kgo"
)

// recordSum identifies a record by its content: key, value, headers and timestamp. A mirror keeps all four, and
// only gives the record another offset.
type recordSum [16]byte

// sumOf returns the sum of a record. A null value and an empty value have different sums.
func sumOf(rec *kgo.Record) (sum recordSum) {
	h := sha256.New()
	part := func(b []byte) {
		n := uint64(len(b)) + 1
		if b == nil {
			n = 0
		}
		h.Write(binary.BigEndian.AppendUint64(nil, n))
		h.Write(b)
	}
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(rec.Timestamp.UnixMilli())))
	part(rec.Key)
	part(rec.Value)
	for i := range rec.Headers {
		part([]byte(rec.Headers[i].Key))
		part(rec.Headers[i].Value)
	}
	copy(sum[:], h.Sum(nil))
	return sum
}

// tailRecords is how many records before a held offset the file identifies. A mirror that restarts writes the
// records since its last commit again. If it repeats more than tailRecords records, the start that the search
// finds is earlier than necessary.
const tailRecords = 2048

// A mirrorSearch finds a held offset in a mirrored partition. The tail is the last records before the held
// offset. The search reads the mirror's records in order, beginning at or before the first record of the tail.
//
// The start that it finds is the first record that is not proven to belong to the tail, or the record behind the first
// copy of the tail's last record, whichever comes first. Such a start may be too early, but never too late:
//
//   - A mirror reads a partition in order, and continues from what it has committed. Therefore the first copy of a record
//     comes after the first copies of all records before it, even if the mirror repeats records, or if two instances of it
//     write at once. In particular, no record from the held offset on comes before the first copy of the tail's last record.
//   - If the mirror's producers do change the order, or if other programs write to the partition, a record that
//     is not in the tail comes earlier. In that case the start is at that record or before it.
//
// A record of the tail may have the same content as a later record. Then there are two possibilities. Either
// the first copy of the later record comes after the first copy of the tail's last record. Or the search takes
// the copy for a repetition of the tail; this is possible only if the order was changed, and then the app only
// skips a record that equals a record that it has processed.
type mirrorSearch struct {
	tail map[recordSum]bool
	last recordSum

	start int64 // offset of the first unproven record; -1 if there is none
	found bool  // the last record of the tail was found
}

// newMirrorSearch returns a search for the position behind a tail. The tail must not be empty.
func newMirrorSearch(tail []byte) *mirrorSearch {
	s := &mirrorSearch{tail: map[recordSum]bool{}, start: -1}
	for ; len(tail) >= len(s.last); tail = tail[len(s.last):] {
		s.last = recordSum(tail)
		s.tail[s.last] = true
	}
	return s
}

// add takes the next record of the mirror, and reports whether the search has ended.
func (s *mirrorSearch) add(offset int64, sum recordSum) (ended bool) {
	if s.found {
		return true
	}
	if s.start < 0 && !s.tail[sum] {
		s.start = offset
	}
	if sum == s.last {
		s.found = true
		if s.start < 0 {
			s.start = offset + 1
		}
	}
	return s.found
}
