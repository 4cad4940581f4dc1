//go:build unix

package main

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/benchmarks/internal/bench"
)

// TestPlan: a seed always draws the same moments, each in its slot.
func TestPlan(t *testing.T) {
	counts := map[kind]int{kill: 4, pause: 2, restart: 1}
	strikes, load := plan(7, counts)
	again, _ := plan(7, counts)
	if !slices.Equal(strikes, again) {
		t.Errorf("seed 7 draws %v, then %v", strikes, again)
	}
	if want := leadIn + calm + 4*slots[kill] + 2*slots[pause] + slots[restart]; load != want {
		t.Errorf("the load lasts %v, want %v", load, want)
	}
	slot := leadIn
	for _, s := range strikes {
		if s.At < slot || s.At >= slot+2*time.Second {
			t.Errorf("%s at %v is not in the first two seconds of the slot at %v", s.Kind, s.At, slot)
		}
		slot += slots[s.Kind]
		counts[s.Kind]--
	}
	for k, left := range counts {
		if left != 0 {
			t.Errorf("%d strikes of kind %s are missing", left, k)
		}
	}
}

// TestCount adds each event to the fault that caused its loss.
func TestCount(t *testing.T) {
	second := func(id int) time.Duration { return time.Duration(id) * time.Second }
	outcomes := []outcome{{strike: strike{At: 3 * time.Second}}, {strike: strike{At: 10 * time.Second}}}
	input := []int{1, 1, 2, 1, 1, 0, 1, 1, 1, 1, 1, 1}
	output := []int{1, 1, 3, 0, 1, 0, 1, 1, 0, 2, 1, 1}
	lost, doubled := count(input, output, second, outcomes)
	if lost != 2 || doubled != 3 {
		t.Errorf("%d lost, %d doubled, want 2 and 3", lost, doubled)
	}
	if o := outcomes[0]; o.Lost != 1 || o.Doubled != 2 {
		t.Errorf("the first fault lost %d and doubled %d, want 1 and 2", o.Lost, o.Doubled)
	}
	if o := outcomes[1]; o.Lost != 1 || o.Doubled != 1 {
		t.Errorf("the second fault lost %d and doubled %d, want 1 and 1", o.Lost, o.Doubled)
	}
}

func TestCheckInput(t *testing.T) {
	in := bench.Input{Events: 2000, Duplicates: 10}
	counts := make([]int, in.Events)
	for n := range in.Events {
		id, _ := in.Index(in.Record(n).Key)
		counts[id]++
	}
	if err := checkInput(counts, in); err != nil {
		t.Error(err)
	}
	counts[7]++
	if err := checkInput(counts, in); err == nil {
		t.Error("an event too many has no error")
	}
}

// TestRecovery is the longest time of all partitions, of events sent after the moment.
func TestRecovery(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	l := &traffic{in: bench.Input{Partitions: 2}, rate: 1, start: start, partition: []int32{0, 1, 0, 1, 0, 1},
		arrived: []time.Time{at(0.1), at(1.1), at(2.1), {}, at(4.1), at(9)}}
	if got, complete := l.recovery(2 * time.Second); got != 7*time.Second || !complete {
		t.Errorf("recovered after %v (%v), want 7s", got, complete)
	}
	if _, complete := l.recovery(5 * time.Second); complete {
		t.Error("partition 0 has no event after 5s, but counts as recovered")
	}
}

// killed is a system that was killed twice, and nothing else.
var killed = result{System: "x", Processes: 2, Events: 100, Lost: 3, Doubled: 4, Complete: true, Outcomes: []outcome{
	{strike: strike{Kind: kill}, Recovery: 2 * time.Second, Recovered: true, Lost: 1},
	{strike: strike{Kind: kill}, Recovery: time.Second, Recovered: true, Lost: 2, Doubled: 4},
}}

func TestCharts(t *testing.T) {
	events := eventsChart([]result{killed})
	if lost, doubled := events.Series[0].Points[0].Y, events.Series[1].Points[0].Y; lost != 3 || doubled != 4 {
		t.Errorf("bars of %v lost and %v doubled events", lost, doubled)
	}
	for _, s := range recoveryChart([]result{killed}).Series {
		y := s.Points[0].Y
		if s.Name == string(kill) && y != 2 || s.Name != string(kill) && !math.IsNaN(y) {
			t.Errorf("a bar of %v s for %s", y, s.Name)
		}
	}
}

func TestTable(t *testing.T) {
	text := table(settings{}, []result{killed})
	if want := "| x | 2 | 100 | 3 | 4 | 3 / 4, 2.0 s | - | - | 0 |"; !strings.Contains(text, want) {
		t.Errorf("no line %q in\n%s", want, text)
	}
}
