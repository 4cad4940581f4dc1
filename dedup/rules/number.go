package rules

import (
	"bytes"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Reasons why a number cannot be part of a key. They say what the sender can do, but they do not contain the
// number, because reasons are written to logs and headers.
const (
	reasonRange     = "the number is beyond the range of float64; send it as a string"
	reasonPrecision = "the number has more digits than float64; send it as a string"
	reasonNotNumber = "want a decimal number"
	reasonTooLong   = "the number has too many digits"
)

// Bounds on a decimal: its significant digits, and the power of ten of its point. Both are larger than any
// float64 needs; they bound the output of appendFixed.
const (
	decimalDigitsMax = 1000
	decimalPointMax  = 400
)

// decimal is an exact decimal number: 0.D1D2D3... times 10^point, such as 0.125 times 10^2 for 12.5. The
// digits have neither leading nor trailing zeros; zero has no digits and point 0.
type decimal struct {
	negative bool
	digits   []byte // '0' to '9'
	point    int
}

// parseDecimal parses a JSON number literal (RFC 8259, section 6) exactly. It stores the digits in scratch.
// The returned reason is "" if the literal is valid.
func parseDecimal(scratch, text []byte) (decimal, string) {
	v := decimal{digits: scratch[:0]}
	i := 0
	if i < len(text) && text[i] == '-' {
		v.negative = true
		i++
	}
	start := i
	i, v.point = v.parseWhole(text, i)
	if i == start || (text[start] == '0' && i-start > 1) {
		return v, reasonNotNumber
	}
	if i < len(text) && text[i] == '.' {
		start = i + 1
		if i = v.parseFraction(text, start); i == start {
			return v, reasonNotNumber
		}
	}
	exponent, ok := parseExponent(text[i:])
	if !ok {
		return v, reasonNotNumber
	}
	for len(v.digits) > 0 && v.digits[len(v.digits)-1] == '0' {
		v.digits = v.digits[:len(v.digits)-1]
	}
	if len(v.digits) == 0 {
		v.point = 0
		return v, ""
	}
	v.point += exponent
	if len(v.digits) > decimalDigitsMax || v.point > decimalPointMax || v.point < -decimalPointMax {
		return v, reasonTooLong
	}
	return v, ""
}

// parseWhole parses the digits before the point. It returns the index after them
// and the decimal's point.
func (v *decimal) parseWhole(text []byte, i int) (int, int) {
	for ; i < len(text) && isDigit(text[i]); i++ {
		if len(v.digits) > 0 || text[i] != '0' {
			v.digits = append(v.digits, text[i])
		}
	}
	return i, len(v.digits)
}

// parseFraction parses the digits after the point. Zeros before the first
// significant digit move the point.
func (v *decimal) parseFraction(text []byte, i int) int {
	for ; i < len(text) && isDigit(text[i]); i++ {
		if len(v.digits) == 0 && text[i] == '0' {
			v.point--
			continue
		}
		v.digits = append(v.digits, text[i])
	}
	return i
}

// parseExponent parses "", "e5", "E+5" or "e-5". It limits the result to a number far beyond decimalPointMax,
// so that the result cannot overflow.
func parseExponent(text []byte) (int, bool) {
	if len(text) == 0 {
		return 0, true
	}
	if text[0] != 'e' && text[0] != 'E' {
		return 0, false
	}
	text = text[1:]
	negative := false
	if len(text) > 0 && (text[0] == '+' || text[0] == '-') {
		negative = text[0] == '-'
		text = text[1:]
	}
	if len(text) == 0 {
		return 0, false
	}
	n := 0
	for _, c := range text {
		if !isDigit(c) {
			return 0, false
		}
		if n < 1<<28 {
			n = n*10 + int(c-'0')
		}
	}
	if negative {
		n = -n
	}
	return n, true
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func (v *decimal) equal(w *decimal) bool {
	return (v.negative == w.negative || len(v.digits) == 0) &&
		v.point == w.point && bytes.Equal(v.digits, w.digits)
}

// appendFixed appends the value with exactly places digits after the point, rounded half to even, as
// "%.<places>f" prints an exact decimal. A value that rounds to zero has no sign. appendFixed overwrites v.
func (v *decimal) appendFixed(dst []byte, places int) []byte {
	v.round(v.point + places)
	if v.negative && len(v.digits) > 0 {
		dst = append(dst, '-')
	}
	for i := range max(v.point, 1) {
		dst = append(dst, v.at(i+min(v.point, 1)-1))
	}
	if places == 0 {
		return dst
	}
	dst = append(dst, '.')
	for i := range places {
		dst = append(dst, v.at(v.point+i))
	}
	return dst
}

// at returns digit i, counted from the first one; '0' outside of digits.
func (v *decimal) at(i int) byte {
	if i < 0 || i >= len(v.digits) {
		return '0'
	}
	return v.digits[i]
}

// round rounds to the first n digits, half to even.
func (v *decimal) round(n int) {
	if n >= len(v.digits) {
		return
	}
	if n < 0 { // less than a tenth of the last digit's unit: zero
		v.digits, v.point = v.digits[:0], 0
		return
	}
	odd := n > 0 && (v.digits[n-1]-'0')%2 == 1
	up := v.digits[n] > '5' || v.digits[n] == '5' && (len(v.digits) > n+1 || odd)
	v.digits = v.digits[:n]
	for ; up && n > 0 && v.digits[n-1] == '9'; n-- {
		v.digits = v.digits[:n-1] // the nine becomes a trailing zero
	}
	switch {
	case up && n == 0: // all digits were nines, or the value rounds up to one unit
		v.digits, v.point = append(v.digits[:0], '1'), v.point+1
	case up:
		v.digits[n-1]++
	}
	for len(v.digits) > 0 && v.digits[len(v.digits)-1] == '0' {
		v.digits = v.digits[:len(v.digits)-1]
	}
	if len(v.digits) == 0 {
		v.point = 0
	}
}

// floor returns the largest integer not above v times 10^shift, and whether that integer fits into 18 digits.
func (v *decimal) floor(shift int) (int64, bool) {
	point := v.point + shift
	if point > 18 {
		return 0, false
	}
	n := int64(0)
	for i := range max(point, 0) {
		n = n*10 + int64(v.at(i)-'0')
	}
	if v.negative {
		n = -n
		if len(v.digits) > max(point, 0) {
			n--
		}
	}
	return n, true
}

// appendNumber appends a JSON number literal in RFC 8785 form (section 3.2.2.3: as
// ECMAScript prints the float64).
func (d *Deriver) appendNumber(dst, literal []byte) ([]byte, string) {
	if isSmallInteger(literal) {
		return append(dst, literal...), ""
	}
	f, reason := d.checkNumber(literal)
	if reason != "" {
		return dst, reason
	}
	if f == 0 {
		f = 0 // ECMAScript prints negative zero as 0, AppendFloat as -0
	}
	return jsontext.AppendFloat(dst, f, 64), ""
}

// isSmallInteger reports whether a valid literal is an integer of at most 15
// digits. Such a literal is exact in a float64 and already in RFC 8785 form.
func isSmallInteger(literal []byte) bool {
	digits := literal
	if digits[0] == '-' {
		digits = digits[1:]
		if digits[0] == '0' { // -0 is written 0
			return false
		}
	}
	if len(digits) > 15 {
		return false
	}
	for _, c := range digits {
		if !isDigit(c) {
			return false
		}
	}
	return true
}

// checkNumber parses a valid JSON number literal. It refuses a literal that differs from the shortest form of
// its float64: the two must be the same decimal. Therefore two different numbers never become one key. For
// example 333333333.33333329, the sample of RFC 8785, is refused, because 333333333.3333333 has the same
// float64.
func (d *Deriver) checkNumber(literal []byte) (float64, string) {
	v, reason := parseDecimal(d.digits, literal)
	d.digits = v.digits[:0]
	const digitsMax = 17 // enough to print any float64
	switch {
	case reason == reasonTooLong && len(v.digits) <= digitsMax:
		return 0, reasonRange
	case reason == reasonTooLong || len(v.digits) > digitsMax:
		return 0, reasonPrecision
	}
	f, err := strconv.ParseFloat(string(literal), 64)
	if err != nil || f == 0 && len(v.digits) > 0 {
		return 0, reasonRange
	}
	// A float64 in its normal range, from 2^-1022 on, has every decimal of up to 15 digits as its shortest form
	// again.
	const smallestNormal = 0x1p-1022
	if len(v.digits) <= 15 && math.Abs(f) >= smallestNormal || len(v.digits) == 0 {
		return f, ""
	}
	d.shortest = jsontext.AppendFloat(d.shortest[:0], f, 64)
	var scratch [24]byte
	if w, _ := parseDecimal(scratch[:], d.shortest); !v.equal(&w) {
		return 0, reasonPrecision
	}
	return f, ""
}
