package wire

import (
	"encoding/hex"
	"errors"
	"reflect"
	"testing"

	"oncebus/dedup"
	"oncebus/dedup/sketch"
)

// sendersVector is a whole checkpoint with senders, of version 6: the claims are empty.
func sendersVector() (c Checkpoint, text string) {
	c = Checkpoint{Next: 10, Epoch: -1, Sequence: 4, Senders: []RouteSenders{
		{Route: "a", Summary: sketch.Summary{Capacity: 2, Total: 5, Counters: []sketch.Counter{{Name: "x", Count: 3}, {Name: "yz", Count: 2, Error: 1}}}},
		{Route: "bc", Summary: sketch.Summary{Capacity: 16}},
	}}
	c.StreamTimes.At[1], c.StreamTimes.Has[1] = 52, true
	return c, "0600" + "14010800" + "000000" + "0000" + "02" +
		"0161" + "02050002" + "01780300" + "02797a0201" + "026263" + "10000000" + "0168"
}

// TestSendersEncoding pins every byte of a checkpoint with senders, and refuses a damaged one.
func TestSendersEncoding(t *testing.T) {
	c, text := sendersVector()
	if got := hex.EncodeToString(c.Append(nil)); got != text {
		t.Errorf("got %s, want %s", got, text)
	}
	if back, err := DecodeCheckpoint(unhex(t, text)); err != nil || !reflect.DeepEqual(back, c) {
		t.Errorf("decoded to %+v, %v", back, err)
	}
	for at := range len(text)/2 - 2 {
		if got, err := DecodeCheckpoint(unhex(t, text)[:at]); !errors.Is(err, ErrCheckpoint) {
			t.Errorf("%d bytes were decoded to %+v, %v", at, got, err)
		}
	}
	for name, b := range map[string]string{
		"no route": "0600" + "14010800" + "000000" + "0000" + "00", "more counters than the capacity": "0600" + "14010800" + "000000" + "0000" + "01" + "0161" + "01020002" + "01780300" + "01790200",
	} {
		if got, err := DecodeCheckpoint(unhex(t, b)); !errors.Is(err, ErrCheckpoint) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestSendersAreFolded: a partial checkpoint has what changed in the counts of senders. One
// without changes keeps them, and no checkpoint before it changes.
func TestSendersAreFolded(t *testing.T) {
	whole, _ := sendersVector()
	s := sketch.New(16)
	s.Load(whole.Senders[1].Summary)
	var fold Fold
	if err := fold.Add(0, whole.Append(nil)); err != nil {
		t.Fatal(err)
	}
	before, kept := whole, fold.Newest()
	for number, names := range [][]string{1: {"p", "p", ""}, 2: {}, 3: {"q", "p"}} {
		if number == 0 {
			continue
		}
		next := before
		next.Sequence, next.Next = before.Sequence+1, before.Next+1
		var changes []byte
		for _, name := range names {
			s.Offer([]byte(name))
		}
		if s.IsChanged() {
			changes = s.AppendChanges(AppendSenderRoute(nil, 1))
		}
		s.Commit()
		next.Senders = []RouteSenders{whole.Senders[0], {Route: "bc", Summary: s.Summary()}}
		if err := fold.Add(uint32(number), next.AppendPartial(nil, &before, changes, nil)); err != nil {
			t.Fatal(err)
		}
		if got := fold.Newest(); !reflect.DeepEqual(got, next) {
			t.Errorf("%v: folded to %+v, want %+v", names, got, next)
		}
		before = next
	}
	if !reflect.DeepEqual(kept, whole) {
		t.Errorf("the whole one became %+v", kept)
	}
}

// TestDamagedSendersAreRefused: changes of a route that the whole checkpoint does not have, and
// changes that are cut short.
func TestDamagedSendersAreRefused(t *testing.T) {
	whole, _ := sendersVector()
	for name, changes := range map[string]string{
		"another route": "02" + "01010300" + "0178" + "00", "no change": "00", "cut short": "01" + "01" + "01" + "01",
		"more than the capacity": "00" + "01" + "03" + "0001" + "0201" + "0501" + "016100",
	} {
		var fold Fold
		if err := fold.Add(0, whole.Append(nil)); err != nil {
			t.Fatal(err)
		}
		next := whole
		next.Sequence++
		if err := fold.Add(1, next.AppendPartial(nil, &whole, unhex(t, changes), nil)); !errors.Is(err, ErrCheckpoint) {
			t.Errorf("%s: %+v, %v", name, fold.Newest().Senders, err)
		}
	}
	r := dedup.NewCursor([]byte{0})
	if decodeSenders(&r); !r.Bad() {
		t.Error("no route was decoded")
	}
}
