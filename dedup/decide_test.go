package dedup

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// decidePlay runs the lines of one script:
//
//	window size=N grace=N skew=N [clamp]   remove all rows and set the window
//	event KEY T [broker_time=N]            judge an event; broker time stays until it is set again
//	change size=N grace=N                  change the window; rows and stream time stay
//	evict                                  remove the rows that are not retained
type decidePlay struct {
	linkedTask
	brokerTime int64
}

func (p *decidePlay) run(line string) (string, error) {
	field := strings.Fields(line)
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s[strings.Index(s, "=")+1:], 10, 64)
		if err != nil {
			panic(fmt.Sprintf("%s: %v", line, err))
		}
		return n
	}
	switch field[0] {
	case "window":
		*p = decidePlay{linkedTask: linkedTask{rows: map[Digest]Row{}, stream: NoStreamTime}, brokerTime: 1 << 40}
		p.w = Window{Size: number(field[1]), Grace: number(field[2]), Skew: number(field[3]), ClampFuture: len(field) > 4}
		return fmt.Sprintf("retention=%d", p.w.Retention()), nil
	case "change":
		next := p.w
		next.Size, next.Grace = number(field[1]), number(field[2])
		p.w = p.w.ChangeTo(next, p.stream)
		if !p.w.Changed {
			return "nothing to know", nil
		}
		return fmt.Sprintf("since=%d late_before=%d full_from=%d whole=%t", p.w.Since, p.w.LateBefore, p.w.FullFrom(), p.w.IsWhole(p.stream)), nil
	case "event":
		if len(field) > 3 {
			p.brokerTime = number(field[3])
		}
		return p.event(field[1], number(field[2])), nil
	case "evict":
		evict(p.rows, p.w, p.stream)
		return fmt.Sprintf("rows=%d", len(p.rows)), nil
	}
	return "", fmt.Errorf("unknown command in %q", line)
}

// evict removes the rows that are no longer retained at a stream time.
func evict[K comparable](rows map[K]Row, w Window, streamTime int64) {
	maps.DeleteFunc(rows, func(_ K, row Row) bool { return !w.Retains(row.First, streamTime) })
}

func (p *decidePlay) event(key string, t int64) string {
	verdict, at := p.w.Admit(t, p.stream, p.brokerTime)
	digest := Digest{key[0]}
	before := len(p.rows)
	var covers Row
	if verdict == Unique {
		verdict, covers = p.judge(digest, at)
		p.stream = NextStreamTime(p.stream, t, at)
	}
	out := verdict.String()
	if at != t {
		out += fmt.Sprintf(" at=%d", at)
	}
	if p.stream != NoStreamTime {
		out += fmt.Sprintf(" stream=%d", p.stream)
	}
	row, ok := p.rows[digest]
	if ok {
		out += fmt.Sprintf(" first=%d", row.First)
	}
	switch {
	case ok && verdict == Duplicate && covers.First != row.First:
		out += fmt.Sprintf(" of=%d", covers.First)
	case ok && len(p.rows) > before && before > 0 && verdict == AfterWindow || verdict == Unique && ok && row.First != at:
		out += fmt.Sprintf(" rows=%d", p.rowsOf(digest))
	}
	return out
}

func TestDecidePlays(t *testing.T) {
	testPlays(t, "decide", func() func(string) (string, error) { return new(decidePlay).run })
}

// history is the naive reference: it stores every admitted event, and searches all of them for a verdict.
type history struct {
	admitted []int64            // event times
	emitted  map[int][]int64    // by key: the times of unique and after_window events, in order
	rule     func(string) int64 // the window: "size", "grace", "skew"
}

func (h *history) judge(key int, t, brokerTime int64) Verdict {
	if t > brokerTime+h.rule("skew") {
		return Invalid
	}
	newest, started := int64(0), len(h.admitted) > 0
	for _, at := range h.admitted {
		newest = max(newest, at)
	}
	size, grace := h.rule("size"), h.rule("grace")
	if started && newest-t > size+grace {
		return Late
	}
	h.admitted = append(h.admitted, t)
	verdict := Unique
	if n := len(h.emitted[key]); n > 0 {
		last := h.emitted[key][n-1]
		switch evicted := started && newest-last > size+size+grace; {
		case evicted:
		case t > last+size:
			verdict = AfterWindow
		case t < last-size:
			return Late
		default:
			return Duplicate
		}
	}
	h.emitted[key] = append(h.emitted[key], t)
	return verdict
}

// TestDecideAgreesWithHistory decides on random events twice, with all rows and with eviction at random moments, and
// compares both verdicts with the naive reference.
func TestDecideAgreesWithHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := Window{
			Size:  rapid.Int64Range(0, 30).Draw(t, "size"),
			Grace: rapid.Int64Range(0, 20).Draw(t, "grace"),
			Skew:  rapid.Int64Range(0, 50).Draw(t, "skew"),
		}
		naive := history{emitted: map[int][]int64{}, rule: func(name string) int64 {
			return map[string]int64{"size": w.Size, "grace": w.Grace, "skew": w.Skew}[name]
		}}
		all, retained := map[int]Row{}, map[int]Row{}
		stream, brokerTime := NoStreamTime, int64(100)
		for i := range rapid.IntRange(1, 80).Draw(t, "events") {
			brokerTime += rapid.Int64Range(0, 20).Draw(t, "elapsed")
			key := rapid.IntRange(0, 2).Draw(t, "key")
			at := max(0, brokerTime+rapid.Int64Range(-150, 70).Draw(t, "offset"))
			want := naive.judge(key, at, brokerTime)

			got, admitted := w.Admit(at, stream, brokerTime)
			if got == Unique {
				if rapid.Bool().Draw(t, "evict") {
					evict(retained, w, stream)
				}
				ev := Event{Time: admitted, At: Position{Offset: int64(i)}}
				prior, found := all[key]
				got, all[key] = Decide(ev, prior, found, w, stream)
				prior, found = retained[key]
				var again Verdict
				if again, retained[key] = Decide(ev, prior, found, w, stream); again != got {
					t.Fatalf("event %d: %v with all rows, %v after eviction", i, got, again)
				}
				stream = NextStreamTime(stream, at, admitted)
			}
			if got != want {
				t.Fatalf("event %d of key %d at %d: %v, reference: %v", i, key, at, got, want)
			}
		}
		for key, times := range naive.emitted {
			for i := 1; i < len(times); i++ {
				if times[i]-times[i-1] <= w.Size {
					t.Fatalf("key %d was emitted at %d and again at %d, window %d", key, times[i-1], times[i], w.Size)
				}
			}
		}
	})
}

func TestDecideWritesTheRow(t *testing.T) {
	ev := Event{Digest: Digest{1}, Time: 50, At: Position{Topic: 1, Partition: 2, Offset: 3}, NamespaceID: 4, Fingerprint: 5}
	w := Window{Size: 10}
	want := Row{Digest: ev.Digest, First: 50, At: ev.At, NamespaceID: 4, Fingerprint: 5}
	for name, prior := range map[string]Row{
		"after_window": {First: 30, Status: Completed, Attempt: 3, Result: []byte("x"), HasResult: true},
		"freed":        {First: 49, Status: Freed},
	} {
		verdict, row := Decide(ev, prior, true, w, 50)
		if name == "after_window" && verdict != AfterWindow || name == "freed" && verdict != Unique {
			t.Errorf("%s: %v", name, verdict)
		}
		if fmt.Sprint(row) != fmt.Sprint(want) {
			t.Errorf("%s: row %+v, want %+v", name, row, want)
		}
	}
	prior := Row{First: 45, At: Position{Offset: 9}}
	if verdict, row := Decide(ev, prior, true, w, 50); verdict != Duplicate || fmt.Sprint(row) != fmt.Sprint(prior) {
		t.Errorf("%v %+v, want duplicate and the row unchanged", verdict, row)
	}
	if verdict, _ := Decide(ev, prior, false, w, 50); verdict != Unique {
		t.Errorf("without a row: %v", verdict)
	}
}

// TestWindowDoesNotOverflow judges times at the ends of int64, where an overflow would change the verdict.
func TestWindowDoesNotOverflow(t *testing.T) {
	w := Window{Size: math.MaxInt64, Grace: math.MaxInt64, Skew: math.MaxInt64}
	if w.Retention() != math.MaxInt64 || !w.Covers(math.MinInt64+1, -5) || !w.Covers(math.MaxInt64, 5) {
		t.Error("sums wrapped around")
	}
	if w.Late(0, math.MaxInt64) || w.Late(math.MinInt64, NoStreamTime) || !w.Retains(0, math.MaxInt64) {
		t.Error("differences wrapped around")
	}
	if day := (Window{Size: 86_400_000}); day.Horizon(math.MinInt64+5) != math.MinInt64 || !day.Retains(math.MinInt64, math.MinInt64+5) || day.Horizon(0) != -2*86_400_000 {
		t.Error("a horizon wrapped around")
	}
	if v, at := w.Admit(math.MaxInt64, NoStreamTime, math.MaxInt64); v != Unique || at != math.MaxInt64 {
		t.Errorf("%v at %d", v, at)
	}
	if v, _ := (Window{}).Admit(-1, NoStreamTime, 0); v != Unique {
		t.Errorf("without a stream time: %v, want unique", v)
	}
}

func TestVerdictNames(t *testing.T) {
	if fmt.Sprint(Verdicts) != "[unique duplicate after_window late missing_key invalid limited collision in_progress replayed bypassed]" {
		t.Error(Verdicts)
	}
}
