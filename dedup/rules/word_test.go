package rules

import (
	"encoding/binary"
	"slices"
	"testing"
)

// TestMarks requires that the lowest mark is exact, for all pairs of adjacent bytes.
func TestMarks(t *testing.T) {
	isSpecial := func(c byte) bool { return c == '"' || c == '\\' || c < ' ' }
	isNoDigit := func(c byte) bool { return !isDigit(c) }
	for pair := range 1 << 16 {
		for at := range 7 {
			b := []byte("00000000")
			b[at], b[at+1] = byte(pair>>8), byte(pair)
			w := word(b, 0)
			for _, test := range []struct {
				marks uint64
				of    func(byte) bool
			}{{special(w), isSpecial}, {notDigits(w), isNoDigit}} {
				want := slices.IndexFunc(b, test.of)
				if (test.marks == 0) != (want < 0) || want >= 0 && leading(test.marks) != want {
					t.Fatalf("%q: marks %x, want the lowest at %d", b, test.marks, want)
				}
				if want >= 0 && before(w, test.marks) != word(append(b[:want:want], make([]byte, 8)...), 0) {
					t.Fatalf("%q: %x before byte %d", b, before(w, test.marks), want)
				}
			}
		}
	}
}

// TestWordAtTheEnd requires that a word has zeros behind the end.
func TestWordAtTheEnd(t *testing.T) {
	for n := range 20 {
		b := []byte("0123456789abcdefghij")[:n]
		padded := append(slices.Clone(b), make([]byte, 16)...)
		for i := range n + 1 {
			want := binary.LittleEndian.Uint64(padded[i:])
			if n < 8 {
				want = 0
			}
			if got := word(b, i); got != want {
				t.Errorf("%d of %d bytes: %x, want %x", i, n, got, want)
			}
		}
	}
}
