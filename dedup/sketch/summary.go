package sketch

import (
	"encoding/binary"
	"math"
	"slices"

	"oncebus/dedup"
)

// A Counter is a name with its count. The name was offered at least Count - Error and at most Count times.
type Counter struct {
	Name         string
	Count, Error uint64
}

// A Summary is the state of a Sketch: what it counted.
type Summary struct {
	Capacity int    // counters of the sketch
	Total    uint64 // names that were offered
	// Floor is how often a name without a counter may have come, independent of the counts of the counters.
	// It is not 0 after a Merge, and after the sketch loaded a summary of another capacity.
	Floor    uint64
	Counters []Counter // at most Capacity, each name once
}

// Missing returns how often a name without a counter may have come.
func (s *Summary) Missing() uint64 {
	if len(s.Counters) < s.Capacity || len(s.Counters) == 0 {
		return s.Floor
	}
	least := uint64(math.MaxUint64)
	for i := range s.Counters {
		least = min(least, s.Counters[i].Count)
	}
	return max(least, s.Floor)
}

// Top returns the n counters with the highest counts, in order.
func (s *Summary) Top(n int) []Counter {
	all := slices.Clone(s.Counters)
	slices.SortFunc(all, byCount)
	return all[:min(n, len(all))]
}

// Merge returns the counters of two streams as if they were one stream, in order of their counts, at most as
// many as the lower capacity allows. A summary without names changes nothing.
func Merge(a, b Summary) Summary {
	switch {
	case b.Total == 0:
		return a
	case a.Total == 0:
		return b
	}
	missing := [2]uint64{a.Missing(), b.Missing()}
	all := make(map[string]Counter, len(a.Counters)+len(b.Counters))
	for _, c := range a.Counters {
		all[c.Name] = Counter{c.Name, c.Count + missing[1], c.Error + missing[1]}
	}
	for _, c := range b.Counters {
		if both, ok := all[c.Name]; ok {
			all[c.Name] = Counter{c.Name, both.Count - missing[1] + c.Count, both.Error - missing[1] + c.Error}
		} else {
			all[c.Name] = Counter{c.Name, c.Count + missing[0], c.Error + missing[0]}
		}
	}
	merged := Summary{Capacity: min(a.Capacity, b.Capacity), Total: a.Total + b.Total, Floor: missing[0] + missing[1]}
	for _, c := range all {
		merged.Counters = append(merged.Counters, c)
	}
	slices.SortFunc(merged.Counters, byCount)
	if len(merged.Counters) > merged.Capacity {
		merged.Floor = max(merged.Floor, merged.Counters[merged.Capacity].Count)
		merged.Counters = merged.Counters[:merged.Capacity]
	}
	return merged
}

// Append appends the encoding: capacity, total, floor and number of counters; for each
// counter the length of the name 1, the name, count and error. All numbers but the length
// are uvarints.
func (s *Summary) Append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(s.Capacity))
	dst = binary.AppendUvarint(dst, s.Total)
	dst = binary.AppendUvarint(dst, s.Floor)
	dst = binary.AppendUvarint(dst, uint64(len(s.Counters)))
	for i := range s.Counters {
		c := &s.Counters[i]
		dst = append(append(dst, byte(len(c.Name))), c.Name...)
		dst = binary.AppendUvarint(dst, c.Count)
		dst = binary.AppendUvarint(dst, c.Error)
	}
	return dst
}

// DecodeSummary decodes what Append wrote. It makes r bad if the bytes cannot be a summary.
func DecodeSummary(r *dedup.Cursor) Summary {
	s := Summary{Capacity: int(r.Uvarint(CapacityMax)), Total: r.Uvarint(math.MaxInt64), Floor: r.Uvarint(math.MaxInt64)}
	if s.Capacity == 0 {
		r.Fail()
	}
	for n := r.Uvarint(uint64(s.Capacity)); n > 0 && !r.Bad(); n-- {
		s.Counters = append(s.Counters, Counter{Name: decodeName(r), Count: r.Uvarint(math.MaxInt64), Error: r.Uvarint(math.MaxInt64)})
		s.check(r, len(s.Counters)-1)
	}
	return s
}

func decodeName(r *dedup.Cursor) string {
	length := int(r.Byte())
	if length > NameMax {
		r.Fail()
		return ""
	}
	return string(r.Bytes(length))
}

// check makes r bad if a counter is impossible: its error is not below its count, or an earlier counter has the
// same name.
func (s *Summary) check(r *dedup.Cursor, number int) {
	c := &s.Counters[number]
	if c.Error >= c.Count || slices.ContainsFunc(s.Counters[:number], func(other Counter) bool { return other.Name == c.Name }) {
		r.Fail()
	}
}

// ApplyChanges applies to s the changes that Sketch.AppendChanges wrote; s must be the summary that the sketch
// had before these changes. It makes r bad if the changes do not fit s.
func (s *Summary) ApplyChanges(r *dedup.Cursor) {
	s.Counters = slices.Clone(s.Counters)
	s.Total += r.Uvarint(math.MaxInt64)
	for n := r.Uvarint(uint64(s.Capacity)); n > 0 && !r.Bad(); n-- {
		head, rise := r.Uvarint(2*CapacityMax), r.Uvarint(math.MaxInt64)
		number := int(head / 2)
		if number == len(s.Counters) && number < s.Capacity && head%2 == 1 {
			s.Counters = append(s.Counters, Counter{})
		}
		if number >= len(s.Counters) || rise == 0 {
			r.Fail()
			return
		}
		c := &s.Counters[number]
		c.Count += rise
		if head%2 == 1 {
			c.Name, c.Error = decodeName(r), r.Uvarint(math.MaxInt64)
		}
		if c.Error >= c.Count {
			r.Fail()
		}
	}
}
