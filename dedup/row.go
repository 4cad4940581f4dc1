package dedup

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
)

// Digest is the key of a row: 16 bytes that combine the SHA-256 (or HMAC-SHA-256) that is the dedup key with
// the namespace and the kind of key; see Source.digest in package rules. Among 10^12 live keys the
// probability that two have the same digest is below 2^-48.
type Digest [16]byte

// String returns the digest as 32 lower-case hex digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Position locates a record in the input topics. Topic is the topic's number in the app's manifest and not
// its name, because a row must stay small.
type Position struct {
	Topic     uint16
	Partition int32
	Offset    int64
}

// Status is the state of a key. Seen belongs to plain deduplication, Freed to both modes, and every other
// status to claim mode, see claimMoves.
type Status uint8

// The numbers are part of the row encoding and never change meaning.
const (
	Seen            Status = 0 // plain deduplication: the first event was emitted
	ClaimInProgress Status = 1 // claim mode: dispatched, no outcome yet
	Submitted       Status = 2 // claim mode: never dispatched again
	Completed       Status = 3 // claim mode: Result has the outcome
	Freed           Status = 4 // erased, or in claim mode failed or rejected; the same as no row
)

var statusNames = [...]string{"seen", "in_progress", "submitted", "completed", "freed"}

// String returns the status as it is written in headers and metric labels.
func (s Status) String() string { return statusNames[s] }

// Row is the state of one dedup key. If several rows with one digest are stored, only the newest counts.
type Row struct {
	Digest Digest
	// First is the event time of the first event, in Unix milliseconds. The window starts here, and a
	// duplicate never moves it.
	First int64
	// At is the position of the first event.
	At Position
	// Fingerprint is a digest of the details in which an event and its duplicates must agree; 0 if the route
	// names no details.
	Fingerprint uint64
	// Shift is the timestamp that the order itself contains, minus First, in ms; 0 on a route without adjacent
	// buckets.
	Shift int64
	// Before is the First of the row of the previous window, if Link is LinkBefore; else 0.
	Before int64
	// NamespaceID is the number of the route's namespace in the manifest. It selects the window and the
	// stream time that decide when the row expires.
	NamespaceID uint8
	Status      Status
	// Earlier reports that the row belongs to an earlier window of its key, so that Digest is an
	// EarlierDigest.
	Earlier bool
	// Again reports that a row of the same event was stored before, so that this row does not count as a new
	// key: only its digest, its link or its hits differ.
	Again bool
	// Link says whether the key also has a row of the previous window.
	Link Link
	// Attempt counts how often the key was claimed; 0 outside claim mode.
	Attempt uint32
	// Result is an encoded Claim, if HasResult is set.
	Result    []byte
	HasResult bool
}

// RowVersion is the version of the encoding that AppendBody writes. It is the first byte of the changelog
// value of a single row, and of every page.
const RowVersion = 1

// ChangelogVersion is the version of everything in a changelog. Version 2 added packs, and checkpoints that
// count rows. Since version 3 a digest is made from the dedup key with a mask (see Source.digest in package
// rules); before, it was a separate hash. A build reads only changelogs of its own version.
const ChangelogVersion = 3

// MaxResultBytes is the longest Result; a row with a longer Result is corrupt.
const MaxResultBytes = 16 << 20

// Flags of the encoded row.
const (
	flagFingerprint = 1 << iota
	flagAttempt
	flagResult
	flagShift
	flagLinkNone
	flagLinkBefore
	flagEarlier
	flagAgain
)

// ErrRow is wrapped by every error about a row that cannot be decoded.
var ErrRow = errors.New("corrupt row")

// AppendBody appends the encoding of r without its digest and without a version:
//
//	flags 1 | namespace id 1 | status 1 | first varint | topic uvarint |
//	partition uvarint | offset uvarint | details
//
// A row of plain deduplication takes 14 to 20 bytes.
func (r *Row) AppendBody(dst []byte) []byte {
	dst = append(dst, r.DetailFlags(), r.NamespaceID, byte(r.Status))
	dst = binary.AppendVarint(dst, r.First)
	dst = binary.AppendUvarint(dst, uint64(r.At.Topic))
	dst = binary.AppendUvarint(dst, uint64(uint32(r.At.Partition)))
	dst = binary.AppendUvarint(dst, uint64(r.At.Offset))
	return r.AppendDetails(dst)
}

// DetailFlags returns which details r has. Details are optional fields, which most rows of plain deduplication
// do not have.
func (r *Row) DetailFlags() byte {
	var flags byte
	if r.Fingerprint != 0 {
		flags |= flagFingerprint
	}
	if r.Attempt != 0 {
		flags |= flagAttempt
	}
	if r.HasResult {
		flags |= flagResult
	}
	if r.Shift != 0 {
		flags |= flagShift
	}
	switch r.Link {
	case LinkUnknown:
	case LinkNone:
		flags |= flagLinkNone
	case LinkBefore:
		flags |= flagLinkBefore
	}
	if r.Earlier {
		flags |= flagEarlier
	}
	if r.Again {
		flags |= flagAgain
	}
	return flags
}

// AppendDetails appends the encoding of the details that DetailFlags names:
//
//	[fingerprint 8] | [attempt uvarint] | [shift varint] | [first - before uvarint] |
//	[result length uvarint (0: null, n+1: n bytes) | result]
func (r *Row) AppendDetails(dst []byte) []byte {
	if r.Fingerprint != 0 {
		dst = binary.LittleEndian.AppendUint64(dst, r.Fingerprint)
	}
	if r.Attempt != 0 {
		dst = binary.AppendUvarint(dst, uint64(r.Attempt))
	}
	if r.Shift != 0 {
		dst = binary.AppendVarint(dst, r.Shift)
	}
	if r.Link == LinkBefore {
		dst = binary.AppendUvarint(dst, uint64(r.First-r.Before)) // wraps around, and the decoder wraps it back
	}
	switch {
	case !r.HasResult:
		return dst
	case r.Result == nil:
		return binary.AppendUvarint(dst, 0)
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Result))+1)
	return append(dst, r.Result...)
}

// DecodeBody decodes into r what AppendBody wrote, that is all but r.Digest. It returns the number of bytes
// read. r.Result aliases b.
func (r *Row) DecodeBody(b []byte) (int, error) {
	c := NewCursor(b)
	flags := c.Byte()
	r.NamespaceID = c.Byte()
	r.Status = Status(c.Byte())
	if r.Status > Freed {
		return 0, fmt.Errorf("%w: unknown status %d", ErrRow, r.Status)
	}
	r.First = c.Varint()
	topic := c.Uvarint(1<<16 - 1)
	partition := c.Uvarint(1<<31 - 1)
	offset := c.Uvarint(1<<63 - 1)
	r.At = Position{Topic: uint16(topic), Partition: int32(partition), Offset: int64(offset)}
	return r.decodeDetails(flags, b, &c)
}

// DecodeDetails decodes into r what AppendDetails wrote; the caller has set r.First. It returns the number of
// bytes read. r.Result aliases b.
func (r *Row) DecodeDetails(flags byte, b []byte) (int, error) {
	c := NewCursor(b)
	return r.decodeDetails(flags, b, &c)
}

// decodeDetails decodes the details at the cursor c in b.
func (r *Row) decodeDetails(flags byte, b []byte, c *Cursor) (int, error) {
	if flags&flagLinkNone != 0 && flags&flagLinkBefore != 0 {
		return 0, fmt.Errorf("%w: flags %#x of two links", ErrRow, flags)
	}
	r.Fingerprint, r.Attempt, r.Shift, r.Result, r.HasResult = 0, 0, 0, nil, false
	r.Earlier, r.Again, r.Link, r.Before = flags&flagEarlier != 0, flags&flagAgain != 0, LinkUnknown, 0
	if flags&flagFingerprint != 0 {
		r.Fingerprint = c.Uint64()
	}
	if flags&flagAttempt != 0 {
		r.Attempt = uint32(c.Uvarint(1<<32 - 1))
	}
	if flags&flagShift != 0 {
		r.Shift = c.Varint()
	}
	switch {
	case flags&flagLinkNone != 0:
		r.Link = LinkNone
	case flags&flagLinkBefore != 0:
		r.Link, r.Before = LinkBefore, r.First-int64(c.Uvarint(math.MaxUint64))
	}
	if flags&flagResult != 0 {
		r.HasResult = true
		if n := c.Uvarint(MaxResultBytes + 1); n > 0 {
			r.Result = c.Bytes(int(n - 1))
		}
	}
	if c.Bad() {
		return 0, fmt.Errorf("%w: cut short or out of range in %d bytes", ErrRow, len(b))
	}
	return len(b) - c.Left(), nil
}

// AppendValue appends the changelog value of r: the version, then the body.
func (r *Row) AppendValue(dst []byte) []byte {
	return r.AppendBody(append(dst, RowVersion))
}

// DecodeValue decodes a changelog value into a row with digest d. b must have exactly one row.
func DecodeValue(d Digest, b []byte) (Row, error) {
	if len(b) == 0 {
		return Row{}, fmt.Errorf("%w: empty", ErrRow)
	}
	if b[0] != RowVersion {
		return Row{}, fmt.Errorf("%w: version %d, this build reads %d", ErrRow, b[0], RowVersion)
	}
	r := Row{Digest: d}
	n, err := r.DecodeBody(b[1:])
	if err != nil {
		return Row{}, err
	}
	if n != len(b)-1 {
		return Row{}, fmt.Errorf("%w: %d bytes after its end", ErrRow, len(b)-1-n)
	}
	return r, nil
}
