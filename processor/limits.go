package processor

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
	"oncebus/state"
)

// A census counts the live keys of one class and status in one task. It is
// kept in the checkpoint, because a limit that forgot its count at a restart
// would be none, and statistics have to be right at once.
type census struct {
	class  uint8
	status dedup.Status
	window dedup.Window
	dedup.KeyCounter
}

// waiting stands for a status in the census of requests that wait for an
// outcome, by the first sighting of their key.
const waiting dedup.Status = 0x40

// waitingMax is how many requests of a namespace may wait in one partition,
// those of running events included. Copies beyond it are told so at once.
const waitingMax = 64 << 10

// statusesOf are those that rows of a route may have while they count, and
// waiting.
func statusesOf(mode rules.Mode) []dedup.Status {
	if mode == rules.ClaimMode {
		return []dedup.Status{dedup.ClaimInProgress, dedup.Submitted, dedup.Completed, waiting}
	}
	return []dedup.Status{dedup.Seen}
}

// hits count, by class, the events that were judged and the copies among them.
type hits struct {
	class          uint8
	judged, copies uint64
}

// counts are what a task counts of its keys.
type counts struct {
	hits     []hits   // by class
	censuses []census // by class, then status
	place    [256]place
}

// place is where the counts of a class stand.
type place struct {
	known    bool
	hits     int
	from, to int // in censuses
}

// class returns the counts of a class; none for one without a route.
func (c *counts) class(class uint8) []census {
	p := &c.place[class]
	return c.censuses[p.from:p.to]
}

// copyTo makes to equal to c; it reuses to's memory.
func (c *counts) copyTo(to *counts) {
	for i := range c.censuses {
		c.censuses[i].CopyTo(&to.censuses[i].KeyCounter)
	}
	copy(to.hits, c.hits)
}

// noCounts returns the counts of a task that has seen nothing.
func (rt *runtime) noCounts() counts {
	c := counts{censuses: rt.emptyCensuses()}
	for i, one := range c.censuses {
		p := &c.place[one.class]
		if !p.known {
			*p = place{known: true, hits: len(c.hits), from: i}
			c.hits = append(c.hits, hits{class: one.class})
		}
		p.to = i + 1
	}
	return c
}

// emptyCensuses returns one for each class and status, in order.
func (rt *runtime) emptyCensuses() []census {
	var all []census
	for _, r := range rt.routes {
		if slices.ContainsFunc(all, func(c census) bool { return c.class == r.class }) {
			continue
		}
		for _, status := range statusesOf(r.Mode) {
			all = append(all, census{r.class, status, r.span, dedup.NewKeyCounter(r.span)})
		}
	}
	slices.SortFunc(all, func(a, b census) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.status, b.status))
	})
	return all
}

// census returns that of a class and status in the open transaction, nil for
// rows that do not count.
func (t *task) census(class uint8, status dedup.Status) *census {
	return t.openCounts.of(class, status)
}

// countHit counts an event that was judged.
func (t *task) countHit(class uint8, verdict dedup.Verdict) {
	h := &t.openCounts.hits[t.openCounts.place[class].hits]
	h.judged++
	if verdict == dedup.Duplicate || verdict == dedup.InProgress || verdict == dedup.Replayed {
		h.copies++
	}
}

// liveKeys is how many keys of a class are live in the open transaction.
func (t *task) liveKeys(class uint8) (n uint64) {
	for _, c := range t.openCounts.class(class) {
		if c.status != waiting {
			n += c.Live()
		}
	}
	return n
}

// overLimit reports whether a new key is one too many.
func (t *task) overLimit(route *routeInfo) bool {
	return route.Limits.LiveKeys > 0 && t.liveKeys(route.class) >= uint64(route.Limits.LiveKeys)
}

// turnLimited lets an event with a key too many go, unchecked. Its time counts
// all the same: time is what makes room for new keys.
func (t *task) turnLimited(j *judging, ev *event) {
	ev.verdict = dedup.Limited
	ev.reason = fmt.Sprintf("new key beyond the limit: %d keys of namespace %s are live in %v, live_keys is %d",
		t.liveKeys(ev.route.class), ev.route.Namespace, t.id, ev.route.Limits.LiveKeys)
	j.byPolicy(ev, ev.route.Limits.OnLimit)
}

// countRow notes a row that was recorded.
func (t *task) countRow(row *dedup.Row) {
	if c := t.census(row.NamespaceID, row.Status); c != nil {
		c.Add(row.First)
	}
}

// uncountRow takes a row off that another one takes the place of.
func (t *task) uncountRow(row *dedup.Row) {
	if c := t.census(row.NamespaceID, row.Status); c != nil {
		c.Remove(row.First)
	}
}

// recount notes a row that was recorded, and takes the one off that stood under
// its key; nil if none did.
func (t *task) recount(row, stood *dedup.Row) {
	if stood != nil {
		t.uncountRow(stood)
	}
	t.countRow(row)
}

// recountClaim does so for a claim and those who wait for its outcome.
func (t *task) recountClaim(c *dedup.ClaimDecision, stood *dedup.Row) {
	t.recount(&c.Row, stood)
	if stood != nil {
		t.countWaiting(stood, -c.Carried)
	}
	t.countWaiting(&c.Row, c.Carried+c.Added)
}

// countWaiting notes that so many requests of a key wait from now on, or with a
// negative number that they wait no more. A namespace whose route is gone has
// no count.
func (t *task) countWaiting(row *dedup.Row, n int) {
	c := t.census(row.NamespaceID, waiting)
	if c == nil {
		return
	}
	for ; n > 0; n-- {
		c.Add(row.First)
	}
	for ; n < 0; n++ {
		c.Remove(row.First)
	}
}

// mayWait reports whether one more request of a route may wait.
func (t *task) mayWait(route *routeInfo) bool {
	return t.census(route.class, waiting).Live() < waitingMax
}

// advanceCensus takes off what is out of time at the class's stream time.
func (t *task) advanceCensus(class uint8, streamTime int64) {
	all := t.openCounts.class(class)
	for i := range all {
		all[i].Advance(all[i].window, streamTime)
	}
}

// hitsMark stands where a census has its status.
const hitsMark = 0xff

// encode returns the counts as the checkpoint keeps them: of each class and
// status that has rows class, status, census; of each class that has events
// class, hitsMark, judged uvarint, copies uvarint.
func (c *counts) encode() string {
	var b []byte
	for i := range c.censuses {
		if one := &c.censuses[i]; one.Live() > 0 {
			b = one.Append(append(b, one.class, byte(one.status)))
		}
	}
	for _, h := range c.hits {
		if h.judged > 0 {
			b = append(b, h.class, hitsMark)
			b = binary.AppendUvarint(b, h.judged)
			b = binary.AppendUvarint(b, h.copies)
		}
	}
	return string(b)
}

// decode fills in what encode wrote. What belongs to no class and status of
// these counts is passed over: its route is gone, or of another mode. recount
// names the classes whose steps are of another width.
func (c *counts) decode(text string) (recount map[uint8]bool, err error) {
	recount = map[uint8]bool{}
	for b := []byte(text); len(b) > 0; {
		if len(b) < 2 {
			return nil, fmt.Errorf("%w: cut short in the counts of keys", wire.ErrCheckpoint)
		}
		class, status := b[0], b[1]
		b = b[2:]
		if status == hitsMark {
			judged, n := binary.Uvarint(b)
			copies, m := binary.Uvarint(b[max(0, n):])
			if n <= 0 || m <= 0 {
				return nil, fmt.Errorf("%w: cut short in the counts of events", wire.ErrCheckpoint)
			}
			b = b[n+m:]
			if p := c.place[class]; p.known {
				c.hits[p.hits].judged, c.hits[p.hits].copies = judged, copies
			}
			continue
		}
		counted, rest, err := dedup.DecodeKeyCounter(b)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", wire.ErrCheckpoint, err)
		}
		b = rest
		switch known := c.of(class, dedup.Status(status)); {
		case known == nil:
		case counted.Fits(known.window):
			known.KeyCounter = counted
		default:
			recount[class] = true
		}
	}
	return recount, nil
}

func (c *counts) of(class uint8, status dedup.Status) *census {
	all := c.class(class)
	for i := range all {
		if all[i].status == status {
			return &all[i]
		}
	}
	return nil
}

// countKeys returns the counts that belong to a checkpoint: those it holds,
// and for a class whose window is new, those of the store's rows.
func (rt *runtime) countKeys(c *wire.Checkpoint, store *state.Store) (counts, error) {
	all := rt.noCounts()
	recount, err := all.decode(c.Counts)
	if err != nil {
		return counts{}, kafka.OperatorErrorf("%w; run the build that wrote it", err)
	}
	for _, h := range all.hits {
		if !c.Counted && c.StreamTimes.Has[h.class] {
			recount[h.class] = true
		}
	}
	if len(recount) == 0 {
		return all, nil
	}
	for i := range all.censuses {
		if one := &all.censuses[i]; recount[one.class] {
			one.KeyCounter = dedup.NewKeyCounter(one.window)
		}
	}
	for row, err := range store.Rows() {
		if err != nil {
			return counts{}, err
		}
		one := all.of(row.NamespaceID, row.Status)
		if one == nil || !recount[row.NamespaceID] || !one.window.Held(row.First, c.StreamTimes.At[row.NamespaceID]) {
			continue
		}
		one.Add(row.First)
		claim, err := dedup.DecodeClaim(row.Result)
		if err != nil {
			return counts{}, err
		}
		for range claim.Requests {
			all.of(row.NamespaceID, waiting).Add(row.First)
		}
	}
	return all, nil
}
