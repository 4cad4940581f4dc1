package dedup

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestChangedWindowIsExactFromItsPointOn judges a key around the limits of what a lengthened window knows: a
// millisecond before Since, at Since, and around Since plus the new size.
func TestChangedWindowIsExactFromItsPointOn(t *testing.T) {
	const s = 10_000
	w := Window{Size: 100, Grace: 10}.ChangeTo(Window{Size: 700, Grace: 10}, s)
	if k := int64(s - 210); w.Since != k || w.LateBefore != k+100 || w.FullFrom() != k+700 {
		t.Fatalf("since %d, late before %d, full from %d", w.Since, w.LateBefore, w.FullFrom())
	}
	for _, c := range []struct {
		first, at, stream int64
		want              Verdict
	}{
		{w.Since - 1, w.LateBefore, s, Unique},         // stored, and counts as absent
		{w.Since, w.LateBefore, s, Duplicate},          // the first row that counts
		{w.Since, w.LateBefore - 1, s, Late},           // late under the old window
		{w.Since, w.Since + 700, s + 490, Duplicate},   // the whole new window
		{w.Since, w.Since + 701, s + 491, AfterWindow}, // and not a millisecond more
		{w.Since - 1, w.Since + 700, s + 490, Unique},  // over in any case: exact from here on
	} {
		verdict, at := w.Admit(c.at, c.stream, math.MaxInt64)
		if verdict == Unique {
			verdict, _ = Decide(Event{Time: at}, Row{First: c.first}, true, w, c.stream)
		}
		if verdict != c.want {
			t.Errorf("first %d, event %d at stream time %d: %v, want %v", c.first-w.Since, c.at-w.Since, c.stream, verdict, c.want)
		}
	}
	if last := w.Since + w.Retention(); w.IsWhole(last-1) || !w.IsWhole(last) {
		t.Error("the change ends at another stream time than that at which Since leaves the retention")
	}
}

// TestLongerTwiceMakesNoEventInOrderLate lengthens a window twice at one stream time. The second change does not
// change what is known, so no further event may become late.
func TestLongerTwiceMakesNoEventInOrderLate(t *testing.T) {
	day := Window{Size: 24, Grace: 1}
	week := day.ChangeTo(Window{Size: 168, Grace: 1}, 1000)
	more := week.ChangeTo(Window{Size: 192, Grace: 1}, 1000)
	if more.Since != week.Since || more.LateBefore != week.LateBefore || more.Late(1000, 1000) {
		t.Errorf("since %d and %d, late before %d and %d", week.Since, more.Since, week.LateBefore, more.LateBefore)
	}
}

// TestChangeWithoutEventsKnowsNothing changes the window of a namespace that has no stream time yet.
func TestChangeWithoutEventsKnowsNothing(t *testing.T) {
	w := Window{Size: 10}.ChangeTo(Window{Size: 5, Skew: 3}, NoStreamTime)
	if w != (Window{Size: 5, Skew: 3}) || w.FullFrom() != NoStreamTime || !w.IsWhole(NoStreamTime) {
		t.Error(w)
	}
	if again := (Window{Size: 10}).ChangeTo(Window{Size: 10, Skew: 9}, 100); again.Changed {
		t.Error("another skew changes what is retained", again)
	}
}

// A changing is a namespace whose window changes at random, as drawn by the test.
type changing struct {
	rng    *rand.Rand
	w      Window // as the tasks have it: the change is dropped once it is whole
	kept   Window // the same, never dropped
	stream int64
	before []ruleAt // the rules before, each with the stream time of its end
	least  int64    // size of the shortest window ever
}

// A ruleAt is a rule that held until a stream time.
type ruleAt struct{ size, grace, until int64 }

func newChanging(seed uint64) *changing {
	c := &changing{rng: rand.New(rand.NewPCG(seed, 19)), stream: NoStreamTime}
	c.w = c.drawn()
	c.kept, c.least = c.w, c.w.Size
	return c
}

func (c *changing) drawn() Window {
	return Window{Size: c.rng.Int64N(40), Grace: c.rng.Int64N(20), Skew: c.rng.Int64N(30), ClampFuture: c.rng.IntN(2) == 0}
}

// change changes the window at random, sometimes several times in a row.
func (c *changing) change() {
	for c.rng.IntN(20) == 0 {
		next := c.drawn()
		if c.stream != NoStreamTime && !c.w.SameRetention(next) {
			c.before = append(c.before, ruleAt{c.w.Size, c.w.Grace, c.stream})
		}
		c.w, c.kept = c.w.ChangeTo(next, c.stream), c.kept.ChangeTo(next, c.stream)
		c.least = min(c.least, next.Size)
	}
	if c.w.Changed && c.w.IsWhole(c.stream) {
		c.w.Changed = false
	}
}

// A memory has every emitted event of each key, and never drops an event.
type memory map[int][]int64

// judge judges an event by the rows that each of the earlier rules would have left.
func (m memory) judge(c *changing, key int, t int64) Verdict {
	since, late := int64(math.MinInt64), int64(math.MinInt64)
	for _, b := range c.before {
		since, late = max(since, b.until-b.size-b.size-b.grace), max(late, b.until-b.size-b.grace)
	}
	if c.stream != NoStreamTime {
		since, late = max(since, c.stream-2*c.w.Size-c.w.Grace), max(late, c.stream-c.w.Size-c.w.Grace)
	}
	if t < late {
		return Late
	}
	emitted := m[key]
	if len(emitted) == 0 || emitted[len(emitted)-1] < since {
		return Unique
	}
	return m.compare(c, key, t)
}

// compare judges an event by the last emitted event of its key, however old that is.
func (m memory) compare(c *changing, key int, t int64) Verdict {
	emitted := m[key]
	switch n := len(emitted); {
	case n == 0:
		return Unique
	case t > emitted[n-1]+c.w.Size:
		return AfterWindow
	case t < emitted[n-1]-c.w.Size:
		return Late
	}
	return Duplicate
}

// TestChangingWindowAgreesWithAMemory judges random events under windows that change at random, in three ways: with
// all rows, with rows evicted at random moments, and by a memory that never drops an event.
func TestChangingWindowAgreesWithAMemory(t *testing.T) {
	verdicts, full, growing := 0, 0, 0
	counts := map[Verdict]int{}
	for seed := range uint64(10_000) {
		c, m := newChanging(seed), memory{}
		all, retained := map[int]Row{}, map[int]Row{}
		for i := range 100 {
			c.change()
			if c.rng.IntN(4) == 0 {
				evict(retained, c.w, c.stream)
			}
			brokerTime := int64(i) * 3
			key, at := c.rng.IntN(3), brokerTime+c.rng.Int64N(90)-60
			got, admitted := c.w.Admit(at, c.stream, brokerTime)
			if kept, _ := c.kept.Admit(at, c.stream, brokerTime); kept != got {
				t.Fatalf("seed %d event %d: %v, %v with the change that was dropped", seed, i, got, kept)
			}
			if got == Invalid {
				continue
			}
			verdicts++
			want := m.judge(c, key, admitted)
			if got == Unique {
				got = c.decide(t, seed, i, Event{Time: admitted, At: Position{Offset: int64(i)}}, key, all, retained)
				switch whole := m.compare(c, key, admitted); {
				case c.w.Changed && admitted < c.w.FullFrom():
					growing++
					if got == Duplicate && whole != Duplicate {
						t.Fatalf("seed %d event %d: a duplicate of nothing", seed, i)
					}
				case got.IsDuplicate() != whole.IsDuplicate():
					t.Fatalf("seed %d event %d at %d, %+v: %v, want %v as its window is full", seed, i, admitted, c.w, got, whole)
				default:
					full++
				}
			} else if c.stream != NoStreamTime && admitted >= c.stream {
				t.Fatalf("seed %d event %d: %v at stream time", seed, i, got)
			}
			if got != want {
				t.Fatalf("seed %d event %d of key %d at %d, stream time %d, %+v: %v, the memory says %v", seed, i, key, admitted, c.stream, c.w, got, want)
			}
			counts[got]++
			if got == Unique || got == AfterWindow {
				for _, before := range m[key] {
					if d := max(admitted-before, before-admitted); d <= c.least {
						t.Fatalf("seed %d event %d of key %d was emitted at %d and %d, which no window allows: the least is %d", seed, i, key, before, admitted, c.least)
					}
				}
				m[key] = append(m[key], admitted)
			}
			if got != Late || admitted >= c.w.LateBefore {
				c.stream = NextStreamTime(c.stream, at, admitted)
			}
		}
	}
	t.Logf("%d verdicts %v: %d by a whole window, %d by one that grows", verdicts, counts, full, growing)
	if verdicts < 670_000 || growing < 30_000 {
		t.Error("too few verdicts to show anything")
	}
}

// decide decides on an event twice, with all rows and with the retained rows.
func (c *changing) decide(t *testing.T, seed uint64, i int, ev Event, key int, all, retained map[int]Row) Verdict {
	prior, found := all[key]
	got, row := Decide(ev, prior, found, c.w, c.stream)
	if kept, _ := Decide(ev, prior, found, c.kept, c.stream); kept != got {
		t.Fatalf("seed %d event %d: %v, %v with the change that was dropped", seed, i, got, kept)
	}
	all[key] = row
	prior, found = retained[key]
	again, row := Decide(ev, prior, found, c.w, c.stream)
	retained[key] = row
	if again != got {
		t.Fatalf("seed %d event %d: %v with all rows, %v after eviction", seed, i, got, again)
	}
	return got
}

// A changingClaim is a task of claim mode with adjacent buckets and collisions, whose window changes.
type changingClaim struct {
	*changing
	rows    map[Digest]Row
	evicts  bool
	present int64
}

const changingStep = 20 // between two buckets, ms

// digestAt returns the key of an order in the bucket to which a time belongs.
func digestAt(order byte, bucket int64) Digest { return Digest{order, byte(bucket), byte(bucket >> 8)} }

// event judges an event as the task does, and returns the decision and a description of everything that it decided.
func (c *changingClaim) event(order byte, t int64, fingerprint uint64, at int64) (ClaimDecision, string) {
	if c.evicts {
		evict(c.rows, c.w, c.stream)
	}
	late, admitted := c.w.Admit(t, c.stream, c.present)
	if late == Invalid {
		return ClaimDecision{}, late.String()
	}
	bucket := floorDiv(t, changingStep)
	ev := Event{Digest: digestAt(order, bucket), Time: admitted, Shift: t - admitted, Fingerprint: fingerprint, At: Position{Offset: at}}
	prior, found := c.prior(&ev, order, bucket)
	w := c.w
	if late == Late && (!found || !w.Decides(&prior, c.stream) || w.Over(prior.First, admitted)) {
		return ClaimDecision{}, late.String()
	}
	d, err := DecideClaim(ClaimEvent{Event: ev, ReceivedAt: c.present, DispatchedAt: c.present, Evidence: LeaseEvidence{}}, prior, found, w, ClaimRule{Lease: 15}, c.stream)
	if err != nil {
		return d, err.Error()
	}
	if d.Former != nil {
		c.rows[d.Former.Row.Digest] = d.Former.Row
	}
	if d.Write {
		c.rows[d.Row.Digest] = d.Row
	}
	return d, fmt.Sprintf("%v dispatch=%t expired=%t attempt=%d status=%v at=%d", d.Verdict, d.Dispatch, d.LeaseExpired, d.Row.Attempt, d.Row.Status, admitted)
}

// prior returns the row that decides an event, after a look at its adjacent buckets and its second key.
func (c *changingClaim) prior(ev *Event, order byte, bucket int64) (Row, bool) {
	own, found := c.rows[ev.Digest]
	var adjacent []Row
	for _, b := range []int64{bucket - 1, bucket + 1} {
		for _, d := range []Digest{digestAt(order, b), CollisionDigest(digestAt(order, b), ev.Fingerprint)} {
			if row, ok := c.rows[d]; ok {
				adjacent = append(adjacent, row)
			}
		}
	}
	prior, has := ev.Prior(own, found, adjacent, changingStep, c.w, c.stream)
	second, hasSecond := c.rows[CollisionDigest(ev.Digest, ev.Fingerprint)]
	return ev.PriorOfCollision(prior, has, second, hasSecond, found && ev.Collides(&own, c.w, c.stream), c.w, c.stream)
}

// outcome applies an outcome to the claim of a row.
func (c *changingClaim) outcome(kind OutcomeKind, token Token) string {
	row, found := c.rows[token.Digest]
	if former, may := token.Former(&row); found && may {
		if kept, ok := c.rows[former]; ok && c.w.Retains(kept.First, c.stream) {
			row = kept
		}
	}
	o := Outcome{Kind: kind, Token: token, ReceivedAt: c.present, StartID: []byte("x")}
	s, err := ApplyOutcome(&o, row, found, c.w, ClaimRule{Lease: 15}, c.stream)
	if err != nil {
		return err.Error()
	}
	if s.Refused == "" && !s.Repeated {
		c.rows[s.Row.Digest] = s.Row
	}
	return fmt.Sprintf("refused=%q status=%v attempt=%d", s.Refused, s.Row.Status, s.Row.Attempt)
}

// TestChangingWindowOfClaims runs claims, leases, outcomes, adjacent buckets, collisions and clamped events under
// windows that change at random. A task that evicts rows must decide as a task that never does. No event is
// dispatched twice within the shortest window, unless a lease or an outcome freed its key.
func TestChangingWindowOfClaims(t *testing.T) {
	steps := map[string]int{}
	for seed := range uint64(3000) {
		c := newChanging(seed)
		all, evicting := &changingClaim{changing: c, rows: map[Digest]Row{}}, &changingClaim{changing: c, rows: map[Digest]Row{}, evicts: true}
		var tokens []Token
		dispatched := map[Digest]int64{}
		for i := range int64(100) {
			c.change()
			all.present, evicting.present = i*3, i*3
			if len(tokens) > 0 && c.rng.IntN(6) == 0 {
				token, kind := tokens[c.rng.IntN(len(tokens))], OutcomeKind(c.rng.IntN(int(outcomeKinds)))
				got, want := evicting.outcome(kind, token), all.outcome(kind, token)
				if got != want {
					t.Fatalf("seed %d step %d: outcome %v: %s, without eviction %s", seed, i, kind, got, want)
				}
				if strings.Contains(want, Freed.String()) {
					delete(dispatched, token.Digest)
				}
				steps["outcome "+strings.Fields(want)[0]]++
				continue
			}
			order, at, fingerprint := byte(c.rng.IntN(2)), i*3+c.rng.Int64N(130)-90, 256+256*c.rng.Uint64N(2)
			_, got := evicting.event(order, at, fingerprint, i)
			d, want := all.event(order, at, fingerprint, i)
			if got != want {
				t.Fatalf("seed %d step %d: event %d at %d, stream time %d, %+v: %s, without eviction %s", seed, i, order, at, c.stream, c.w, got, want)
			}
			steps[d.Verdict.String()]++
			if d.Dispatch {
				first, again := dispatched[d.Row.Digest]
				if dist := max(first-d.Row.First, d.Row.First-first); again && !d.LeaseExpired && dist <= c.least {
					t.Fatalf("seed %d step %d: dispatched at %d and %d, the least window is %d: %s", seed, i, first, d.Row.First, c.least, want)
				}
				dispatched[d.Row.Digest] = d.Row.First
				tokens = append(tokens, TokenOf(&d.Row, 0))
			}
			if verdict, admitted := c.w.Admit(at, c.stream, i*3); verdict != Invalid && (verdict != Late || d.Row.First != 0) {
				c.stream = NextStreamTime(c.stream, at, admitted)
			}
		}
	}
	t.Log(steps)
}

// TestLateEventOfAShorterWindowClaimsNothing covers a window that becomes shorter while its grace becomes longer: the
// task retains rows whose window is over, for events that stay late.
func TestLateEventOfAShorterWindowClaimsNothing(t *testing.T) {
	w := Window{Size: 10}.ChangeTo(Window{Size: 1, Grace: 20}, 100)
	row := Row{First: 82, Status: ClaimInProgress, Attempt: 1}
	if !w.Late(85, 100) || !w.Decides(&row, 100) || !w.Over(row.First, 85) {
		t.Fatal("the case is another one now: see Judge.judge, which compares these")
	}
}
