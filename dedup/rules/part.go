package rules

import "crypto/sha256"

// Part is a part of a record's value. The zero Part is no part.
type Part struct{ Start, Length int }

// partOf returns where b lies in value, if b is a slice of value; zero if b does not share the memory of value.
func partOf(value, b []byte) Part {
	// If b is a slice of value, the capacities of both end at the same byte of memory.
	start := cap(value) - cap(b)
	if len(b) == 0 || start < 0 || start+len(b) > len(value) || &value[start] != &b[0] {
		return Part{}
	}
	return Part{start, len(b)}
}

// IsSet reports whether there is a part.
func (p Part) IsSet() bool { return p.Length > 0 }

// In reports whether the part is within a value.
func (p Part) In(value []byte) bool {
	return p.Start >= 0 && p.Length >= 0 && p.Start <= len(value) && p.Length <= len(value)-p.Start
}

// Key returns the dedup key of an event whose key is the SHA-256 of this part. The part must be within value.
func (p Part) Key(value []byte) [32]byte { return sha256.Sum256(value[p.Start : p.Start+p.Length]) }
