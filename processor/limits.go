package processor

import (
	"fmt"
	"slices"

	"oncebus/dedup"
	"oncebus/state"
)

// A census counts the live keys of one class in one task. Only classes with a
// limit have one; it is kept in the checkpoint, because a limit that forgot
// its count at a restart would be none.
type census struct {
	class  uint8
	window dedup.Window
	dedup.Census
}

// limitedClasses returns the classes that have a route with a limit, in order.
func (rt *runtime) limitedClasses() []census {
	var all []census
	for _, r := range rt.routes {
		known := slices.ContainsFunc(all, func(c census) bool { return c.class == r.class })
		if r.Limits.LiveKeys > 0 && !known {
			all = append(all, census{r.class, r.span, dedup.NewCensus(r.span)})
		}
	}
	slices.SortFunc(all, func(a, b census) int { return int(a.class) - int(b.class) })
	return all
}

// censusOf returns the census of a class in the open transaction, nil if it
// has no limit.
func (t *task) censusOf(class uint8) *census {
	for i := range t.openCensuses {
		if t.openCensuses[i].class == class {
			return &t.openCensuses[i]
		}
	}
	return nil
}

// openCensus begins a transaction's count where the last one ended.
func (t *task) openCensus() {
	for i := range t.censuses {
		t.censuses[i].CopyTo(&t.openCensuses[i].Census)
	}
}

// overLimit reports whether a new key is one too many.
func (t *task) overLimit(route *routeInfo) bool {
	return route.Limits.LiveKeys > 0 && t.censusOf(route.class).Live() >= uint64(route.Limits.LiveKeys)
}

// turnLimited lets an event with a key too many go, unchecked. Its time counts
// all the same: time is what makes room for new keys.
func (t *task) turnLimited(j *judging, ev *event) {
	ev.verdict = dedup.Limited
	ev.reason = fmt.Sprintf("new key beyond the limit: %d keys of namespace %s are live in %v, live_keys is %d",
		t.censusOf(ev.route.class).Live(), ev.route.Namespace, t.id, ev.route.Limits.LiveKeys)
	j.byPolicy(ev, ev.route.Limits.Over)
}

// countRow notes a row that was recorded in place of prior.
func (t *task) countRow(verdict dedup.Verdict, prior, row *dedup.Row) {
	c := t.censusOf(row.Class)
	if c == nil {
		return
	}
	if verdict == dedup.Expired {
		c.Remove(prior.First)
	}
	c.Add(row.First)
}

// advanceCensus takes off what is out of time at the class's stream time.
func (t *task) advanceCensus(class uint8, streamTime int64) {
	if c := t.censusOf(class); c != nil {
		c.Advance(c.window, streamTime)
	}
}

// encodeCensuses returns the open counts as the checkpoint keeps them: class,
// census, class, census.
func (t *task) encodeCensuses() string {
	if len(t.openCensuses) == 0 {
		return ""
	}
	var b []byte
	for i := range t.openCensuses {
		b = append(b, t.openCensuses[i].class)
		b = t.openCensuses[i].Append(b)
	}
	return string(b)
}

// countKeys returns the counts that belong to a checkpoint: those it holds,
// and for a class whose limit or window is new, those of the store's rows.
func (rt *runtime) countKeys(c *checkpoint, store *state.Store) ([]census, error) {
	all := rt.limitedClasses()
	held := map[uint8]dedup.Census{}
	for b := []byte(c.censuses); len(b) > 0; {
		counted, rest, err := dedup.DecodeCensus(b[1:])
		if err != nil {
			return nil, refusal("%w: %w; run the build that wrote it", errCheckpoint, err)
		}
		held[b[0]], b = counted, rest
	}
	missing := map[uint8]*census{}
	for i := range all {
		if counted, ok := held[all[i].class]; ok && counted.Fits(all[i].window) {
			all[i].Census = counted
		} else {
			missing[all[i].class] = &all[i]
		}
	}
	if len(missing) == 0 {
		return all, nil
	}
	for row, err := range store.Rows() {
		if err != nil {
			return nil, err
		}
		if m := missing[row.Class]; m != nil && c.streamTimes.has[row.Class] && m.window.Held(row.First, c.streamTimes.at[row.Class]) {
			m.Add(row.First)
		}
	}
	return all, nil
}
