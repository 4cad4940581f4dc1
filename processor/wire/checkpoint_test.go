package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
)

// checkpointVectors were computed with the functions above:
//
//	def cp(next, epoch, seq, rows, times): return (b'\x03\x00' + s(next) + s(epoch) + s(seq) + u(rows) + b''.join(bytes([c]) + s(t) for c, t in times)).hex()
//	print(cp(0, -1, 0, 0, []))
//	print(cp(1234567, 7, 99, 300, [(0, 1700000000000), (255, -5)]))
//	print(cp(2**63-1, 2**31-1, 2**63-1, 2**63-1, [(1, 2**63-1), (2, -2**63)]))
func checkpointVectors() map[string]Checkpoint {
	plain := Checkpoint{Next: 1234567, Epoch: 7, Sequence: 99, Rows: 300}
	plain.StreamTimes.At[0], plain.StreamTimes.Has[0] = vectorTime, true
	plain.StreamTimes.At[255], plain.StreamTimes.Has[255] = -5, true
	limits := Checkpoint{Next: math.MaxInt64, Epoch: math.MaxInt32, Sequence: math.MaxInt64, Rows: math.MaxInt64}
	limits.StreamTimes.At[1], limits.StreamTimes.Has[1] = math.MaxInt64, true
	limits.StreamTimes.At[2], limits.StreamTimes.Has[2] = math.MinInt64, true
	// Counted, one namespace up to 300; dead letters are 20, and 128 to 257.
	deadLettered := Checkpoint{
		Next: 10, Epoch: -1, Counted: true, Bypassed: []BypassedOffset{{2, 300}},
		DeadLettered: []OffsetRange{{20, 21}, {128, 258}},
	}
	trimmed := Checkpoint{Next: 10, Epoch: -1, Rows: 9, Floor: 300, FloorRows: 9}
	incomplete := Checkpoint{Next: 10, Epoch: -1, Incomplete: true}
	recreated := Checkpoint{Next: 10, Epoch: -1, Generation: 300}
	// What only an app at level 2 has: set 300, and two namespaces with a changed window.
	changed := Checkpoint{Set: 300, Next: 10, Epoch: -1, Known: []KnownSince{{1, 5, -3}, {200, 0, 300}}, Closed: 2, ClaimedAt: 4}
	return map[string]Checkpoint{"07" + "801a" + "ac02" + "02" + "14010000" + "02" + "010a05" + "c800d804" + "08" + "00" + "00" + "00" + "00": changed, "038014010000ac02": recreated, "030814010009" + "ac0209": trimmed, "031014010000": incomplete, "030714010000" + "0102ac02" + "02" + "1401" + "6b8201" + "00": deadLettered, "030000010000": {Epoch: -1}, "03008eda96010ec601ac020080a0abfef962ff09": plain, "0300feffffffffffffffff01feffffff0ffeffffffffffffffff01ffffffffffffffff7f01feffffffffffffffff0102ffffffffffffffffff01": limits}
}

// TestCheckpointEncoding pins every byte, because later builds read a changelog.
func TestCheckpointEncoding(t *testing.T) {
	for want, c := range checkpointVectors() {
		if got := hex.EncodeToString(c.Append(nil)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if back, err := DecodeCheckpoint(unhex(t, want)); err != nil || !reflect.DeepEqual(back, c) {
			t.Errorf("%s decoded to %+v, %v", want, back, err)
		}
	}
}

// TestDeadLetteredRanges adds offset ranges in any order. They stay disjoint,
// ascending and bounded, and those before the next offset are removed.
func TestDeadLetteredRanges(t *testing.T) {
	c := Checkpoint{Bypassed: []BypassedOffset{{1, 1 << 20}}}
	for _, s := range []OffsetRange{{40, 41}, {10, 12}, {12, 13}, {20, 21}, {10, 11}, {15, 30}, {41, 45}, {0, 1}} {
		c.DeadLetter(s.from, s.to)
	}
	if got := fmt.Sprint(c.DeadLettered); got != "[{0 1} {10 13} {15 30} {40 45}]" {
		t.Errorf("dead-lettered ranges are %s", got)
	}
	for offset, want := range map[int64]bool{0: true, 1: false, 9: false, 10: true, 12: true, 13: false, 29: true, 30: false, 44: true, 45: false} {
		if c.IsDeadLettered(offset) != want {
			t.Errorf("%d is dead-lettered: %v", offset, !want)
		}
	}
	for next, want := range map[int64]string{0: "[{0 1} {10 13} {15 30} {40 45}]", 13: "[{15 30} {40 45}]", 29: "[{15 30} {40 45}]", 45: "[]", 1 << 20: "[]"} {
		behind := c
		behind.Next = next
		if behind.DropBypassed(); fmt.Sprint(behind.DeadLettered) != want || behind.Bypassed == nil != (next == 1<<20) {
			t.Errorf("at %d dead-lettered is %v, bypassed %v, want %s", next, behind.DeadLettered, behind.Bypassed, want)
		}
	}
	for n := range int64(2 * deadLetteredMax) {
		c.DeadLetter(100+2*n, 101+2*n)
	}
	back, err := DecodeCheckpoint(c.Append(nil))
	if err != nil || len(c.DeadLettered) != deadLetteredMax || !reflect.DeepEqual(back, c) {
		t.Errorf("%d of %d offset ranges were decoded: %v", len(back.DeadLettered), len(c.DeadLettered), err)
	}
	if n := len(c.Append(nil)); n > 10<<10 {
		t.Errorf("%d bytes", n)
	}
}

// TestDamagedCheckpointIsRefused: a task must not continue from a damaged checkpoint.
func TestDamagedCheckpointIsRefused(t *testing.T) {
	good := unhex(t, "03008eda96010ec601ac020080a0abfef962ff09")
	whole := map[int]bool{len(good): true}
	for at := range good { // where a checkpoint may end: after its fields and after each stream time
		if c, err := DecodeCheckpoint(good[:at]); err == nil {
			whole[at] = true
			if again := c.Append(nil); !bytes.Equal(again, good[:at]) {
				t.Errorf("%d bytes were decoded to %+v", at, c)
			}
		} else if !errors.Is(err, ErrCheckpoint) {
			t.Errorf("%d bytes: %v", at, err)
		}
	}
	if len(whole) != 3 {
		t.Errorf("%d prefixes were decoded, want 3: with no, one and two stream times", len(whole))
	}
	for name, b := range map[string]string{
		"empty": "", "another version": "05 00 00 01 00 00", "no generation": "03 80 00 01 00 00 00", "no floor": "03 08 00 01 00 00 00", "negative next": "03 00 01 01 00 00", "epoch below -1": "03 00 00 03 00 00", "epoch too large": "03 00 00 8080808010 00 00",
		"namespace id without time": "03 00 00 01 00 00 05",
		"no bypassed offset":        "03 02 14 01 00 00 00", "ranges without bypassed offset": "03 04 14 01 00 00 01 14 01", "no range": "03 06 14 01 00 00 01 02 ac02 00",
		"ranges cut short": "03 06 14 01 00 00 01 02 ac02 02 14 01", "ranges that touch": "03 06 14 01 00 00 01 02 ac02 02 14 01 00 01",
		"empty range": "03 06 14 01 00 00 01 02 ac02 01 14 00", "range out of range": "03 06 14 01 00 00 01 02 ac02 01 14 ffffffffffffffff7f",
	} {
		if c, err := DecodeCheckpoint(unhex(t, b)); !errors.Is(err, ErrCheckpoint) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func FuzzCheckpoint(f *testing.F) {
	for v := range checkpointVectors() {
		f.Add(unhex(f, v))
	}
	for v := range fenceVectors() {
		f.Add(unhex(f, v))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeCheckpoint(b)
		if err != nil {
			if !errors.Is(err, ErrCheckpoint) {
				t.Fatalf("%v is no %v", err, ErrCheckpoint)
			}
			return
		}
		if again, err := DecodeCheckpoint(c.Append(nil)); err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("%+v was decoded as %+v, %v", c, again, err)
		}
	})
}

// TestCheckpointWithCounts decodes a checkpoint with counts, whole and cut short.
func TestCheckpointWithCounts(t *testing.T) {
	c := Checkpoint{Next: 7, Epoch: 1, Sequence: 2, Counts: "\x03counts", Counted: true}
	c.StreamTimes.At[3], c.StreamTimes.Has[3] = vectorTime, true
	b := c.Append(nil)
	if back, err := DecodeCheckpoint(b); err != nil || !reflect.DeepEqual(back, c) {
		t.Errorf("decoded as %+v, %v", back, err)
	}
	for at := range len(b) - 7 {
		if got, err := DecodeCheckpoint(b[:at]); err == nil {
			t.Errorf("%d bytes were decoded to %+v", at, got)
		}
	}
}
