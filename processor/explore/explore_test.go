package explore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// jugs is the state of the puzzle with a jug of 3 litres and a jug of 5 litres.
type jugs struct{ three, five int }

func jugSteps(s jugs, steps []Step[jugs]) []Step[jugs] {
	pour := min(s.three, 5-s.five)
	back := min(s.five, 3-s.three)
	for _, next := range []struct {
		to   jugs
		name string
		jug  int
	}{
		{jugs{3, s.five}, "fill %d", 3},
		{jugs{s.three, 5}, "fill %d", 5},
		{jugs{0, s.five}, "empty %d", 3},
		{jugs{s.three, 0}, "empty %d", 5},
		{jugs{s.three - pour, s.five + pour}, "pour from %d", 3},
		{jugs{s.three + back, s.five - back}, "pour from %d", 5},
	} {
		steps = append(steps, To(next.to, next.name, next.jug))
	}
	return steps
}

func TestShortestTrace(t *testing.T) {
	m := Model[jugs]{Name: "jugs", Start: []jugs{{}}, Next: jugSteps, Check: func(s jugs) error {
		if s.five == 4 {
			return errors.New("4 litres")
		}
		return nil
	}}
	v := Finds(t, m, 6)
	if want := "fill 5|pour from 5|empty 3|pour from 5|fill 5|pour from 5"; strings.Join(v.Trace, "|") != want {
		t.Errorf("trace %q, expected %q", v.Trace, want)
	}
	m.Check = nil
	r, err := Explore(m)
	if err != nil || r.States != 16 || r.Transitions != 96 {
		t.Errorf("%v, %v, expected 16 states with 6 steps each", r, err)
	}
}

// TestStepErrors: a step can itself be wrong. It is then the last line of its trace.
func TestStepErrors(t *testing.T) {
	m := Model[jugs]{Name: "jugs", Start: []jugs{{}}, Next: func(s jugs, steps []Step[jugs]) []Step[jugs] {
		steps = jugSteps(s, steps)
		if s == (jugs{3, 5}) {
			steps[2].Err = errors.New("wasted")
		}
		return steps
	}, Show: func(s jugs) string { return fmt.Sprint(s) }}
	if v := Finds(t, m, 3); v.Trace[2] != "empty 3  ->  {0 5}" {
		t.Errorf("trace %q", v.Trace)
	}
}

func TestFinalAndGoal(t *testing.T) {
	// The transitions are 0 -> 1 -> 2 -> 1, then 1 -> 3, which is final, and 2 -> 4 -> 4, which never reaches a goal.
	next := map[int][]int{0: {1}, 1: {2, 3}, 2: {1, 4}, 4: {4}}
	m := Model[int]{Name: "numbers", Start: []int{0}, Next: func(s int, steps []Step[int]) []Step[int] {
		for _, to := range next[s] {
			steps = append(steps, To(to, "to %d", to))
		}
		return steps
	}}
	m.Final = func(s int) error { return fmt.Errorf("final in %d", s) }
	if v := Finds(t, m, 2); v.Err.Error() != "final in 3" {
		t.Error(v)
	}
	m.Final = nil
	m.Goal = func(s int) bool { return s == 3 }
	if v := Finds(t, m, 3); !errors.Is(v, ErrStuck) || strings.Join(v.Trace, "|") != "to 1|to 2|to 4" {
		t.Error(v)
	}
	next[2] = []int{1}
	Holds(t, m, 4)
}

func TestLimit(t *testing.T) {
	m := Model[jugs]{Name: "jugs", Start: []jugs{{}}, Next: jugSteps, Limit: 15}
	if r, err := Explore(m); !errors.Is(err, ErrLimit) || r.States != 15 {
		t.Errorf("%v, %v", r, err)
	}
}

// TestAgainstAMap explores random graphs, and compares the states and the depth of each graph with a plain search
// that uses a map.
func TestAgainstAMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		n := 1 + rng.IntN(5_000)
		next := make([][2]int, n)
		for i := range next {
			next[i] = [2]int{rng.IntN(n), rng.IntN(n)}
		}
		depth := map[int]int{0: 0}
		farthest := 0
		for queue := []int{0}; len(queue) > 0; queue = queue[1:] {
			for _, to := range next[queue[0]] {
				if _, known := depth[to]; !known {
					depth[to] = depth[queue[0]] + 1
					farthest = max(farthest, depth[to])
					queue = append(queue, to)
				}
			}
		}
		m := Model[int]{Name: "graph", Start: []int{0}, Next: func(s int, steps []Step[int]) []Step[int] {
			return append(steps, To(next[s][0], "first"), To(next[s][1], "second"))
		}}
		r, err := Explore(m)
		if err != nil || r.States != len(depth) || r.Depth != farthest {
			t.Fatalf("%v, %v, expected %d states and depth %d", r, err, len(depth), farthest)
		}
		last := rng.IntN(n)
		if want, reachable := depth[last]; reachable {
			m.Check = func(s int) error {
				if s == last {
					return errors.New("here")
				}
				return nil
			}
			_, err := Explore(m)
			var v *ViolationError
			if !errors.As(err, &v) || len(v.Trace) != want {
				t.Fatalf("%v, expected a trace of %d steps", err, want)
			}
		}
	}
}

// BenchmarkExplore visits a grid in which each state has four steps.
func BenchmarkExplore(b *testing.B) {
	type grid struct {
		at [4]uint8
		_  [40]byte
	}
	m := Model[grid]{Name: "grid", Start: []grid{{}}, Next: func(s grid, steps []Step[grid]) []Step[grid] {
		for i := range s.at {
			if s.at[i] < 31 {
				to := s
				to.at[i]++
				steps = append(steps, To(to, "go %d", i))
			}
		}
		return steps
	}}
	states := 0
	for b.Loop() {
		r, err := Explore(m)
		if err != nil {
			b.Fatal(err)
		}
		states += r.States
	}
	b.ReportMetric(float64(states)/b.Elapsed().Seconds(), "states/s")
}

// TestWalk: a walk ends when it reaches a goal, and returns the first step that is wrong.
func TestWalk(t *testing.T) {
	m := Model[jugs]{Name: "jugs", Start: []jugs{{}}, Next: jugSteps, Goal: func(s jugs) bool { return s.five == 4 }}
	if reached, err := Walk(m, rand.New(rand.NewPCG(1, 1)), 10_000); !reached || err != nil {
		t.Errorf("%v, %v", reached, err)
	}
	m.Check = func(s jugs) error {
		if s.three == 3 && s.five == 5 {
			return errors.New("both full")
		}
		return nil
	}
	m.Goal = nil
	var v *ViolationError
	if _, err := Walk(m, rand.New(rand.NewPCG(1, 1)), 10_000); !errors.As(err, &v) || len(v.Trace) < 2 {
		t.Error(err)
	}
}
