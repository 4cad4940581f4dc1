package rules

import (
	"encoding/binary"
	"math/bits"
)

// The functions of this file test eight bytes at once. The lowest eight bits of a word are the first of the
// eight bytes. The result of a test is a word of marks: if the high bit of a byte is set there, the byte is
// marked.

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// word returns the eight bytes from i on, with zeros in place of bytes behind the end of b. It returns zero if
// b has less than eight bytes.
func word(b []byte, i int) uint64 {
	last := len(b) - 8
	if i >= 0 && i <= last { // these two tests make the bounds checks of the slice unnecessary
		return binary.LittleEndian.Uint64(b[i : i+8])
	}
	if last < 0 {
		return 0
	}
	return binary.LittleEndian.Uint64(b[last:last+8]) >> (8 * (i - last))
}

// special marks the first byte of w that is a quote, a backslash or a control character. It may also mark
// bytes after that one.
//
// In (x-c) &^ x every byte of x that is below c is marked, because x has no high bit there, and the subtraction
// borrows and so sets the high bit. Only a byte below c borrows from the next byte, so the lowest mark is
// exact, and no byte is missed (Hacker's Delight, section 6-1). A byte of w that is a quote is 0 in w^quotes,
// and so below 1.
func special(w uint64) uint64 {
	quote, backslash := w^(ones*'"'), w^(ones*'\\')
	return ((quote-ones)&^quote | (backslash-ones)&^backslash | (w-ones*' ')&^w) & highs
}

// notDigits marks the first byte of w that is no digit. It may also mark bytes after that one.
//
// In x a digit is a byte of at most 9. A larger byte has the high bit already, or gets it when 0x80-10 is
// added. Only a byte that already had the high bit carries into the next byte, so the lowest mark is exact.
func notDigits(w uint64) uint64 {
	x := w ^ ones*'0'
	return (x + ones*(0x80-10) | x) & highs
}

// leading returns the number of bytes before the first mark.
func leading(marks uint64) int { return bits.TrailingZeros64(marks) / 8 }

// before returns the bytes of w before the first mark, and zeros for the others.
func before(w, marks uint64) uint64 { return w & ((marks ^ (marks - 1)) >> 8) }
