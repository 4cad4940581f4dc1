package dedup

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// A Token names one attempt at one claim. The executor sends the token back with the outcome, and the task
// refuses a token if it belongs to an older attempt, to an expired claim, or to another app.
type Token struct {
	NamespaceID uint8
	// App identifies the app that dispatched the attempt; 0 in a token of an earlier build, which did not write
	// the app into tokens.
	App       uint64
	Partition int32 // partition of the task that made the claim
	Digest    Digest
	At        Position // of the event that made the claim
	Attempt   uint32
}

// Versions of the text. Only tokenVersionApp names the app.
const tokenVersion, tokenVersionApp = 1, 2

// ErrToken is the error that every error of ParseToken wraps.
var ErrToken = errors.New("no claim token")

var tokenSum = crc32.MakeTable(crc32.Castagnoli)

// Append appends the token as text: base64url of
//
//	version 1 | namespace id 1 | [app 8] | digest 16 | partition uvarint |
//	topic uvarint | partition uvarint | offset uvarint | attempt uvarint | CRC-32C 4
//
// A token without an app has version 1, so that earlier builds can read it. The checksum detects a text that
// was cut or mistyped. It does not prevent forgery.
func (t *Token) Append(dst []byte) []byte {
	raw := make([]byte, 0, tokenRawMax)
	if t.App == 0 {
		raw = append(raw, tokenVersion, t.NamespaceID)
	} else {
		raw = binary.LittleEndian.AppendUint64(append(raw, tokenVersionApp, t.NamespaceID), t.App)
	}
	raw = append(raw, t.Digest[:]...)
	raw = binary.AppendUvarint(raw, uint64(uint32(t.Partition)))
	raw = t.At.append(raw)
	raw = binary.AppendUvarint(raw, uint64(t.Attempt))
	raw = binary.LittleEndian.AppendUint32(raw, crc32.Checksum(raw, tokenSum))
	return base64.RawURLEncoding.AppendEncode(dst, raw)
}

// tokenRawMax is the length of the longest token before base64, in bytes.
const tokenRawMax = 2 + 8 + 16 + 5*binary.MaxVarintLen64 + 4

// TokenBytesMax is the length of the longest text of a token, in bytes.
var TokenBytesMax = base64.RawURLEncoding.EncodedLen(tokenRawMax)

// ParseToken reads what Append wrote, and refuses every other spelling of the same token. The error wraps
// ErrToken.
func ParseToken(text []byte) (t Token, err error) {
	if len(text) == 0 || len(text) > TokenBytesMax {
		return t, fmt.Errorf("%w: %d bytes", ErrToken, len(text))
	}
	raw, err := base64.RawURLEncoding.Strict().AppendDecode(nil, text)
	if err != nil {
		return t, fmt.Errorf("%w: %w", ErrToken, err)
	}
	if len(raw) < 4 || crc32.Checksum(raw[:len(raw)-4], tokenSum) != binary.LittleEndian.Uint32(raw[len(raw)-4:]) {
		return t, fmt.Errorf("%w: the checksum does not match: the text was cut or changed", ErrToken)
	}
	c := NewCursor(raw[:len(raw)-4])
	version := c.Byte()
	if version != tokenVersion && version != tokenVersionApp {
		return t, fmt.Errorf("%w: version %d, this build reads %d and %d", ErrToken, version, tokenVersion, tokenVersionApp)
	}
	t.NamespaceID = c.Byte()
	if version == tokenVersionApp {
		t.App = c.Uint64()
	}
	copy(t.Digest[:], c.Bytes(len(t.Digest)))
	t.Partition = int32(c.Uvarint(1<<31 - 1))
	t.At = c.Position()
	t.Attempt = uint32(c.Uvarint(1<<32 - 1))
	if !c.Done() {
		return Token{}, fmt.Errorf("%w: cut short or out of range", ErrToken)
	}
	// The decoders above also accept other spellings of a token: base64 ignores line breaks, and a varint has
	// longer forms.
	if !bytes.Equal(t.Append(nil), text) {
		return Token{}, fmt.Errorf("%w: it has a line break, or is not written as oncebus writes it", ErrToken)
	}
	return t, nil
}

// TokenOf returns the token of the current attempt of a row, without an app.
func TokenOf(r *Row, partition int32) Token {
	return Token{NamespaceID: r.NamespaceID, Partition: partition, Digest: r.Digest, At: r.At, Attempt: r.Attempt}
}

// fits reports whether the token names the current attempt of the row.
func (t *Token) fits(r Row) bool {
	return t.Attempt == r.Attempt && t.At == r.At
}
