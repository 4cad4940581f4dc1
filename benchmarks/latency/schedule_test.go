//go:build unix

package main

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func schedules(t *rapid.T) schedule {
	return schedule{
		rate:     rapid.SampledFrom([]int{1, 7, 999, 1000, 1500, 20_000, 100_000}).Draw(t, "rate"),
		warmup:   time.Duration(rapid.IntRange(0, 3).Draw(t, "warmup")) * time.Second,
		measured: time.Duration(rapid.IntRange(1, 5).Draw(t, "measured")) * time.Second,
		copies:   rapid.IntRange(0, copiesMax).Draw(t, "copies"),
	}
}

func TestScheduleKeepsTheRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := schedules(t)
		whole := s.warmup + s.measured + cooldown
		if want := int(whole/time.Second) * s.rate; s.events() != want {
			t.Fatalf("%d events, want %d", s.events(), want)
		}
		n := rapid.IntRange(0, s.events()-1).Draw(t, "n")
		exact := time.Duration(float64(n) / float64(s.rate) * float64(time.Second))
		if due := s.due(n); due%tick != 0 || due > exact+time.Microsecond || due < exact-tick-time.Microsecond {
			t.Fatalf("event %d is due at %v, want within a tick before %v", n, due, exact)
		}
		if inside := s.due(n) >= s.warmup && s.due(n) < s.warmup+s.measured; s.counts(n) != inside {
			t.Fatalf("event %d, due at %v, counts: %v", n, s.due(n), s.counts(n))
		}
	})
}

func TestScheduleOfBatches(t *testing.T) {
	s := schedule{rate: 20_000, measured: time.Second}
	for n := range s.events() {
		if want := time.Duration(n/20) * tick; s.due(n) != want {
			t.Fatalf("event %d is due at %v, want %v", n, s.due(n), want)
		}
	}
}

func TestScheduleCopies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := schedules(t)
		copied := map[int]bool{}
		for n := range min(s.events(), 5000) {
			first := s.first(n)
			if first == n {
				continue
			}
			if s.first(first) != first || copied[first] {
				t.Fatalf("event %d is a copy of %d, which is a copy itself or was copied before", n, first)
			}
			copied[first] = true
		}
	})
	s := schedule{rate: 1000, measured: 10 * time.Second, copies: 10}
	copies := 0
	for n := range s.events() {
		if s.first(n) != n {
			copies++
		}
	}
	// None before there is something to copy, none in the cooldown.
	if want := 900; copies != want {
		t.Errorf("%d copies among %d events, want %d", copies, s.events(), want)
	}
}
