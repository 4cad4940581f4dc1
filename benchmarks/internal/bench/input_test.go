//go:build unix

package bench

import (
	"testing"
	"time"
)

// TestInputDistinct counts the ids that Distinct computes.
func TestInputDistinct(t *testing.T) {
	for _, events := range []int{1, 949, 950, 951, 1000, 1049, 1050, 1055, 12_345, 100_000} {
		for _, duplicates := range []int{0, 1, 10, 50} {
			in := Input{Events: events, Duplicates: duplicates, First: 7_000, Start: time.UnixMilli(0)}
			tally, seen := Tally{}, make([]bool, events)
			for n := range events {
				tally.add(in.Record(n), in, seen)
			}
			if want := (Tally{Records: events, Distinct: in.Distinct()}); tally != want {
				t.Errorf("%d events, %d %% duplicates: the events are %+v, want %+v", events, duplicates, tally, want)
			}
		}
	}
	in := Input{Events: 100_950, Duplicates: 10}
	if got, want := in.Events-in.Distinct(), 10_000; got != want {
		t.Errorf("%d duplicates among 100,000 events and the first %d, want %d", got, duplicateDistance, want)
	}
}

func TestInputRecordSize(t *testing.T) {
	size := len(Input{}.Record(0).Value)
	if size < 225 || size > 240 {
		t.Errorf("an event has %d bytes, want about 230 as in the reports", size)
	}
}
