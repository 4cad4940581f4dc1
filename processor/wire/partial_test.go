package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"testing"
)

// partialVectors returns two checkpoints, the second of the transaction after the first, and
// the encoding of the second as a partial one.
func partialVectors() (before, c Checkpoint, partial string) {
	before = Checkpoint{
		Next: 10, Epoch: -1, Sequence: 4, Counted: true,
		Fences: []Fence{{Offset: 300, Latest: []FirstSeen{{1, 100}}}},
		// Namespace 1 has one row in bucket 5 of width 10, first seen at 52, and two events.
		Counts: "\x01\x00" + "\x0a\x01" + "\x0a\x01\x02" + "\x01\xff" + "\x02\x00",
	}
	before.StreamTimes.At[1], before.StreamTimes.Has[1] = 52, true
	before.Progress = Progress{Outcomes: []OutcomesProgress{{Topic: 3, CountedAt: 20, ReadTo: []int64{20}}}}
	c = before
	c.Next, c.Sequence, c.ClaimedAt = 12, 5, 60
	c.StreamTimes.At[1] = 54
	c.StreamTimes.At[2], c.StreamTimes.Has[2] = -1, true
	// Now three rows there, five events and a duplicate; namespace 2 has a row at -1.
	c.Counts = "\x01\x00" + "\x0a\x01" + "\x0a\x03\x02" + "\x01\xff" + "\x05\x01" + "\x02\x00" + "\x0a\x01" + "\x01\x01\x09"
	return before, c, "0502" + "06" + "030018010a00" + "780000" + "02" + "0104" + "0201" +
		"0119" + "0301" + "00" + "0104" + // flags 25, 3 events, 1 duplicate, status 0, 2 rows more
		"0201" + "00" + "0a02" + "0102" + "12" // status 0, width 10, 1 bucket: number -1, 1 row, 9 into it
}

// TestPartialCheckpointEncoding pins every byte, because later builds read a changelog.
func TestPartialCheckpointEncoding(t *testing.T) {
	before, c, want := partialVectors()
	head := want[:len(want)-2*(7+8)]
	if got := hex.EncodeToString(c.AppendPartial(nil, &before, nil, nil)); got != head {
		t.Errorf("got %s, want %s", got, head)
	}
	for _, f := range []Fold{{has: true, whole: true, newest: before}, storedFold(t, &before)} {
		if err := f.Add(1, unhex(t, want)); err != nil {
			t.Fatal(err)
		}
		if got := f.Newest(); !f.IsWhole() || !reflect.DeepEqual(got, c) {
			t.Errorf("folded to %+v, want %+v", got, c)
		}
	}
}

// storedFold returns the fold of a local store with a whole checkpoint.
func storedFold(t *testing.T, c *Checkpoint) Fold {
	t.Helper()
	f, err := ReadStored(c.Stored())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestCheckpointKeys: the key of no checkpoint is that of a row, which has 16 bytes.
func TestCheckpointKeys(t *testing.T) {
	for number, want := range map[uint32]string{0: "checkpoint", 1: "checkpoint/\x00\x00\x00\x01", 1<<32 - 1: "checkpoint/\xff\xff\xff\xff"} {
		key := AppendCheckpointKey(nil, number)
		got, ok := CheckpointNumber(key)
		if string(key) != want || !ok || got != number || len(key) == 16 {
			t.Errorf("number %d has key %q, read as %d, %v", number, key, got, ok)
		}
	}
	for _, key := range []string{"", "checkpoint/", "checkpoint/\x00\x00\x00\x00", "checkpoint/12345", "rows/12345678", "checkpoint-1234", "0123456789abcdef"} {
		if IsCheckpoint([]byte(key)) {
			t.Errorf("%q is the key of a checkpoint", key)
		}
	}
}

// TestFoldRefusesAGap: a partial checkpoint is folded only after the one before it. What is
// known after a gap is what it states itself, until a whole one follows.
func TestFoldRefusesAGap(t *testing.T) {
	before, c, text := partialVectors()
	value, whole := unhex(t, text), before.Append(nil)
	for name, f := range map[string]struct {
		number   uint32
		sequence int64 // of the whole one before
		want     int64 // the sequence that is known; negative if it is not whole
	}{
		"the next one":               {1, 4, 5},
		"another one is missing":     {2, 4, -5},
		"a transaction is missing":   {1, 3, -5},
		"of the same transaction":    {1, 5, 5},
		"of an earlier one":          {1, 6, 6},
		"no whole one":               {1, 0, -5},
		"no whole one, and a higher": {9, 0, -5},
	} {
		var fold Fold
		if f.sequence > 0 {
			first := before
			first.Sequence = f.sequence
			fold = storedFold(t, &first)
		}
		if err := fold.Add(f.number, value); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := fold.Newest()
		known := got.Sequence
		if !fold.IsWhole() {
			known = -known
			if got.Next != c.Next || got.Counted || got.StreamTimes != (streamTimes{}) {
				t.Errorf("%s: known is %+v", name, got)
			}
		}
		if known != f.want {
			t.Errorf("%s: sequence %d, want %d", name, known, f.want)
		}
		if err := fold.Add(0, whole); err != nil || !fold.IsWhole() || !reflect.DeepEqual(fold.Newest(), before) {
			t.Errorf("%s: after a whole one %+v, %v", name, fold.Newest(), err)
		}
	}
}

// TestDamagedPartialCheckpointIsRefused cuts a partial checkpoint short. A cut between two
// namespaces leaves a valid one.
func TestDamagedPartialCheckpointIsRefused(t *testing.T) {
	before, _, text := partialVectors()
	good := unhex(t, text)
	valid := map[int]bool{len(good): true, len(good) - 8: true, len(good) - 8 - 7: true}
	for at := range good {
		f := storedFold(t, &before)
		if err := f.Add(1, good[:at]); !valid[at] && !errors.Is(err, ErrCheckpoint) || valid[at] && err != nil {
			t.Errorf("%d bytes: %v", at, err)
		}
	}
	for name, damage := range map[string]func([]byte) []byte{
		"version":          func(b []byte) []byte { b[0]++; return b },
		"mark":             func(b []byte) []byte { b[1] = 8; return b },
		"flag of counts":   func(b []byte) []byte { b[4] = 1; return b },
		"rows below none":  func(b []byte) []byte { return append(b, 1, 1, 0, 1, 7) },
		"rows of nothing":  func(b []byte) []byte { return append(b, 9, 1, 0, 1, 2) },
		"status of events": func(b []byte) []byte { return append(b, 1, 1, CountsOfEvents, 1, 2) },
		"outside a bucket": func(b []byte) []byte { return append(b, 9, 1, 0, 10, 2, 2, 2, 20) },
	} {
		f := storedFold(t, &before)
		if err := f.Add(1, damage(bytes.Clone(good))); !errors.Is(err, ErrCheckpoint) {
			t.Errorf("%s: %v", name, err)
		}
	}
	stored := before.Stored()
	for at := 1; at < len(stored); at++ {
		if _, err := ReadStored(stored[:at]); !errors.Is(err, ErrCheckpoint) {
			t.Errorf("%d bytes of a local store: %v", at, err)
		}
	}
}

func FuzzPartialCheckpoint(f *testing.F) {
	before, _, text := partialVectors()
	f.Add(unhex(f, text))
	f.Fuzz(func(t *testing.T, b []byte) {
		fold, err := ReadStored(before.Stored())
		if err != nil {
			t.Fatal(err)
		}
		if err := fold.Add(1, b); err != nil {
			if !errors.Is(err, ErrCheckpoint) {
				t.Fatalf("%v is no %v", err, ErrCheckpoint)
			}
			return
		}
		// A task writes a new floor with a whole checkpoint only, and times of claims with a claim.
		c := fold.Newest()
		if !fold.IsWhole() || c.Floor != before.Floor || !c.hasClaims() {
			return
		}
		if again, err := ReadStored(c.Stored()); err != nil || !reflect.DeepEqual(again.Newest(), c) {
			t.Fatalf("%+v was decoded as %+v, %v", c, again.Newest(), err)
		}
	})
}

// TestPartialCheckpointKeepsWhatOnlyAWholeOneStates: the set, the changed windows and the end
// of a task are those of the whole checkpoint before.
func TestPartialCheckpointKeepsWhatOnlyAWholeOneStates(t *testing.T) {
	before := Checkpoint{Set: 3, Next: 10, Epoch: -1, Sequence: 1, Known: []KnownSince{{1, 5, -3}}, Closed: 2}
	after := before
	after.Next, after.Sequence = 12, 2
	var f Fold
	for number, value := range [][]byte{before.Append(nil), after.AppendPartial(nil, &before, nil, nil)} {
		if err := f.Add(uint32(number), value); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.Newest(); !f.IsWhole() || !reflect.DeepEqual(got, after) {
		t.Errorf("got %+v, want %+v", got, after)
	}
}

// TestTimesOfAStepAreKeptWithoutClaims: a task that knows of a step of broker time still knows
// it after a restart, even if it had neither claims nor progress when it wrote its checkpoint.
func TestTimesOfAStepAreKeptWithoutClaims(t *testing.T) {
	for name, times := range map[string]Checkpoint{
		"a step": {SteppedAt: 70}, "a progress record": {ProgressAt: 300}, "both, before 1970": {ProgressAt: -300, SteppedAt: -1},
		"a step before a move": FirstOf([]Checkpoint{{SteppedAt: 70, Closed: 1}}),
	} {
		before := Checkpoint{Epoch: -1, Counted: true, Sequence: 4, Next: 10}
		c := before
		c.Sequence, c.Next, c.ProgressAt, c.SteppedAt = 5, 12, times.ProgressAt, times.SteppedAt
		if back, err := DecodeCheckpoint(c.Append(nil)); err != nil || !reflect.DeepEqual(back, c) {
			t.Errorf("%s: a whole checkpoint was decoded as %+v, %v; want %+v", name, back, err, c)
		}
		f := storedFold(t, &before)
		if err := f.Add(1, c.AppendPartial(nil, &before, nil, nil)); err != nil {
			t.Fatal(err)
		}
		if back := f.Newest(); !f.IsWhole() || back.ProgressAt != c.ProgressAt || back.SteppedAt != c.SteppedAt {
			t.Errorf("%s: a partial checkpoint was folded to %+v, want %+v", name, back, c)
		}
	}
}
