package rules

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// canonicalOptions make jsontext write RFC 8785. They switch off jsontext's checks of names and UTF-8, because
// payload.read has already checked both.
var canonicalOptions = []jsontext.Options{
	jsontext.CanonicalizeRawInts(true),
	jsontext.CanonicalizeRawFloats(true),
	jsontext.ReorderRawObjects(true),
	jsontext.AllowDuplicateNames(true),
	jsontext.AllowInvalidUTF8(true),
}

// appendCanonical appends the canonical form of a JSON value that payload.read has checked. If the value has a
// number that a float64 would change, it returns a text that says so.
func (d *Deriver) appendCanonical(dst, raw []byte) ([]byte, string) {
	switch c := raw[0]; {
	case c == '{' || c == '[':
		if reason := d.checkNumbers(raw); reason != "" {
			return dst, reason
		}
	case c == '-' || isDigit(c):
		return d.appendNumber(dst, raw)
	case c != '"' || bytes.IndexByte(raw, '\\') < 0:
		return append(dst, raw...), "" // a literal, or a string without escapes, is canonical
	}
	dst, err := jsontext.AppendFormat(dst, raw, canonicalOptions...)
	if err != nil { // unreachable for a checked value
		return dst, "payload cannot be made canonical: " + err.Error()
	}
	return dst, ""
}

// checkNumbers calls checkNumber for every number of a checked JSON value.
func (d *Deriver) checkNumbers(raw []byte) string {
	for i := 0; i < len(raw); {
		switch c := raw[i]; {
		case c == '"':
			i = skipString(raw, i)
		case c == '-' || isDigit(c):
			end := skipNumber(raw, i)
			if literal := raw[i:end]; !isSmallInteger(literal) {
				if _, reason := d.checkNumber(literal); reason != "" {
					return reason
				}
			}
			i = end
		default:
			i++
		}
	}
	return ""
}

// appendQuoted appends text as a canonical JSON string (RFC 8785, section
// 3.2.2.2). The text must be valid UTF-8.
func appendQuoted(dst, text []byte) []byte {
	dst, _ = jsontext.AppendQuote(dst, text) // the only error is invalid UTF-8
	return dst
}

// appendUnquoted appends the text of a checked JSON string.
func appendUnquoted(dst, quoted []byte) []byte {
	dst, _ = jsontext.AppendUnquote(dst, quoted) // the only error is an invalid string
	return dst
}

// The functions below find the ends of values. They check no syntax, so they may read checked JSON only.

// skipString returns the index after the string that starts at i.
func skipString(b []byte, i int) int {
	for i++; ; i++ {
		n := bytes.IndexByte(b[i:], '"')
		i += n
		escapes := 0
		for b[i-1-escapes] == '\\' { // ends at the opening quote at the latest
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}

// skipNumber returns the index after the number that starts at i.
func skipNumber(b []byte, i int) int {
	for i < len(b) && (isDigit(b[i]) || b[i] == '-' || b[i] == '+' || b[i] == '.' || b[i] == 'e' || b[i] == 'E') {
		i++
	}
	return i
}

// skipSpace returns the index of the first byte at or after i that is not
// white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the index after the value that starts at i. It uses no
// recursion, because a payload may be nested deeply.
func skipValue(b []byte, i int) int {
	for depth := 0; ; {
		switch c := b[i]; {
		case c == '"':
			i = skipString(b, i)
		case c == '{' || c == '[':
			depth++
			i++
		case c == '}' || c == ']':
			depth--
			i++
		case c == '-' || isDigit(c):
			i = skipNumber(b, i)
		case c == 't' || c == 'n':
			i += len("true")
		case c == 'f':
			i += len("false")
		default: // comma, colon, white space: only inside a container
			i++
			continue
		}
		if depth == 0 {
			return i
		}
	}
}
