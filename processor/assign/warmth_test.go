package assign

import (
	"bytes"
	"errors"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"oncebus/processor/app"
)

// TestWarmthIsKept decodes what was encoded, but positions of 0 and below.
func TestWarmthIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := Warmth{Process: rapid.String().Draw(t, "process"), Standby: rapid.Bool().Draw(t, "standby"), Positions: map[app.TaskID]int64{}}
		for range rapid.IntRange(0, 40).Draw(t, "tasks") {
			id := app.TaskID{Topic: rapid.SampledFrom([]string{"routed", "keyed", ""}).Draw(t, "topic"), Partition: rapid.Int32Min(0).Draw(t, "partition")}
			w.Positions[id] = rapid.Int64().Draw(t, "position")
		}
		got, err := decodeWarmth(w.encode())
		maps.DeleteFunc(w.Positions, func(_ app.TaskID, position int64) bool { return position <= 0 })
		if err != nil || !maps.Equal(got.Positions, w.Positions) || got.Process != w.Process || got.Standby != w.Standby {
			t.Fatalf("%v, %v in place of %v", got.Positions, err, w.Positions)
		}
	})
}

// TestWarmthIsBounded: 1,000 partitions with 100 million records each take 5 KB; of 10,000
// the first ones fit.
func TestWarmthIsBounded(t *testing.T) {
	for partitions, least := range map[int32]int{1000: 1000, 10_000: 1300} {
		w := Warmth{Positions: map[app.TaskID]int64{}}
		for p := range partitions {
			w.Positions[app.TaskID{Topic: "oncebus-repartition", Partition: p}] = 100_000_000 + int64(p)
		}
		b := w.encode()
		got, err := decodeWarmth(b)
		if err != nil || len(b) > WarmthBytesMax || len(got.Positions) < least {
			t.Errorf("%d partitions: %d bytes with %d positions, %v", partitions, len(b), len(got.Positions), err)
		}
		if partitions == 1000 && len(b) > 5100 {
			t.Errorf("1,000 partitions take %d bytes", len(b))
		}
		t.Logf("%d partitions: %d bytes, %d positions", partitions, len(b), len(got.Positions))
	}
}

// TestDamagedWarmthLooksCold: what another build wrote must not look like positions.
func TestDamagedWarmthLooksCold(t *testing.T) {
	good := Warmth{Positions: at(70, tasks("routed", 0, 1)...)}.encode()
	for name, b := range map[string][]byte{
		"none":              nil,
		"another version":   append([]byte{2}, good[1:]...),
		"a cut":             good[:len(good)-1],
		"another byte":      append(bytes.Clone(good), 0xff),
		"a long topic":      {warmthVersion, 0, 0, 200, 'h'},
		"a long process":    {warmthVersion, 200, 'a'},
		"no standby":        {warmthVersion, 1, 'a'},
		"standby of 2":      {warmthVersion, 0, 2},
		"many positions":    {warmthVersion, 0, 0, 1, 'h', 255, 255, 255, 255, 15, 0, 1},
		"a large partition": {warmthVersion, 0, 0, 1, 'h', 1, 255, 255, 255, 255, 255, 1, 1},
		"large":             append([]byte{warmthVersion}, make([]byte, WarmthBytesMax)...),
	} {
		if w, err := decodeWarmth(b); !errors.Is(err, errWarmth) || len(w.Positions) > 0 {
			t.Errorf("%s: %v, %v", name, w, err)
		}
	}
}

func FuzzDecodeWarmth(f *testing.F) {
	f.Add(Warmth{Positions: at(70, tasks("routed", 0, 1, 900)...)}.encode())
	f.Add([]byte{warmthVersion, 1, 'a', 1, 1, 'h', 1, 0, 1})
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := decodeWarmth(b)
		if err != nil {
			return
		}
		for id, position := range w.Positions {
			if id.Partition < 0 || position < 0 {
				t.Errorf("%v at %d", id, position)
			}
		}
		if again, err := decodeWarmth(w.encode()); err != nil || len(again.Positions) > len(w.Positions) {
			t.Errorf("encoded again: %v, %v", again, err)
		}
	})
}
