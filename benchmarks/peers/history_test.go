//go:build unix

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// week is a history of a week with unequal partitions.
var week = shape{Name: "168h/1h", Span: 168 * time.Hour, Window: time.Hour}

func TestParseShapes(t *testing.T) {
	got, err := parseShapes("168h/1h,72m/5m/equal")
	if want := []shape{week, {Name: "72m/5m/equal", Span: 72 * time.Minute, Window: 5 * time.Minute, Equal: true}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
	for _, text := range []string{"", "168h", "168h/", "/1h", "168h/1h/half", "168h/1h/equal/2", "168h/1m", "168h/1h,"} {
		if got, err := parseShapes(text); err == nil {
			t.Errorf("%q is %v, want an error", text, got)
		}
	}
}

// TestPasts: a seed always draws the same history, in order of its times. Each id has at
// most one duplicate, shortly after it, and each partition half of the events of the one
// before.
func TestPasts(t *testing.T) {
	const ids, partitions = 20_000, 4
	events := pasts(week, 7, ids, partitions)
	if !slices.Equal(events, pasts(week, 7, ids, partitions)) {
		t.Error("seed 7 draws two histories")
	}
	first, of := map[int]time.Duration{}, make([]int, partitions)
	for i, e := range events {
		if i > 0 && e.at < events[i-1].at || e.at > week.Span {
			t.Fatalf("event %d is at %v", i, e.at)
		}
		if at, is := first[e.id]; !is {
			if want := e.id * int(week.Span/time.Second) / ids; int(e.at/time.Second) != want {
				t.Fatalf("id %d is at %v, want %d s", e.id, e.at, want)
			}
			first[e.id] = e.at
		} else if e.at-at > copyWithin {
			t.Errorf("id %d has a duplicate %v after it", e.id, e.at-at)
		}
		of[e.partition]++
	}
	if copies := len(events) - ids; len(first) != ids || copies < ids/6 || copies > ids/4 {
		t.Errorf("%d ids and %d duplicates", len(first), copies)
	}
	for p := range partitions - 1 {
		if share := float64(of[p]) / float64(of[p+1]); share < 1.8 || share > 2.2 {
			t.Errorf("the partitions have %v events", of)
		}
	}
	equal := make([]int, partitions)
	for _, e := range pasts(shape{Span: time.Hour, Equal: true}, 7, ids, partitions) {
		equal[e.partition]++
	}
	if low, high := slices.Min(equal), slices.Max(equal); float64(high) > 1.1*float64(low) {
		t.Errorf("equal partitions have %v events", equal)
	}
}

func TestIDOf(t *testing.T) {
	for text, want := range map[string]int{
		`{"traceId":"trace-000000000041","ts":1}`: 41, `{"traceId":"trace-000000000100"}`: -1, `{"ts":1}`: -1, `no JSON`: -1,
	} {
		if id, ours := idOf(100, []byte(text)); ours != (want >= 0) || ours && id != want {
			t.Errorf("%s has id %d (%v), want %d", text, id, ours, want)
		}
	}
}

// TestTallyOf counts ids, not records, except for what came out and what was late.
func TestTallyOf(t *testing.T) {
	got := tallyOf([]int{1, 0, 2, 1, 3, 0}, []int{0, 2, 0, 1, 0, 0})
	if want := (tally{Out: 7, Once: 2, Doubled: 2, Never: 2, Late: 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestHistoryTable(t *testing.T) {
	r := firstStart{shape: week, System: "x", Events: 9, tally: tally{Out: 7, Once: 2, Doubled: 2, Never: 1, Late: 3}}
	text := historyTable(settings{ids: 5, partitions: 6, seed: 1}, []firstStart{r})
	for _, want := range []string{"| 168h/1h | x | 9 | 7 | 2 | 2 | 1 | 3 |", fmt.Sprintf("within %v, in 6 partitions, seed 1", copyWithin)} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
