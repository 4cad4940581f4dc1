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

// StatusCounter counts the live keys of one namespace id and status in one task. The checkpoint contains the
// counter, so that limits and statistics are right after a restart.
type StatusCounter struct {
	NamespaceID uint8
	status      dedup.Status
	Window      dedup.Window
	dedup.KeyCounter
}

// StatusWaiting is a status that no row has. Under it Counts counts the requests that wait for an outcome, by
// the first seen time of their key.
const StatusWaiting dedup.Status = 0x40

// statusesOf returns the statuses under which Counts counts for a route: the statuses of the route's rows, and
// StatusWaiting and the like, which no row has.
func statusesOf(mode rules.Mode) []dedup.Status {
	if mode == rules.ClaimMode {
		return []dedup.Status{dedup.ClaimInProgress, dedup.Submitted, dedup.Completed, StatusWaiting, StatusDuplicates, StatusDelays}
	}
	return []dedup.Status{dedup.Seen, StatusDuplicates, StatusDelays}
}

// lookupCounts counts the judged events of a namespace id, and how many of them are duplicates.
type lookupCounts struct {
	NamespaceID        uint8
	judged, duplicates uint64
}

// Counts has all counts of a task: live keys, judged events and duplicates.
type Counts struct {
	Hits     []lookupCounts  // by namespace id
	Counters []StatusCounter // by namespace id, then status
	place    [256]place
	// senders and tenants are shared with the result of Open.
	senders *senders
	tenants *tenants
	// carried are the encoded counts of namespaces for which this process has no route. During a rolling update
	// the task may come from a process that has the route, and move on to another such process. So this process
	// must keep the counts.
	carried string
	// changed has the namespace ids whose counts the open transaction may have changed since the last Commit or
	// Discard; hasChanged is the same as a set.
	changed    []uint8
	hasChanged [256]bool
}

// place has the indexes at which a namespace id's counts are in Counts.
type place struct {
	known    bool
	hits     int
	from, to int // in Counters
}

// countersOf returns the counters of a namespace id; it returns none for a namespace without a route.
func (c *Counts) countersOf(namespaceID uint8) []StatusCounter {
	p := &c.place[namespaceID]
	return c.Counters[p.from:p.to]
}

// NewCounts returns the counts of a task without rows.
func NewCounts(rt *App) Counts {
	c := Counts{Counters: newCounters(rt), senders: newSenders(rt), tenants: newTenants(rt)}
	for i, one := range c.Counters {
		p := &c.place[one.NamespaceID]
		if !p.known {
			*p = place{known: true, hits: len(c.Hits), from: i}
			c.Hits = append(c.Hits, lookupCounts{NamespaceID: one.NamespaceID})
		}
		p.to = i + 1
	}
	return c
}

// newCounters returns an empty counter for each namespace id and status, sorted by both.
func newCounters(rt *App) []StatusCounter {
	var all []StatusCounter
	for _, r := range rt.Kept() {
		if slices.ContainsFunc(all, func(c StatusCounter) bool { return c.NamespaceID == r.NamespaceID }) {
			continue
		}
		for _, status := range statusesOf(r.Mode) {
			span := r.Span
			if ofDuplicates(status) {
				span = dedup.Window{} // no window: buckets of one ms
			}
			all = append(all, StatusCounter{r.NamespaceID, status, span, dedup.NewKeyCounter(span)})
		}
	}
	slices.SortFunc(all, func(a, b StatusCounter) int {
		return cmp.Or(cmp.Compare(a.NamespaceID, b.NamespaceID), cmp.Compare(a.status, b.status))
	})
	return all
}

// CountLookup counts a judged event.
func (c *Counts) CountLookup(namespaceID uint8, verdict dedup.Verdict) {
	c.note(namespaceID)
	h := &c.Hits[c.place[namespaceID].hits]
	h.judged++
	if verdict.IsDuplicate() {
		h.duplicates++
	}
}

// LiveKeys returns the number of live keys of a namespace id. It includes the keys of the open transaction.
func (c *Counts) LiveKeys(namespaceID uint8) (n uint64) {
	for _, one := range c.countersOf(namespaceID) {
		if ofRows(one.status) {
			n += one.Live()
		}
	}
	return n
}

// Replace counts a stored row, and subtracts the row that it replaces (nil for none). If both rows have the same
// status and first seen time, the row is counted already. A row of an earlier window does not count: the key has
// another row that counts, and limits are limits on keys.
func (c *Counts) Replace(row, replaced *dedup.Row) {
	if row.Earlier {
		return
	}
	if replaced != nil {
		if replaced.First == row.First && replaced.Status == row.Status {
			return
		}
		c.note(replaced.NamespaceID)
		if one := c.Of(replaced.NamespaceID, replaced.Status); one != nil {
			one.Remove(replaced.First)
		}
	}
	c.note(row.NamespaceID)
	if one := c.Of(row.NamespaceID, row.Status); one != nil {
		one.Add(row.First)
	}
}

// AddWaiting adds n to the waiting requests of a key; a negative n subtracts. It does nothing for a namespace
// whose route was removed.
func (c *Counts) AddWaiting(row *dedup.Row, n int) {
	one := c.Of(row.NamespaceID, StatusWaiting)
	if one == nil || n == 0 {
		return
	}
	c.note(row.NamespaceID)
	for ; n > 0; n-- {
		one.Add(row.First)
	}
	for ; n < 0; n++ {
		one.Remove(row.First)
	}
}

// Waiting returns how many requests of a namespace id wait for an outcome.
func (c *Counts) Waiting(namespaceID uint8) uint64 { return c.Of(namespaceID, StatusWaiting).Live() }

// InProgress returns how many claims of a namespace id have neither an outcome nor a submitted order yet.
func (c *Counts) InProgress(namespaceID uint8) uint64 {
	return c.Of(namespaceID, dedup.ClaimInProgress).Live()
}

// Advance subtracts the keys of a namespace id whose retention is over at its stream time, in ms. It returns for
// how many keys the retention has ended since the last call, and for how many the window has.
func (c *Counts) Advance(namespaceID uint8, streamTime int64) (ended dedup.Ended) {
	c.note(namespaceID)
	all := c.countersOf(namespaceID)
	for i := range all {
		if ofDuplicates(all[i].status) {
			continue
		}
		n := all[i].Advance(all[i].Window, streamTime)
		if ofRows(all[i].status) {
			ended.Windows, ended.Retentions = ended.Windows+n.Windows, ended.Retentions+n.Retentions
		}
	}
	return ended
}

// Encode returns the counts as the checkpoint contains them. For each namespace id and status with rows:
// namespace id, status, key counter. For each namespace id with events: namespace id, wire.CountsOfEvents,
// judged uvarint, duplicates uvarint. The carried counts follow as they were read.
func (c *Counts) Encode() string {
	var b []byte
	for i := range c.Counters {
		if one := &c.Counters[i]; one.Live() > 0 {
			b = one.Append(append(b, one.NamespaceID, byte(one.status)))
		}
	}
	for _, h := range c.Hits {
		if h.judged > 0 {
			b = append(b, h.NamespaceID, wire.CountsOfEvents)
			b = binary.AppendUvarint(b, h.judged)
			b = binary.AppendUvarint(b, h.duplicates)
		}
	}
	return string(b) + c.carried
}

// decodeHits decodes the counts of a namespace's events at the start of b, and returns the bytes after them.
func (c *Counts) decodeHits(b []byte) (rest []byte, err error) {
	judged, n := binary.Uvarint(b[2:])
	duplicates, m := binary.Uvarint(b[2+max(0, n):])
	if n <= 0 || m <= 0 {
		return nil, fmt.Errorf("%w: cut short in the counts of events", wire.ErrCheckpoint)
	}
	if p := c.place[b[0]]; p.known {
		c.Hits[p.hits].judged, c.Hits[p.hits].duplicates = judged, duplicates
	} else {
		c.carried += string(b[:2+n+m])
	}
	return b[2+n+m:], nil
}

// Decode decodes into c what Encode wrote into a checkpoint. Namespace ids and statuses for which this process
// has no route become carried counts. recount has the namespace ids whose window has changed, so that their keys
// must be counted again. Errors wrap wire.ErrCheckpoint.
//
// set is the route set of the process. If the task is just changing over to this set, it keeps its counts even
// if their buckets are too wide for the new window: to count many keys again would stall the task. Otherwise,
// buckets that are too wide are a reason to count again. Buckets that are too narrow are merged.
func (c *Counts) Decode(of *wire.Checkpoint, set int64) (recount map[uint8]bool, err error) {
	recount = map[uint8]bool{}
	c.carried = ""
	for b := []byte(of.Counts); len(b) > 0; {
		encoded := b
		if len(b) < 2 {
			return nil, fmt.Errorf("%w: cut short in the counts of keys", wire.ErrCheckpoint)
		}
		namespaceID, status := b[0], b[1]
		b = b[2:]
		if status == wire.CountsOfEvents {
			if b, err = c.decodeHits(encoded); err != nil {
				return nil, err
			}
			continue
		}
		counted, rest, err := dedup.DecodeKeyCounter(b)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", wire.ErrCheckpoint, err)
		}
		b = rest
		switch known := c.Of(namespaceID, dedup.Status(status)); {
		case known == nil:
			c.carried += string(encoded[:len(encoded)-len(b)])
		case counted.Fits(known.Window):
			known.KeyCounter = counted
			known.GoOn(known.Window, of.StreamTimes.Of(namespaceID))
		case ofDuplicates(known.status): // no build has written such counts
			return nil, fmt.Errorf("%w: duplicates in buckets of another width", wire.ErrCheckpoint)
		case of.Set == 0:
			known.KeyCounter = counted
			recount[namespaceID] = true
		default:
			counted.MergeFor(known.Window)
			known.KeyCounter = counted
			if counted.IsCoarse(known.Window) && of.Set == set {
				recount[namespaceID] = true
			}
		}
	}
	return recount, nil
}

// Of returns the counter of a namespace id and status; nil for rows that are not counted.
func (c *Counts) Of(namespaceID uint8, status dedup.Status) *StatusCounter {
	all := c.countersOf(namespaceID)
	for i := range all {
		if all[i].status == status {
			return &all[i]
		}
	}
	return nil
}

// TakeRows takes over the counters of rows of some namespaces from other counts, such as those of a checkpoint.
// If a counter is missing or counts by another window, TakeRows changes nothing and returns false.
func (c *Counts) TakeRows(from *Counts, namespaces map[uint8]bool, at *wire.Checkpoint) bool {
	for i := range c.Counters {
		if one := &c.Counters[i]; namespaces[one.NamespaceID] && one.CountsRows() {
			if counted := from.Of(one.NamespaceID, one.status); counted == nil || !counted.Fits(one.Window) {
				return false
			}
		}
	}
	for i := range c.Counters {
		if one := &c.Counters[i]; namespaces[one.NamespaceID] && one.CountsRows() {
			one.KeyCounter = from.Of(one.NamespaceID, one.status).KeyCounter
			one.Advance(one.Window, at.StreamTimes.Of(one.NamespaceID))
		}
	}
	return true
}

// CountsRows reports whether the counter counts rows, or requests that are stored in rows and wait for an
// outcome.
func (s *StatusCounter) CountsRows() bool { return !ofDuplicates(s.status) }

// KeyCount is the number of keys of a namespace and status within retention in one task. A key counts until its
// retention is over in stream time; an erased key does not count. A key may count as live, and as active, for a
// 64th of its retention too long, because the counter has buckets of this width.
type KeyCount struct {
	Namespace string `json:"namespace"`
	// Routes are the names of the routes that share the namespace.
	Routes []string `json:"routes"`
	Status string   `json:"status"`
	// Total is Active plus Expired. The window of an expired key is over: only a late event can still be its
	// duplicate.
	Total   uint64 `json:"total"`
	Active  uint64 `json:"active"`
	Expired uint64 `json:"expired"`
	// OldestMS is how far the oldest key is behind the newest event, in ms of event time.
	OldestMS int64 `json:"oldest_ms"`
	// Judged and Duplicates count the judged events of the namespace since the app began, and the duplicates
	// among them. They are set only in the entry of the namespace's first status.
	Judged     uint64 `json:"judged"`
	Duplicates uint64 `json:"duplicates"`
	// Waiting is the number of requests that wait for an outcome. It is set only in the entry of the first
	// status.
	Waiting uint64 `json:"waiting"`
}

// Add adds the counts of the same namespace and status in another task.
func (k *KeyCount) Add(other *KeyCount) {
	k.Total, k.Active, k.Expired = k.Total+other.Total, k.Active+other.Active, k.Expired+other.Expired
	k.OldestMS = max(k.OldestMS, other.OldestMS)
	k.Judged, k.Duplicates, k.Waiting = k.Judged+other.Judged, k.Duplicates+other.Duplicates, k.Waiting+other.Waiting
}

// List returns the counts as of a checkpoint, with the names of namespaces, routes and statuses.
func (c *Counts) List(rt *App, at *wire.Checkpoint) []KeyCount {
	var all []KeyCount
	for i := range c.Counters {
		one := &c.Counters[i]
		if !ofRows(one.status) {
			continue
		}
		streamTime := at.StreamTimes.Of(one.NamespaceID)
		count := KeyCount{
			Namespace: rt.Namespaces[one.NamespaceID], Routes: rt.RoutesOf[one.NamespaceID], Status: one.status.String(),
			Total: one.Live(), Active: one.Active(one.Window, streamTime),
		}
		count.Expired = count.Total - count.Active
		if first, ok := one.Oldest(); ok {
			newest, _ := at.Latest(one.NamespaceID)
			count.OldestMS = max(0, newest-first)
		}
		if i == 0 || c.Counters[i-1].NamespaceID != one.NamespaceID {
			h := c.Hits[c.place[one.NamespaceID].hits]
			count.Judged, count.Duplicates = h.judged, h.duplicates
			if requests := c.Of(one.NamespaceID, StatusWaiting); requests != nil {
				count.Waiting = requests.Live()
			}
		}
		all = append(all, count)
	}
	return all
}
