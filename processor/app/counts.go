package app

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// A census counts the live keys of one class and status in one task. It is
// kept in the checkpoint, because a limit that forgot its count at a restart
// would be none, and statistics have to be right at once.
type StatusCounter struct {
	Class  uint8
	status dedup.Status
	Window dedup.Window
	dedup.KeyCounter
}

// StatusWaiting stands for a status in the census of requests that wait for an
// outcome, by the first sighting of their key.
const StatusWaiting dedup.Status = 0x40

// statusesOf are those that rows of a route may have while they count, and
// waiting.
func statusesOf(mode rules.Mode) []dedup.Status {
	if mode == rules.ClaimMode {
		return []dedup.Status{dedup.ClaimInProgress, dedup.Submitted, dedup.Completed, StatusWaiting}
	}
	return []dedup.Status{dedup.Seen}
}

// lookupCounts count, by class, the events that were judged and the copies among them.
type lookupCounts struct {
	Class          uint8
	judged, copies uint64
}

// Counts are what a task counts of its keys.
type Counts struct {
	Hits     []lookupCounts  // by class
	Censuses []StatusCounter // by class, then status
	place    [256]place
}

// place is where the counts of a class stand.
type place struct {
	known    bool
	hits     int
	from, to int // in censuses
}

// class returns the counts of a class; none for one without a route.
func (c *Counts) class(class uint8) []StatusCounter {
	p := &c.place[class]
	return c.Censuses[p.from:p.to]
}

// CopyTo makes to equal to c; it reuses to's memory.
func (c *Counts) CopyTo(to *Counts) {
	for i := range c.Censuses {
		c.Censuses[i].CopyTo(&to.Censuses[i].KeyCounter)
	}
	copy(to.Hits, c.Hits)
}

// NewCounts returns the counts of a task that has seen nothing.
func NewCounts(rt *App) Counts {
	c := Counts{Censuses: emptyCensuses(rt)}
	for i, one := range c.Censuses {
		p := &c.place[one.Class]
		if !p.known {
			*p = place{known: true, hits: len(c.Hits), from: i}
			c.Hits = append(c.Hits, lookupCounts{Class: one.Class})
		}
		p.to = i + 1
	}
	return c
}

// emptyCensuses returns one for each class and status, in order.
func emptyCensuses(rt *App) []StatusCounter {
	var all []StatusCounter
	for _, r := range rt.Routes {
		if slices.ContainsFunc(all, func(c StatusCounter) bool { return c.Class == r.NamespaceID }) {
			continue
		}
		for _, status := range statusesOf(r.Mode) {
			all = append(all, StatusCounter{r.NamespaceID, status, r.Span, dedup.NewKeyCounter(r.Span)})
		}
	}
	slices.SortFunc(all, func(a, b StatusCounter) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.status, b.status))
	})
	return all
}

// CountLookup counts an event that was judged.
func (c *Counts) CountLookup(class uint8, verdict dedup.Verdict) {
	h := &c.Hits[c.place[class].hits]
	h.judged++
	if verdict == dedup.Duplicate || verdict == dedup.InProgress || verdict == dedup.Replayed {
		h.copies++
	}
}

// LiveKeys is how many keys of a class are live in the open transaction.
func (c *Counts) LiveKeys(class uint8) (n uint64) {
	for _, one := range c.class(class) {
		if one.status != StatusWaiting {
			n += one.Live()
		}
	}
	return n
}

// AddRow notes a row that was recorded.
func (c *Counts) AddRow(row *dedup.Row) {
	if one := c.Of(row.NamespaceID, row.Status); one != nil {
		one.Add(row.First)
	}
}

// RemoveRow takes a row off that another one takes the place of.
func (c *Counts) RemoveRow(row *dedup.Row) {
	if one := c.Of(row.NamespaceID, row.Status); one != nil {
		one.Remove(row.First)
	}
}

// ReplaceRow notes a row that was recorded, and takes the one off that stood under
// its key; nil if none did.
func (c *Counts) ReplaceRow(row, stood *dedup.Row) {
	if stood != nil {
		c.RemoveRow(stood)
	}
	c.AddRow(row)
}

// ReplaceClaim does so for a claim and those who wait for its outcome.
func (c *Counts) ReplaceClaim(claimed *dedup.ClaimDecision, stood *dedup.Row) {
	c.ReplaceRow(&claimed.Row, stood)
	if stood != nil {
		c.AddWaiting(stood, -claimed.Carried)
	}
	c.AddWaiting(&claimed.Row, claimed.Carried+claimed.Added)
}

// AddWaiting notes that so many requests of a key wait from now on, or with a
// negative number that they wait no more. A namespace whose route is gone has
// no count.
func (c *Counts) AddWaiting(row *dedup.Row, n int) {
	one := c.Of(row.NamespaceID, StatusWaiting)
	if one == nil {
		return
	}
	for ; n > 0; n-- {
		one.Add(row.First)
	}
	for ; n < 0; n++ {
		one.Remove(row.First)
	}
}

// Waiting is how many requests of a class wait for an outcome.
func (c *Counts) Waiting(class uint8) uint64 { return c.Of(class, StatusWaiting).Live() }

// Advance takes off what is out of time at the class's stream time.
func (c *Counts) Advance(class uint8, streamTime int64) {
	all := c.class(class)
	for i := range all {
		all[i].Advance(all[i].Window, streamTime)
	}
}

// hitsMark stands where a census has its status.
const hitsMark = 0xff

// Encode returns the counts as the checkpoint keeps them: of each class and
// status that has rows class, status, census; of each class that has events
// class, hitsMark, judged uvarint, copies uvarint.
func (c *Counts) Encode() string {
	var b []byte
	for i := range c.Censuses {
		if one := &c.Censuses[i]; one.Live() > 0 {
			b = one.Append(append(b, one.Class, byte(one.status)))
		}
	}
	for _, h := range c.Hits {
		if h.judged > 0 {
			b = append(b, h.Class, hitsMark)
			b = binary.AppendUvarint(b, h.judged)
			b = binary.AppendUvarint(b, h.copies)
		}
	}
	return string(b)
}

// Decode fills in what encode wrote. What belongs to no class and status of
// these counts is passed over: its route is gone, or of another mode. recount
// names the classes whose steps are of another width.
func (c *Counts) Decode(text string) (recount map[uint8]bool, err error) {
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
				c.Hits[p.hits].judged, c.Hits[p.hits].copies = judged, copies
			}
			continue
		}
		counted, rest, err := dedup.DecodeKeyCounter(b)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", wire.ErrCheckpoint, err)
		}
		b = rest
		switch known := c.Of(class, dedup.Status(status)); {
		case known == nil:
		case counted.Fits(known.Window):
			known.KeyCounter = counted
		default:
			recount[class] = true
		}
	}
	return recount, nil
}

func (c *Counts) Of(class uint8, status dedup.Status) *StatusCounter {
	all := c.class(class)
	for i := range all {
		if all[i].status == status {
			return &all[i]
		}
	}
	return nil
}

// KeyCount is how many keys of a namespace a task holds, by the status of their
// rows, and how many events were judged against them. A key is held until its
// retention is over in the namespace's stream time; freed ones are not counted.
// A key may count as held, and as active, a 64th of its retention too long.
type KeyCount struct {
	Namespace string `json:"namespace"`
	// Routes are those that share the namespace, and so the keys.
	Routes []string `json:"routes"`
	Status string   `json:"status"`
	// Total keys are held: Active ones, and Expired ones whose window is over,
	// which only events that come late can be copies of.
	Total   uint64 `json:"total"`
	Active  uint64 `json:"active"`
	Expired uint64 `json:"expired"`
	// OldestMS is by how much, in event time, the oldest lies behind stream
	// time, in milliseconds.
	OldestMS int64 `json:"oldest_ms"`
	// Judged and Copies are of the namespace since the app began, told with
	// its first status.
	Judged uint64 `json:"judged"`
	Copies uint64 `json:"copies"`
	// Waiting is how many requests wait for an outcome, told with the first
	// status too.
	Waiting uint64 `json:"waiting"`
}

// List returns the counts for people, as of a checkpoint.
func (c *Counts) List(rt *App, at *wire.Checkpoint) []KeyCount {
	var all []KeyCount
	for i := range c.Censuses {
		one := &c.Censuses[i]
		if one.status == StatusWaiting {
			continue
		}
		streamTime := at.StreamTimes.Of(one.Class)
		count := KeyCount{
			Namespace: rt.Namespaces[one.Class], Routes: rt.RoutesOf[one.Class], Status: one.status.String(),
			Total: one.Live(), Active: one.Active(one.Window, streamTime),
		}
		count.Expired = count.Total - count.Active
		if first, ok := one.Oldest(); ok && streamTime != dedup.NoStreamTime {
			count.OldestMS = max(0, streamTime-first)
		}
		if i == 0 || c.Censuses[i-1].Class != one.Class {
			h := c.Hits[c.place[one.Class].hits]
			count.Judged, count.Copies = h.judged, h.copies
			if requests := c.Of(one.Class, StatusWaiting); requests != nil {
				count.Waiting = requests.Live()
			}
		}
		all = append(all, count)
	}
	return all
}
