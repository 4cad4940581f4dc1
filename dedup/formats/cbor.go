package formats

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/fxamacker/cbor/v2"
)

// cborMode decodes into Go values. A name that a map has twice is an error.
var cborMode = func() cbor.DecMode {
	mode, err := cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, MaxNestedLevels: depthMax, MaxArrayElements: elementsMax, MaxMapPairs: elementsMax,
		IntDec: cbor.IntDecConvertNone, TimeTagToAny: cbor.TimeTagToTime, MapKeyByteString: cbor.MapKeyByteStringAllowed,
	}.DecMode()
	if err != nil {
		panic(err) // the options are constant
	}
	return mode
}()

// elementsMax is the most elements of one array, and the most pairs of one map.
const elementsMax = 1 << 20

// Numbers of tags in the registry of RFC 8949.
const (
	cborEpoch           = 1
	cborDecimalFraction = 4
	cborUUID            = 37
	// cborFloatEpoch replaces cborEpoch before a float, see markFloatEpochs. No value may have this number.
	cborFloatEpoch = math.MaxUint64
)

// appendCBOR appends the JSON text of a CBOR value.
func appendCBOR(dst, b []byte) ([]byte, error) {
	var v any
	if err := cborMode.Unmarshal(markFloatEpochs(b), &v); err != nil {
		return dst, errors.New(strings.TrimPrefix(err.Error(), "cbor: "))
	}
	limit := len(dst) + textLimit(len(b))
	dst, err := appendCBORValue(dst, v)
	if err == nil && len(dst) > limit {
		err = errLong(limit)
	}
	return dst, err
}

// appendCBORValue appends the JSON text of a decoded value, and of all values in it.
func appendCBORValue(dst []byte, v any) (_ []byte, err error) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case string:
		return appendText(dst, []byte(v))
	case []byte:
		return appendBase64(dst, v), nil
	case float32:
		return appendFloat(dst, float64(v), 32), nil
	case float64:
		return appendFloat(dst, v, 64), nil
	case time.Time:
		return appendUTC(dst, layoutTimestamp, v.UTC())
	case cbor.Tag:
		return appendCBORTag(dst, v)
	case []any:
		dst = append(dst, '[')
		for i, element := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = appendCBORValue(dst, element); err != nil {
				return dst, err
			}
		}
		return append(dst, ']'), nil
	case map[any]any:
		return appendCBORMap(dst, v)
	}
	digits, ok := cborInteger(v)
	if !ok {
		return dst, fmt.Errorf("a %T has no JSON", v)
	}
	return appendDigits(dst, digits), nil
}

// appendCBORMap appends a map as an object, whose members are in no particular order. A key is a text or an
// integer.
func appendCBORMap(dst []byte, m map[any]any) (_ []byte, err error) {
	dst = append(dst, '{')
	first := true
	for key, value := range m {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		text, ok := key.(string)
		if !ok {
			if text, ok = cborInteger(key); !ok {
				return dst, fmt.Errorf("a map has a key that is neither a text nor an integer: %T", key)
			}
		}
		if dst, err = appendText(dst, []byte(text)); err != nil {
			return dst, err
		}
		if dst, err = appendCBORValue(append(dst, ':'), value); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// cborInteger returns the digits of an integer.
func cborInteger(v any) (string, bool) {
	switch v := v.(type) {
	case int64:
		return strconv.FormatInt(v, 10), true
	case uint64:
		return strconv.FormatUint(v, 10), true
	case big.Int:
		return v.String(), true
	case cbor.SimpleValue:
		return strconv.Itoa(int(v)), true
	}
	return "", false
}

// appendDigits appends an integer of any length, as appendInt does.
func appendDigits(dst []byte, digits string) []byte {
	if v, err := strconv.ParseInt(digits, 10, 64); err == nil {
		return appendInt(dst, v)
	}
	return append(append(append(dst, '"'), digits...), '"')
}

// appendCBORTag appends the content of a tag. A tag that has no meaning here is left out.
func appendCBORTag(dst []byte, tag cbor.Tag) ([]byte, error) {
	switch tag.Number {
	case cborFloatEpoch:
		if seconds, ok := tag.Content.(float64); ok {
			return appendFloatEpoch(dst, seconds)
		}
	case cborUUID:
		if b, ok := tag.Content.([]byte); ok && len(b) == 16 {
			return appendUUID(dst, [16]byte(b)), nil
		}
	case cborDecimalFraction:
		if parts, ok := tag.Content.([]any); ok && len(parts) == 2 {
			exponent, ofExponent := cborInteger(parts[0])
			mantissa, ofMantissa := cborInteger(parts[1])
			scale, err := strconv.Atoi(exponent)
			if ofExponent && ofMantissa && err == nil {
				if scale > decimalScaleMax || scale < -decimalScaleMax {
					return dst, errScale
				}
				return appendScaled(dst, mantissa, -scale), nil
			}
		}
	}
	return appendCBORValue(dst, tag.Content)
}

// markFloatEpochs replaces the tag of each time in seconds that is a float. If the tag stayed, the decoder
// would return the time in nanoseconds. A float64 holds a present time only to about 200 ns, so the last digits
// would not be what the sender wrote.
func markFloatEpochs(b []byte) []byte {
	var marked []byte
	from := 0
	for at := 0; at < len(b); {
		major, value, n := cborHead(b[at:])
		next := at + n
		switch {
		case major == 6 && value == cborEpoch && next < len(b) && b[next] >= 0xf9 && b[next] <= 0xfb:
			marked = append(marked, b[from:at]...)
			marked = binary.BigEndian.AppendUint64(append(marked, 6<<5|27), cborFloatEpoch)
			from = next
		case major == 2 || major == 3: // its text, in pieces that have heads of their own, or here
			next += int(min(value, uint64(len(b)-min(next, len(b)))))
		}
		at = next
	}
	if marked == nil {
		return b
	}
	return append(marked, b[min(from, len(b)):]...)
}

// cborHead reads the head of a data item: its major type, its argument, and the length of the head. A head of
// indefinite length has no argument.
func cborHead(b []byte) (major byte, value uint64, n int) {
	major, info := b[0]>>5, b[0]&31
	if info < 24 {
		return major, uint64(info), 1
	}
	if info > 27 {
		return major, 0, 1
	}
	n = 1 << (info - 24)
	for i := 1; i <= n && i < len(b); i++ {
		value = value<<8 | uint64(b[i])
	}
	return major, value, 1 + n
}

// appendFloatEpoch appends a time with the shortest number of seconds that reads back as the same float.
func appendFloatEpoch(dst []byte, seconds float64) ([]byte, error) {
	whole, fraction, _ := strings.Cut(strconv.FormatFloat(math.Abs(seconds), 'f', -1, 64), ".")
	s, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return dst, errTime
	}
	fraction = (fraction + "000000000")[:9]
	nanos, err := strconv.ParseInt(fraction, 10, 64)
	if err != nil {
		return dst, errTime
	}
	if seconds < 0 {
		s, nanos = -s, -nanos
	}
	return appendSeconds(dst, s, nanos)
}
