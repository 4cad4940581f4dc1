package wire

import "encoding/hex"

// HeaderTraceparent is the W3C header by which a sender makes an event part of a trace. oncebus reads
// the header and passes it on unchanged.
const HeaderTraceparent = "traceparent"

// ParseTraceparent parses the value of a traceparent header (W3C Trace Context, section 3.2): version,
// trace id, span id and flags. sampled reports that the header asks for spans, ok that it is
// well-formed.
func ParseTraceparent(value []byte) (trace [16]byte, span [8]byte, sampled, ok bool) {
	const size, traceAt, spanAt, flagsAt = 55, 3, 36, 53
	if len(value) < size || value[2] != '-' || value[spanAt-1] != '-' || value[flagsAt-1] != '-' {
		return trace, span, false, false
	}
	for i, c := range value[:size] {
		separator := i == traceAt-1 || i == spanAt-1 || i == flagsAt-1
		if !separator && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return trace, span, false, false
		}
	}
	// A value of version 00 has no further fields; a later version may have some. Version ff is
	// invalid.
	version := string(value[:2])
	if version == "ff" || version == "00" && len(value) > size || len(value) > size && value[size] != '-' {
		return trace, span, false, false
	}
	var flags [1]byte
	_, errTrace := hex.Decode(trace[:], value[traceAt:spanAt-1])
	_, errSpan := hex.Decode(span[:], value[spanAt:flagsAt-1])
	_, errFlags := hex.Decode(flags[:], value[flagsAt:size])
	ok = errTrace == nil && errSpan == nil && errFlags == nil && trace != [16]byte{} && span != [8]byte{}
	return trace, span, ok && flags[0]&1 != 0, ok
}
