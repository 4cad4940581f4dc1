package formats

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Errors of every format.
var (
	errShort    = errors.New("the value is cut short or damaged")
	errLeftOver = errors.New("bytes are left over after the value")
	errUTF8     = errors.New("a text is not valid UTF-8")
	errDeep     = fmt.Errorf("values are nested in each other more than %d times", depthMax)
	errTime     = errors.New("a time is not between the years 0 and 9999")
	errDuration = errors.New("a duration is over 10,000 years, or its seconds and nanoseconds have different signs")
	errScale    = fmt.Errorf("a decimal has a scale below -%d or over %[1]d", decimalScaleMax)
)

// depthMax is how deep values may be nested. A message or record type may refer to itself.
const depthMax = 200

// decimalScaleMax bounds the scale of a decimal that the value itself names.
const decimalScaleMax = 1000

// Bounds of the text of a value. Without them a short value could become a huge text, because an element
// without fields takes no byte on the wire.
const (
	expansionMax = 1024
	textMax      = 64 << 20 // bytes
	textMin      = 1 << 16  // allowed for any value, bytes
)

// textLimit returns how long the text of a value of n bytes may be.
func textLimit(n int) int { return max(textMin, min(n, textMax/expansionMax)*expansionMax) }

func errLong(limit int) error {
	return fmt.Errorf("as JSON the value is longer than %d bytes", limit)
}

// exactMax is 2^53, up to which a float64 represents every integer.
const exactMax = 1 << 53

// appendInt appends an integer. Above exactMax it appends a string, because readers of JSON, and RFC 8785,
// would round such a number to another number.
func appendInt(dst []byte, v int64) []byte {
	if v > exactMax || v < -exactMax {
		dst = strconv.AppendInt(append(dst, '"'), v, 10)
		return append(dst, '"')
	}
	return strconv.AppendInt(dst, v, 10)
}

func appendUint(dst []byte, v uint64) []byte {
	if v > exactMax {
		dst = strconv.AppendUint(append(dst, '"'), v, 10)
		return append(dst, '"')
	}
	return strconv.AppendUint(dst, v, 10)
}

// appendFloat appends a number of 32 or 64 bits as the shortest text that reads back as the same value of
// that width: 1.1 is 1.1 in both.
func appendFloat(dst []byte, v float64, bits int) []byte {
	switch {
	case math.IsNaN(v):
		return append(dst, `"NaN"`...)
	case math.IsInf(v, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(v, -1):
		return append(dst, `"-Infinity"`...)
	case v == 0:
		return append(dst, '0') // -0 is equal to 0, so it has the same text
	}
	format := byte('f')
	if abs := math.Abs(v); abs < 1e-6 || abs >= 1e21 {
		format = 'e'
	}
	return strconv.AppendFloat(dst, v, format, -1, bits)
}

// appendText appends a string. A string that is not valid UTF-8 is an error, because a replacement character
// would make different ids equal.
func appendText(dst, text []byte) ([]byte, error) {
	dst, err := jsontext.AppendQuote(dst, text)
	if err != nil {
		return dst, errUTF8
	}
	return dst, nil
}

func appendBase64(dst, b []byte) []byte {
	dst = base64.StdEncoding.AppendEncode(append(dst, '"'), b)
	return append(dst, '"')
}

// appendDecimal appends a decimal number: unscaled, in two's complement with the highest byte first, divided
// by ten to the power of scale. It leaves out zeros at the end, so that a schema with another scale has the
// same text.
func appendDecimal(dst, unscaled []byte, scale int) []byte {
	var buf [32]byte
	digits, negative := decimalDigits(buf[:0], unscaled)
	return appendPoint(dst, digits, negative, scale)
}

// appendScaled is appendDecimal for an integer that is given as digits with a sign.
func appendScaled(dst []byte, integer string, scale int) []byte {
	digits, negative := strings.CutPrefix(integer, "-")
	return appendPoint(dst, []byte(digits), negative, scale)
}

// appendPoint appends digits with a decimal point. A scale below zero adds that many zeros.
func appendPoint(dst, digits []byte, negative bool, scale int) []byte {
	for scale > 0 && len(digits) > 1 && digits[len(digits)-1] == '0' {
		digits, scale = digits[:len(digits)-1], scale-1
	}
	dst = append(dst, '"')
	if negative {
		dst = append(dst, '-')
	}
	switch {
	case scale <= 0 || digits[0] == '0':
		dst = append(dst, digits...)
		for ; scale < 0 && digits[0] != '0'; scale++ {
			dst = append(dst, '0')
		}
	case len(digits) > scale:
		dst = append(append(append(dst, digits[:len(digits)-scale]...), '.'), digits[len(digits)-scale:]...)
	default:
		dst = append(dst, "0."...)
		for range scale - len(digits) {
			dst = append(dst, '0')
		}
		dst = append(dst, digits...)
	}
	return append(dst, '"')
}

// decimalDigits returns the digits of a number in two's complement, without its sign.
func decimalDigits(dst, b []byte) (digits []byte, negative bool) {
	negative = len(b) > 0 && b[0]&0x80 != 0
	if len(b) < 8 { // fits in an int64 with room for its sign
		var v int64
		if negative {
			v = -1
		}
		for _, c := range b {
			v = v<<8 | int64(c)
		}
		if negative {
			v = -v
		}
		return strconv.AppendInt(dst, v, 10), negative
	}
	var v big.Int
	v.SetBytes(b)
	if negative {
		v.Sub(new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))), &v)
	}
	return v.Append(dst, 10), negative
}

// Layouts of times. The fraction of a second has the digits that a time needs.
const (
	layoutDate      = "2006-01-02"
	layoutTime      = "15:04:05.999999999"
	layoutTimestamp = "2006-01-02T15:04:05.999999999Z"
	layoutLocal     = "2006-01-02T15:04:05.999999999"
)

// appendTime appends a time in UTC. v counts units since 1970.
func appendTime(dst []byte, layout string, v int64, unit time.Duration) ([]byte, error) {
	perSecond := int64(time.Second / unit)
	t := time.Unix(floorDiv(v, perSecond), (v-floorDiv(v, perSecond)*perSecond)*int64(unit)).UTC()
	return appendUTC(dst, layout, t)
}

// appendSeconds appends a time from the seconds since 1970.
func appendSeconds(dst []byte, seconds, nanos int64) ([]byte, error) {
	const year0, year10000 = -62167219200, 253402300800
	if seconds < year0 || seconds >= year10000 {
		return dst, errTime // time.Unix would overflow
	}
	return appendUTC(dst, layoutTimestamp, time.Unix(seconds, nanos).UTC())
}

func appendUTC(dst []byte, layout string, t time.Time) ([]byte, error) {
	if year := t.Year(); year < 0 || year > 9999 {
		return dst, errTime
	}
	dst = t.AppendFormat(append(dst, '"'), layout)
	return append(dst, '"'), nil
}

// floorDiv divides and rounds down, also below zero.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// quoteFrom puts the part of dst from mark on in quotes.
func quoteFrom(dst []byte, mark int) []byte {
	dst = append(dst, '"', '"')
	copy(dst[mark+1:], dst[mark:len(dst)-2])
	dst[mark] = '"'
	return dst
}

// appendUUID appends the 16 bytes of a UUID in the form of RFC 9562.
func appendUUID(dst []byte, b [16]byte) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for i, c := range b {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, digits[c>>4], digits[c&15])
	}
	return append(dst, '"')
}
