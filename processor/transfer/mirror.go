package transfer

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/twmb/franz-go/pkg/kgo"
)

// recordSum identifies the content of a record: key, value, headers and timestamp. A mirror
// keeps them, and gives the record another offset.
type recordSum [16]byte

// sumOf returns the sum of a record. Null and empty differ.
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

// tailRecords is how many records before a held offset a file names. A mirror that restarts
// repeats what it wrote since its last commit. If that is more, the start errs backwards.
const tailRecords = 2048

// A mirrorSearch finds the place of a held offset in a mirrored partition. It reads the
// mirror's records in their order, from one on that is not behind the tail: the last records
// before the held offset.
//
// The start that it finds is the first record that is not proven to be one of the tail, or
// the one behind the first copy of the last record of the tail. So it errs backwards only:
//
//   - A mirror reads a partition in order, and goes on from what it has committed. So the first
//     copy of a record follows first copies of all records before it, also if the mirror
//     repeats records, or if two of it write at once. Nothing from the held offset on comes
//     before the first copy of the last record of the tail.
//   - If producers of the mirror do change the order, or others write to the partition, a record
//     that the tail lacks comes before. The start is there, at the latest.
//
// A record of the tail may have the same content as a later one. Then the later one's first
// copy follows that of the last record of the tail, or is read as if it repeated the tail. The
// latter needs a changed order, and then only skips a record equal to one that was processed.
type mirrorSearch struct {
	tail map[recordSum]bool
	last recordSum

	start int64 // of the first unproven record; -1 for none
	found bool  // the last record of the tail
}

// newMirrorSearch returns a search for the place behind a tail, which is not empty.
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
