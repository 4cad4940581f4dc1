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

// StatusCounter counts the live keys of one namespace id and status in one task. The
// checkpoint has it, so that limits and statistics are right after a restart.
type StatusCounter struct {
	NamespaceID uint8
	status      dedup.Status
	Window      dedup.Window
	dedup.KeyCounter
}

// StatusWaiting is the status under which Counts has the requests that wait for an
// outcome, by the first seen time of their key. No row has it.
const StatusWaiting dedup.Status = 0x40

// statusesOf returns the counted statuses of a route's rows, and those that no row has.
func statusesOf(mode rules.Mode) []dedup.Status {
	if mode == rules.ClaimMode {
		return []dedup.Status{dedup.ClaimInProgress, dedup.Submitted, dedup.Completed, StatusWaiting, StatusDuplicates, StatusDelays}
	}
	return []dedup.Status{dedup.Seen, StatusDuplicates, StatusDelays}
}

// lookupCounts counts the judged events of a namespace id, and the duplicates among
// them.
type lookupCounts struct {
	NamespaceID        uint8
	judged, duplicates uint64
}

// Counts has the key counts of a task.
type Counts struct {
	Hits     []lookupCounts  // by namespace id
	Counters []StatusCounter // by namespace id, then status
	place    [256]place
	senders  *senders // that of Open's result too
	tenants  *tenants // likewise
	// carried are the encoded counts of namespaces without a route in this process. In
	// a rolling update the task may come from a process with the route, and go to one.
	carried string
	// changed has the namespace ids whose counts may differ from those that Commit or
	// Discard made equal, and hasChanged the same as a set.
	changed    []uint8
	hasChanged [256]bool
}

// place is the indexes of a namespace id's counts.
type place struct {
	known    bool
	hits     int
	from, to int // in Counters
}

// countersOf returns the counters of a namespace id; empty for one without a route.
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

// newCounters returns an empty counter for each namespace id and status, in order.
func newCounters(rt *App) []StatusCounter {
	var all []StatusCounter
	for _, r := range rt.Kept() {
		if slices.ContainsFunc(all, func(c StatusCounter) bool { return c.NamespaceID == r.NamespaceID }) {
			continue
		}
		for _, status := range statusesOf(r.Mode) {
			span := r.Span
			if ofDuplicates(status) {
				span = dedup.Window{} // buckets of one ms
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

// LiveKeys returns the number of live keys of a namespace id, those of the open
// transaction included.
func (c *Counts) LiveKeys(namespaceID uint8) (n uint64) {
	for _, one := range c.countersOf(namespaceID) {
		if ofRows(one.status) {
			n += one.Live()
		}
	}
	return n
}

// Replace counts a stored row and subtracts the row that it replaces, nil for none. A
// row with the status and the first seen time of the replaced one is counted already. A row of an
// earlier window does not count: its key has another row, and a limit is one of keys.
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

// AddWaiting adds n to the waiting requests of a key; a negative n subtracts. It does
// nothing for a namespace whose route was removed.
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

// InProgress returns how many claims of a namespace id have neither an outcome nor a submitted
// order.
func (c *Counts) InProgress(namespaceID uint8) uint64 {
	return c.Of(namespaceID, dedup.ClaimInProgress).Live()
}

// Advance subtracts the keys of a namespace id whose retention is over at its stream
// time, in ms. It returns how many these are, and of how many the window is over, since the stream time before.
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

// Encode returns the counts as in the checkpoint. Each namespace id and status with
// rows has: namespace id, status, key counter. Each namespace id with events has:
// namespace id, wire.CountsOfEvents, judged uvarint, duplicates uvarint. The carried counts follow
// as they were read.
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

// decodeHits decodes the counts of events of a namespace at the start of b, and returns what
// follows them.
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

// Decode decodes what Encode wrote into a checkpoint into c. It carries namespace ids and
// statuses that c does not have, because this process has no route for them. recount has the
// namespace ids whose window changed, so that their keys must be counted again. Errors
// wrap wire.ErrCheckpoint.
//
// set is the route set of the process. A task that goes over to it keeps its counts, however
// long their steps are: with many keys it would stall. After that, too long steps are
// a reason to count again. Too short ones are merged.
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
		case ofDuplicates(known.status): // no build has written it
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

// Of returns the counter of a namespace id and status, nil for rows that are not counted.
func (c *Counts) Of(namespaceID uint8, status dedup.Status) *StatusCounter {
	all := c.countersOf(namespaceID)
	for i := range all {
		if all[i].status == status {
			return &all[i]
		}
	}
	return nil
}

// TakeRows takes the counters of rows of some namespaces from the counts of another reader, as
// of a checkpoint. It returns false, and changes nothing, if these are by another window.
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

// CountsRows reports whether the counter is one of rows, or of what waits in them.
func (s *StatusCounter) CountsRows() bool { return !ofDuplicates(s.status) }

// KeyCount is the number of keys of a namespace and status within retention in one
// task. A key counts until its retention is over in stream time; an erased key does
// not. It may count as live, and as active, for a 64th of its retention too long.
type KeyCount struct {
	Namespace string `json:"namespace"`
	// Routes are the names of the routes that share the namespace.
	Routes []string `json:"routes"`
	Status string   `json:"status"`
	// Total is Active plus Expired. An expired key's window is over, so that
	// only a late event can be its duplicate.
	Total   uint64 `json:"total"`
	Active  uint64 `json:"active"`
	Expired uint64 `json:"expired"`
	// OldestMS is how far the oldest key is behind the newest event, in ms of event
	// time.
	OldestMS int64 `json:"oldest_ms"`
	// Judged and Duplicates count the events of the namespace, and the duplicates
	// among them, since the app began. Only the first status has them.
	Judged     uint64 `json:"judged"`
	Duplicates uint64 `json:"duplicates"`
	// Waiting is the number of requests that wait for an outcome. Only the
	// first status has it.
	Waiting uint64 `json:"waiting"`
}

// Add adds the counts of the same namespace and status in another task.
func (k *KeyCount) Add(other *KeyCount) {
	k.Total, k.Active, k.Expired = k.Total+other.Total, k.Active+other.Active, k.Expired+other.Expired
	k.OldestMS = max(k.OldestMS, other.OldestMS)
	k.Judged, k.Duplicates, k.Waiting = k.Judged+other.Judged, k.Duplicates+other.Duplicates, k.Waiting+other.Waiting
}

// List returns the counts at a checkpoint with names.
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
