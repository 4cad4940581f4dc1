//go:build unix

package main

import (
	"context"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"oncebus/benchmarks/internal/bench"
)

func testLoad(duplicates, old, horizon int) *load {
	s := settings{duplicates: duplicates, old: old}
	l, err := newLoad([]string{"127.0.0.1:1"}, "t", 4, horizon, s)
	if err != nil {
		panic(err)
	}
	return l
}

func TestEventsAreNewKeysAndCopiesOfThem(t *testing.T) {
	const events, horizon = 100_000, 40_000
	l := testLoad(10, 10, horizon)
	defer l.close()
	first := map[int]time.Time{}
	duplicates, farthest := 0, 0
	for range events {
		rec := l.next()
		id, ours := keyNumber(rec.Key)
		if !ours || !strings.Contains(string(rec.Value), `"traceId":"`+string(rec.Key)+`"`) || int(rec.Partition) != id%4 {
			t.Fatalf("key %q in partition %d, value %q", rec.Key, rec.Partition, rec.Value)
		}
		at, seen := first[id]
		switch {
		case !seen && id != len(first):
			t.Fatalf("key %d is new after %d keys", id, len(first))
		case !seen:
			first[id] = rec.Timestamp
		default:
			duplicates++
			farthest = max(farthest, len(first)-id)
			if age := rec.Timestamp.Sub(at); age < 0 || age > window {
				t.Fatalf("a duplicate of key %d is %v old, the window is %v", id, age, window)
			}
		}
	}
	if len(first) != l.keys || duplicates < events*99/1000 || duplicates > events/10 {
		t.Errorf("%d keys (counted %d), %d duplicates of %d events", len(first), l.keys, duplicates, events)
	}
	if farthest < horizon*8/20 {
		t.Errorf("no duplicate is of a key more than %d keys back", farthest)
	}
	if took := first[horizon].Sub(first[0]); (took - retention).Abs() > time.Second {
		t.Errorf("%d keys take %v of event time, want %v", horizon, took, retention)
	}
}

func TestGapsCountOnlyWhileInputWaits(t *testing.T) {
	g := newGaps(1)
	at := func(ms int) time.Time { return time.UnixMilli(int64(1000 + ms)) }
	for _, look := range []struct{ ms, committed, end int }{
		{0, 0, 0}, {50, 0, 10}, {80, 0, 10}, // waits from 50 on
		{120, 4, 10}, {170, 10, 10}, // 70 ms, then 50 ms
		{900, 10, 10}, {910, 10, 12}, {930, 12, 12}, // no input waited; then 20 ms
	} {
		g.see(at(look.ms), []int64{int64(look.committed)}, []int64{int64(look.end)})
	}
	want := []float64{70, 50, 20}
	if len(g.all) != len(want) {
		t.Fatalf("gaps %v, want %v", g.all, want)
	}
	for i := range want {
		if g.all[i] != want[i] {
			t.Errorf("gaps %v, want %v", g.all, want)
		}
	}
	if g.longest[0] != 70*time.Millisecond {
		t.Errorf("longest %v, want 70ms", g.longest[0])
	}
}

func TestTallyFindsWhatIsWrong(t *testing.T) {
	key := func(id int) []byte {
		l := load{}
		return l.value(id)[len(valueHead)-len(keyPrefix) : len(valueHead)+keyDigits]
	}
	for _, c := range []struct {
		name string
		ids  []int
		more string
		want string // in the error; empty for none
	}{
		{name: "all once", ids: []int{0, 1, 2}},
		{name: "one missing", ids: []int{0, 2}, want: "1 of 3 keys are missing"},
		{name: "one twice", ids: []int{0, 1, 1, 2}, want: "1 records repeat"},
		{name: "one that was not sent", ids: []int{0, 1, 2, 70}, want: "1 records were never sent"},
		{name: "a foreign key", ids: []int{0, 1, 2}, more: "hello", want: "1 records were never sent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var found tally
			for _, id := range c.ids {
				found.add(key(id))
			}
			if c.more != "" {
				found.add([]byte(c.more))
			}
			err := found.check(3)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("check returned %v, want %q", err, c.want)
			}
		})
	}
}

func TestRatesOfPartsOfADrain(t *testing.T) {
	at := time.UnixMilli(0)
	w := &watch{load: &load{ends: make([]atomic.Int64, 1)}}
	for i := range 101 { // 10 events each 10 ms in the first half, 20 in the second
		events := int64(10 * i)
		if i > 50 {
			events += int64(10 * (i - 50))
		}
		w.samples = append(w.samples, sample{at.Add(time.Duration(10*i) * time.Millisecond), events})
	}
	got := w.rates(w.samples[0], w.samples[100], 2)
	if len(got) != 2 || math.Abs(got[0]-1000) > 1 || math.Abs(got[1]-2000) > 1 {
		t.Errorf("rates %v, want 1000 and 2000", got)
	}
}

func TestPaceWaitsForTheEventsThatAreDue(t *testing.T) {
	l := testLoad(0, 0, 10)
	defer l.close()
	began := time.Now()
	brake := l.pace(1000)
	l.events = 50
	if err := brake(context.Background()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 45*time.Millisecond {
		t.Errorf("50 events at 1000 a second were due after %v", took)
	}
}

// liveRunOf returns a run that meets every goal, except for those that change breaks.
func liveRunOf(keys int, change func(*liveRun)) liveRun {
	m := drainRun{Rate: 200_000, Slices: bench.Spread{Median: 1, Low: 1, High: 1}}
	r := liveRun{
		Keys: keys, Round: 1, Horizon: keys, RSSMax: 900 << 20, AnonymousMax: 700 << 20, Limited: &limited{Highest: 1280 << 20, Reached: 7}, DiskBytes: int64(29 * keys), DiskKeys: keys, Growing: m, Expiring: m,
		Steady: steady{Gaps: gapFigures{110, 150}}, Restarts: []restart{{Ready: 0.9, Flow: 1}}, Rebuild: rebuild{Keys: keys, Seconds: float64(keys) / 2_100_000},
	}
	if change != nil {
		change(&r)
	}
	return r
}

func TestGoalsAreHeldToTheLargestSize(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*liveRun)
		missed string // the goal; empty for none
	}{
		{name: "all met"},
		{"slow", func(r *liveRun) { r.Growing.Rate, r.Expiring.Rate = 150_000, 150_000 }, "rate relative to"},
		{"many mapped files", func(r *liveRun) { r.RSSMax = 2 << 30 }, "resident memory"},
		{"killed", func(r *liveRun) { r.Limited.Killed = 1 }, "killed in a memory cgroup"},
		{"large heap", func(r *liveRun) { r.AnonymousMax = 2 << 30 }, "anonymous memory"},
		{"large", func(r *liveRun) { r.DiskBytes = int64(32 * r.Keys) }, "disk"},
		{"slow expiry", func(r *liveRun) { r.Expiring.Rate *= 0.85 }, "while keys expire, relative to"},
		{"stall", func(r *liveRun) { r.Steady.Gaps.Longest = 300 }, "longest stall"},
		{"slow rebuild", func(r *liveRun) { r.Rebuild.Seconds *= 2 }, "rebuild"},
		{"slow start", func(r *liveRun) { r.Restarts[0].Ready = 1.2 }, "ready after kill"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := result{s: settings{keys: []int{1_000_000, 50_000_000, 100_000_000}, memory: 1280 << 20}, LiveKeys: []liveRun{
				liveRunOf(1_000_000, nil), liveRunOf(50_000_000, c.change), liveRunOf(100_000_000, nil),
			}}
			for _, g := range r.liveGoals() {
				if strings.Contains(g.What, "100 million") {
					continue
				}
				if isMissed := g.Verdict != bench.Met; isMissed != (c.missed != "" && strings.Contains(g.What, c.missed)) {
					t.Errorf("%s: want %s, got %s: %s", g.What, g.Want, g.Got, g.Verdict)
				}
			}
		})
	}
}

// TestGuessesAreOfTheDefaults: large sizes have one round; the rebalances report once.
func TestGuessesAreOfTheDefaults(t *testing.T) {
	s := settings{what: parts, rounds: 3, keys: []int{1_000_000, 50_000_000}, backlog: 10_000_000, kills: 3, flushWait: 70 * time.Second, shapes: make([]shape, 9), events: 2_000_000, restartKeys: []int{1, 2}}
	all := s.guesses()
	if len(all) != 3+1+3*9+1+4+2 || all[0] < time.Minute || all[0] > 5*time.Minute || all[1] < 10*time.Minute || all[1] > 20*time.Minute {
		t.Errorf("the guesses are %v", all)
	}
}

func TestFitFindsTheLine(t *testing.T) {
	l, ok := fit([]int{1_000_000, 10_000_000, 50_000_000}, []float64{103, 130, 250})
	if got := l.at(extrapolatedKeys); !ok || math.Abs(got-3100) > 0.01 {
		t.Errorf("at a billion: %v (%v), want 3100", got, ok)
	}
	if _, ok := fit([]int{1}, []float64{1}); ok {
		t.Error("a line through one point")
	}
}
