package app

import (
	"testing"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// TestCountsOfAnUnknownNamespaceAreCarried: in a rolling update, a task goes from a process
// with a route to one without it, and back. The counts of the route's keys are the same.
func TestCountsOfAnUnknownNamespaceAreCarried(t *testing.T) {
	span := dedup.Window{Size: time.Hour.Milliseconds()}
	appOf := func(ids ...uint8) *App {
		rt := &App{}
		for _, id := range ids {
			mode := rules.Plain
			if id == 2 {
				mode = rules.ClaimMode
			}
			rt.Routes = append(rt.Routes, &Route{Route: &rules.Route{Mode: mode}, NamespaceID: id, Span: span})
		}
		return rt
	}
	all := NewCounts(appOf(1, 2, 3))
	for n := range int64(10) {
		all.Of(1, dedup.Seen).Add(n)
		all.Of(2, dedup.Completed).Add(n)
		all.Of(2, StatusWaiting).Add(n)
		all.Of(3, dedup.Seen).Add(n)
		all.CountLookup(2, dedup.Duplicate)
		all.CountLookup(3, dedup.Unique)
	}
	want := all.Encode()

	without := NewCounts(appOf(3))
	if recount, err := without.Decode(&wire.Checkpoint{Counts: want}, 0); err != nil || len(recount) > 0 {
		t.Fatalf("recount %v, error %v", recount, err)
	}
	open := without.Open(appOf(3))
	open.Of(3, dedup.Seen).Add(5)
	open.CountLookup(3, dedup.Unique)

	back := NewCounts(appOf(1, 2, 3))
	if recount, err := back.Decode(&wire.Checkpoint{Counts: open.Encode()}, 0); err != nil || len(recount) > 0 {
		t.Fatalf("recount %v, error %v", recount, err)
	}
	all.Of(3, dedup.Seen).Add(5)
	all.CountLookup(3, dedup.Unique)
	if got, want := back.Encode(), all.Encode(); got != want {
		t.Errorf("counts after a process without two of the routes\n%x, want\n%x", got, want)
	}
	// A second round carries them once, not twice.
	if _, err := without.Decode(&wire.Checkpoint{Counts: open.Encode()}, 0); err != nil {
		t.Fatal(err)
	}
	if got, want := len(without.Encode()), len(open.Encode()); got != want {
		t.Errorf("%d bytes after a second round, want %d", got, want)
	}
}
