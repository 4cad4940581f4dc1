package dedup

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSeedIsAnEventThatWasEmittedElsewhere: a seed stores the row that an event at its time
// would store, and nothing where that event would be no first one.
func TestSeedIsAnEventThatWasEmittedElsewhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.Int64Range(0, 40)
		w := Window{Size: rapid.Int64Range(1, 8).Draw(t, "window"), Grace: rapid.Int64Range(0, 4).Draw(t, "grace"), Skew: 5}
		ev := Event{Time: at.Draw(t, "first"), At: Position{Topic: SeedTopic, Offset: 1}, Fingerprint: rapid.Uint64Range(0, 2).Draw(t, "details") << 8}
		streamTime := rapid.OneOf(at, rapid.Just(NoStreamTime)).Draw(t, "stream time")
		prior := Row{First: at.Draw(t, "prior"), At: Position{Topic: rapid.SampledFrom([]uint16{0, SeedTopic}).Draw(t, "of")}, Status: rapid.SampledFrom([]Status{Seen, Freed}).Draw(t, "status")}
		found := rapid.Bool().Draw(t, "found")
		brokerTime := at.Draw(t, "broker time")
		fate, row := DecideSeed(ev, prior, found, w, streamTime, brokerTime)

		decides := found && prior.Status == Seen && (streamTime == NoStreamTime || prior.First >= streamTime-2*w.Size-w.Grace)
		want := SeedTaken
		switch {
		case ev.Time > brokerTime+w.Skew:
			want = SeedInFuture
		case streamTime != NoStreamTime && ev.Time < streamTime-2*w.Size-w.Grace:
			want = SeedOutOfWindow
		case decides && prior.First > ev.Time && prior.First <= ev.Time+w.Size && prior.At.Topic != SeedTopic:
			want = SeedTooLate
		case decides && (prior.First >= ev.Time-w.Size || ev.Time > streamTime):
			want = SeedKnown
		}
		if fate != want {
			t.Fatalf("%v, want %v", fate, want)
		}
		if fate == SeedTaken && (row.First != ev.Time || !row.Seeded() || !w.Retains(row.First, streamTime)) {
			t.Fatalf("row %+v", row)
		}
		if again, _ := DecideSeed(ev, row, true, w, streamTime, brokerTime); fate == SeedTaken && again != SeedKnown {
			t.Fatalf("taken again: %v", again)
		}
	})
}

// TestOnlyCompletedClaimsAreSeeds: an open claim has a token, which names a place of its app.
func TestOnlyCompletedClaimsAreSeeds(t *testing.T) {
	claim := Claim{Key: [32]byte{1}, Since: 5, Original: []byte("r-1"), Requests: []Request{{ID: []byte("r-1")}}, Result: []byte("done")}
	for status := Seen; status <= Freed; status++ {
		row := Row{Status: status, Attempt: 3}
		row.setClaim(&claim)
		got, err := row.SeedClaim()
		if (err == nil) != (status == Completed) {
			t.Errorf("%v: %v", status, err)
		}
		if err == nil && (got.Since != 0 || len(got.Requests) > 0 || string(got.Result) != "done" || string(got.Original) != "r-1" || got.Key != claim.Key) {
			t.Errorf("claim %+v", got)
		}
	}
}
