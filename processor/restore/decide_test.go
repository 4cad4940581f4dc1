package restore

import (
	"fmt"
	"testing"

	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// TestDecide compares the table of decisions with a model over every combination of facts. A life in the model has
// the transactions 1 to 4. Each has rows at the changelog offsets of its number: transaction n begins at offset 10n
// and has its checkpoint at 10n+8. A state is therefore complete if each row above the floor is in the local store or
// in the changelog. The checkpoints after a whole one are partial: a changelog that begins after the whole checkpoint
// lacks it.
func TestDecide(t *testing.T) {
	checkpoint := func(n, floor int64, incomplete bool) *wire.Checkpoint {
		if n == 0 {
			return nil
		}
		return &wire.Checkpoint{Next: 100 * n, Sequence: n, Floor: floor, Incomplete: incomplete}
	}
	combinations := 0
	try := func(start, end, newest, floor, local, whole int64, incomplete bool) {
		for _, group := range []int64{-1, 0, 100 * local, 100 * newest} {
			f := facts{start: start, end: end, group: group, groupAt: -1, unread: local < newest}
			if group == 100*newest {
				f.groupAt = 0 // others are set back
			}
			if n := (end - 9) / 10; n >= 1 && start <= 10*n+8 {
				f.logged = checkpoint(n, min(floor, 10*n), incomplete)
				f.loggedLacks = start > 10*min(whole, n)+8
			}
			if f.stored = checkpoint(local, min(floor, 10*local), incomplete && local == newest); local > 0 {
				f.position = 10*local + 9
			}
			combinations++
			got, problem := decide(f)
			if (got == refuse) != (problem != "") {
				t.Fatalf("%+v: %v with the problem %q", f, got, problem)
			}
			if wrong := judgePlan(got, f, newest, floor, local); wrong != "" {
				t.Fatalf("changelog %d to %d with checkpoint %v, its whole one lost %v, floor %d, incomplete %v; local store up to %d; group %d; the last transaction is %d: %v %s",
					start, end, f.logged != nil, f.loggedLacks, floor, incomplete, local, group, newest, got, wrong)
			}
		}
	}
	for newest := range int64(5) { // the last transaction that committed
		for floor := int64(0); floor <= 10*newest; floor += 10 {
			for whole := max(1, floor/10); whole <= max(1, newest); whole++ { // the newest with a whole checkpoint
				for _, incomplete := range []bool{false, true} {
					for start := int64(0); start <= 10*newest+10; start += 5 {
						for end := start; end <= 10*newest+10; end += 5 { // below 10*newest+10: the log lost its tail
							for local := range newest + 1 { // transactions in the local store
								try(start, end, newest, floor, local, whole, incomplete)
							}
						}
					}
				}
			}
		}
	}
	t.Logf("%d combinations", combinations)
}

// judgePlan says what is wrong with a plan in the model, or "" if nothing is wrong.
func judgePlan(p plan, f facts, newest, floor, local int64) string {
	// has reports whether the state of the plan includes the rows of transaction n.
	has := func(n int64) bool {
		inLog := f.start <= 10*n && 10*n+9 <= f.end
		inLocal := n <= local
		switch p {
		case rebuild:
			return inLog
		case readTail, trustLocal:
			return inLocal || inLog
		case refuse:
		}
		return true
	}
	if p == rebuild && f.loggedLacks {
		return "has no stream times"
	}
	lostTail := f.end < 10*newest+9 // the broker lost rows: the log cannot show that there were any
	for n := int64(1); n <= newest; n++ {
		if 10*n+10 > floor && !has(n) && !(lostTail && 10*n+9 > f.end) {
			return fmt.Sprintf("has no rows of transaction %d", n)
		}
	}
	complete := local == newest && newest > 0 // local state alone is the newest
	if p == refuse && complete && f.group == 100*newest {
		return "although local state is complete"
	}
	return ""
}

// TestDecideNames protects that each problem states its facts.
func TestDecideNames(t *testing.T) {
	stored := &wire.Checkpoint{Next: 5, Sequence: 3}
	logged := &wire.Checkpoint{Next: 7, Sequence: 5}
	for name, c := range map[string]struct {
		f       facts
		plan    plan
		problem app.Problem
	}{
		"first life":                                      {facts{group: -1}, rebuild, ""},
		"recreated changelog":                             {facts{group: -1, lost: true}, refuse, app.StateLost},
		"emptied, no local state":                         {facts{start: 9, end: 9, group: 5}, refuse, app.StateLost},
		"emptied, offsets expired":                        {facts{start: 9, end: 9, group: -1}, refuse, app.StateLost},
		"emptied, local state":                            {facts{start: 9, end: 9, group: 5, stored: stored, position: 8, unread: true}, trustLocal, ""},
		"emptied, local state, no offsets":                {facts{start: 9, end: 9, group: -1, stored: stored, position: 8}, trustLocal, ""},
		"emptied, old local state":                        {facts{start: 9, end: 9, group: 7, stored: stored, position: 4, unread: true}, refuse, app.ChangelogCut},
		"cut after the whole checkpoint":                  {facts{start: 9, end: 12, group: 7, logged: logged, loggedLacks: true}, refuse, app.ChangelogCut},
		"cut after the whole checkpoint, local state":     {facts{start: 9, end: 12, group: 7, logged: logged, loggedLacks: true, stored: stored, position: 10, unread: true}, trustLocal, ""},
		"cut after the whole checkpoint, newest local":    {facts{start: 9, end: 12, group: 7, logged: stored, loggedLacks: true, stored: stored, position: 8, unread: true}, trustLocal, ""},
		"cut after the whole checkpoint, old local state": {facts{start: 9, end: 12, group: 7, logged: logged, loggedLacks: true, stored: stored, position: 4, unread: true}, refuse, app.ChangelogCut},
		"no whole checkpoint above the floor":             {facts{end: 12, group: 7, logged: logged, loggedLacks: true}, refuse, app.ChangelogCut},
		"tail lost":                                       {facts{end: 4, group: 5, stored: stored, position: 8}, trustLocal, ""},
		"tail lost, local state not newest":               {facts{end: 4, group: 7, stored: stored, position: 8, unread: true}, refuse, app.ChangelogShortened},
	} {
		if got, problem := decide(c.f); got != c.plan || problem != c.problem {
			t.Errorf("%s: %v %q, want %v %q", name, got, problem, c.plan, c.problem)
		}
	}
}

// TestLostTail protects that only the offset of a transaction that the changelog lacks shows the loss of its newest
// rows. An offset that somebody moved does not show a loss.
func TestLostTail(t *testing.T) {
	c := &wire.Checkpoint{Next: 50, Sequence: 4, Generation: 1}
	for name, f := range map[string]struct {
		group int64
		by    app.Commit
		lost  bool
	}{
		"of the newest transaction":    {50, app.Commit{Generation: 1, Sequence: 4}, false},
		"of an older one":              {40, app.Commit{Generation: 1, Sequence: 3}, false},
		"of a later one":               {60, app.Commit{Generation: 1, Sequence: 6}, true},
		"of a later one, recreated":    {20, app.Commit{Generation: 2, Sequence: 6}, true},
		"of the one before, recreated": {70, app.Commit{Generation: 0, Sequence: 3}, false},
		"moved forward":                {60, app.Commit{Generation: -1}, false},
		"moved back":                   {40, app.Commit{Generation: -1}, false},
		"committed by an older build":  {60, app.Commit{}, false},
		"the group has none":           {-1, app.Commit{Generation: -1}, false},
	} {
		if got := lostTail(c, f.group, f.by); got != f.lost {
			t.Errorf("%s: %v, want %v", name, got, f.lost)
		}
	}
}

// TestCheckInput covers what a task needs of its input.
func TestCheckInput(t *testing.T) {
	for name, c := range map[string]struct {
		f       inputFacts
		problem app.Problem
		resume  int64
	}{
		"whole":                      {inputFacts{5, 0, 9, 7}, "", 5},
		"read to the end":            {inputFacts{9, 0, 9, 9}, "", 9},
		"epoch unknown":              {inputFacts{5, 0, 9, -1}, "", 5},
		"deleted":                    {inputFacts{5, 8, 9, -1}, app.InputDeleted, 8},
		"shorter":                    {inputFacts{12, 0, 9, -1}, app.InputShortened, 9},
		"other records from 3":       {inputFacts{5, 0, 9, 3}, app.InputShortened, 3},
		"other records, then a cut":  {inputFacts{5, 4, 9, 3}, app.InputShortened, 4},
		"deleted up to the position": {inputFacts{5, 5, 5, -1}, "", 5},
	} {
		if problem, resume, _ := checkInput(c.f); problem != c.problem || resume != c.resume {
			t.Errorf("%s: %q, go on at %d, want %q, %d", name, problem, resume, c.problem, c.resume)
		}
	}
}
