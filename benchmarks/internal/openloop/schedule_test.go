//go:build unix

package openloop

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func schedules(t *rapid.T) Schedule {
	return Schedule{
		Rate:       rapid.SampledFrom([]int{1, 7, 999, 1000, 1500, 20_000, 100_000}).Draw(t, "rate"),
		Warmup:     time.Duration(rapid.IntRange(0, 3).Draw(t, "warmup")) * time.Second,
		Measured:   time.Duration(rapid.IntRange(1, 5).Draw(t, "measured")) * time.Second,
		Duplicates: rapid.IntRange(0, DuplicatesMax).Draw(t, "duplicates"),
	}
}

func TestScheduleKeepsTheRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := schedules(t)
		whole := s.Warmup + s.Measured + Cooldown
		if want := int(whole/time.Second) * s.Rate; s.Events() != want {
			t.Fatalf("%d events, want %d", s.Events(), want)
		}
		n := rapid.IntRange(0, s.Events()-1).Draw(t, "n")
		exact := time.Duration(float64(n) / float64(s.Rate) * float64(time.Second))
		if due := s.Due(n); due%Tick != 0 || due > exact+time.Microsecond || due < exact-Tick-time.Microsecond {
			t.Fatalf("event %d is due at %v, want within a Tick before %v", n, due, exact)
		}
		if inside := s.Due(n) >= s.Warmup && s.Due(n) < s.Warmup+s.Measured; s.Counts(n) != inside {
			t.Fatalf("event %d, due at %v, counts: %v", n, s.Due(n), s.Counts(n))
		}
	})
}

func TestScheduleOfBatches(t *testing.T) {
	s := Schedule{Rate: 20_000, Measured: time.Second}
	for n := range s.Events() {
		if want := time.Duration(n/20) * Tick; s.Due(n) != want {
			t.Fatalf("event %d is due at %v, want %v", n, s.Due(n), want)
		}
	}
}

func TestScheduleCopies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := schedules(t)
		copied := map[int]bool{}
		for n := range min(s.Events(), 5000) {
			first := s.First(n)
			if first == n {
				continue
			}
			if s.First(first) != first || copied[first] {
				t.Fatalf("event %d is a duplicate of %d, which is a duplicate itself or has one already", n, first)
			}
			copied[first] = true
		}
	})
	s := Schedule{Rate: 1000, Measured: 10 * time.Second, Duplicates: 10}
	duplicates := 0
	for n := range s.Events() {
		if s.First(n) != n {
			duplicates++
		}
	}
	// None before there is an event to duplicate, none in the Cooldown.
	if want := 900; duplicates != want {
		t.Errorf("%d duplicates among %d events, want %d", duplicates, s.Events(), want)
	}
}
