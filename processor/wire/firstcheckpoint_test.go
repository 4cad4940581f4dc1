package wire

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"oncebus/dedup"
)

// TestFirstCheckpointKnowsWhatAnyOldTaskKnew: the latest times of all closed checkpoints hold, in
// whatever order they come, and rows ahead of a stream time only where no task has reached them.
func TestFirstCheckpointKnowsWhatAnyOldTaskKnew(t *testing.T) {
	closed := []Checkpoint{
		{Set: 3, Next: 100, Sequence: 9, Epoch: 4, Closed: 2, ClaimedAt: 50, SteppedAt: 70, Counts: "x",
			Ahead: []FirstSeen{{1, 40}, {4, -5}}, Known: []KnownSince{{1, 10, 30}, {2, 5, 6}}},
		{Set: 4, Next: 7, ClaimedAt: 60, SteppedAt: 20, Ahead: []FirstSeen{{1, 90}, {2, 15}}, Known: []KnownSince{{1, 20, 25}, {5, 1, 2}}},
		{Set: 4, Closed: 2},
	}
	closed[0].StreamTimes.Has[1], closed[0].StreamTimes.At[1] = true, 80
	closed[1].StreamTimes.Has[1], closed[1].StreamTimes.At[1] = true, 60
	closed[0].StreamTimes.Has[3], closed[0].StreamTimes.At[3] = true, -9 // before 1970
	closed[1].StreamTimes.Has[2], closed[1].StreamTimes.At[2] = true, 15
	closed[1].Sources = []Sources{{NamespaceID: 1, Highest: 85}, {NamespaceID: 6, Highest: 33}} // the rows of sources that were read further
	want := Checkpoint{Epoch: -1, Counted: true, Set: 4, ClaimedAt: 60, SteppedAt: 70,
		Ahead: []FirstSeen{{1, 90}, {4, -5}, {6, 33}}, Known: []KnownSince{{1, 20, 30}, {2, 5, 6}, {5, 1, 2}}}
	want.StreamTimes.Has[1], want.StreamTimes.At[1] = true, 80
	want.StreamTimes.Has[2], want.StreamTimes.At[2] = true, 15
	want.StreamTimes.Has[3], want.StreamTimes.At[3] = true, -9
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		rng.Shuffle(len(closed), func(i, j int) { closed[i], closed[j] = closed[j], closed[i] })
		if got := FirstOf(closed); !reflect.DeepEqual(got, want) {
			t.Fatalf("first checkpoint %+v, want %+v", got, want)
		}
	}
}

// TestEventCountsAreSummed: judged events and duplicates are those of all checkpoints together.
// Counts of rows are not among them, and counts that cannot be decoded are an error.
func TestEventCountsAreSummed(t *testing.T) {
	rows := keyCounts{{1, 0}: {keys: dedup.NewKeyCounter(dedup.Window{Size: 100})}, {1, CountsOfEvents}: {judged: 10, duplicates: 3}}
	rows[countsKey{1, 0}].keys.Add(5)
	other := keyCounts{{1, CountsOfEvents}: {judged: 300, duplicates: 200}, {7, CountsOfEvents}: {judged: 1}}
	sum, err := EventCounts([]Checkpoint{{Counts: rows.encode()}, {}, {Counts: other.encode()}})
	if err != nil {
		t.Fatal(err)
	}
	if want := (keyCounts{{1, CountsOfEvents}: {judged: 310, duplicates: 203}, {7, CountsOfEvents}: {judged: 1}}).encode(); sum != want {
		t.Errorf("sum %x, want %x", sum, want)
	}
	if _, err := EventCounts([]Checkpoint{{Counts: rows.encode()}, {Counts: "\x01"}}); err == nil {
		t.Error("damaged counts are summed")
	}
}
