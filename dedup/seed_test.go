package dedup

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSeedIsAnEventThatWasEmittedElsewhere protects that a seed stores the row that an event at its time would store,
// and stores nothing where that event would not be a first event.
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

// TestSeedsAreClaimsWithoutAToken covers the token of a seeded claim. An open claim of an app has a token, which
// names a place of the app. The claim of a seed line has no token, and neither has a forwarded claim.
func TestSeedsAreClaimsWithoutAToken(t *testing.T) {
	for _, since := range []int64{0, 5} {
		claim := Claim{Key: [32]byte{1}, Since: since, Original: []byte("r-1"), Requests: []Request{{ID: []byte("r-1")}}, Result: []byte("done")}
		for status := Seen; status <= Freed; status++ {
			row := Row{Status: status, Attempt: 3}
			row.setClaim(&claim)
			got, err := row.SeedClaim()
			open := status == ClaimInProgress || status == Submitted
			if (err == nil) != (status == Completed || open && since == 0) {
				t.Errorf("%v since %d: %v", status, since, err)
			}
			if err == nil && (got.Since != 0 || len(got.Requests) > 0 || string(got.Result) != "done" || string(got.Original) != "r-1" || got.Key != claim.Key) {
				t.Errorf("claim %+v", got)
			}
		}
	}
}

// TestLinesOfAnotherTableAreClaims protects that an operation in progress has the lease of its seed, and that a
// submitted operation expects no outcome.
func TestLinesOfAnotherTableAreClaims(t *testing.T) {
	for _, status := range []Status{ClaimInProgress, Submitted, Completed} {
		var line, row Row
		line.LineClaim(status, &Claim{Key: [32]byte{1}, Result: []byte("done")})
		if err := row.SetSeedClaim(&line, 70, func(*Row) bool { return true }); err != nil {
			t.Fatal(err)
		}
		claim, err := DecodeClaim(row.Result)
		if err != nil || row.Status != status || row.Attempt != 1 || claim.Forwarded() != (status == Submitted) || (claim.Since == 70) != (status == ClaimInProgress) {
			t.Errorf("%v: row %+v, claim %+v, %v", status, row, claim, err)
		}
	}
}
