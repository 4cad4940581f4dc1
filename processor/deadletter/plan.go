package deadletter

import (
	"cmp"
	"context"
	"slices"
)

// Limits of a transaction, so that it ends long before its timeout:
const (
	batchRecordsMax = 1000
	batchBytesMax   = 8 << 20
)

// entry is a dead letter that the plan has selected.
type entry struct {
	at, origin Position
	rank       int64
	bytes      int64 // approximate size of its original
}

// Skipped counts the dead letters that are not redriven for the same cause.
type Skipped struct {
	Cause Cause    `json:"cause"`
	Count int      `json:"count"`
	First Position `json:"first"` // the first such dead letter
	Why   string   `json:"why"`
}

// skips counts the skipped dead letters by cause.
type skips map[Cause]*Skipped

func (s skips) add(at Position, skip *Skip) {
	of := s[skip.Cause]
	if of == nil {
		of = &Skipped{Cause: skip.Cause, First: at, Why: skip.Why}
		s[skip.Cause] = of
	}
	of.Count++
}

func (s skips) sorted() []Skipped {
	all := []Skipped{}
	for _, of := range s {
		all = append(all, *of)
	}
	slices.SortFunc(all, func(a, b Skipped) int { return cmp.Compare(a.Cause, b.Cause) })
	return all
}

// plan has the dead letters of a redrive in the order in which the redrive produces them.
type plan struct {
	entries  []entry
	selected int
	skipped  skips
}

// Selection tells which dead letters a command works on.
type Selection struct {
	Filter

	Again bool // also select those that were redriven or dropped before
	Limit int  // select at most this many, in the order of a redrive; 0 for no limit
}

// plan reads the dead letters and selects some. refuse returns why a dead letter is left out, nil if it is not.
func (c *Client) plan(ctx context.Context, sel *Selection, watch func(read, total int64), refuse func(*Letter) *Skip) (*plan, error) {
	p := &plan{skipped: skips{}}
	err := c.Scan(ctx, &sel.Filter, watch, func(l *Letter) bool {
		if !sel.Again && c.StateOf(l) != Open {
			return true
		}
		if skip := refuse(l); skip != nil {
			p.skipped.add(l.At, skip)
		} else {
			p.entries = append(p.entries, entry{at: l.At, origin: l.Origin, bytes: max(l.Size, int64(len(l.Record.Value)))})
		}
		return true
	})
	order(p.entries)
	if sel.Limit > 0 && sel.Limit < len(p.entries) {
		p.entries = p.entries[:sel.Limit]
	}
	p.selected = len(p.entries)
	for _, of := range p.skipped {
		p.selected += of.Count
	}
	return p, err
}

// order sorts entries so that the records of an input partition are produced in the order in which they were
// there, even if their dead letters have another order. Apart from that, the entries stay roughly in the order
// of their dead letters, so that a batch can be read with few fetches.
func order(entries []entry) {
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.origin.Topic, b.origin.Topic), cmp.Compare(a.origin.Partition, b.origin.Partition), cmp.Compare(a.origin.Offset, b.origin.Offset),
			cmp.Compare(a.at.Topic, b.at.Topic), cmp.Compare(a.at.Partition, b.at.Partition), cmp.Compare(a.at.Offset, b.at.Offset))
	})
	var before *entry
	for i := range entries {
		e := &entries[i]
		e.rank = e.at.Offset
		if before != nil && before.origin.Topic == e.origin.Topic && before.origin.Partition == e.origin.Partition {
			e.rank = max(e.rank, before.rank)
		}
		before = e
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.rank, b.rank) })
}

// batch cuts the next batch off the entries: at least one entry, and at most recordsMax.
func (p *plan) batch(recordsMax int) []entry {
	n, bytes := 0, int64(0)
	for n < len(p.entries) && n < recordsMax && (n == 0 || bytes+p.entries[n].bytes <= batchBytesMax) {
		bytes += p.entries[n].bytes
		n++
	}
	batch := p.entries[:n]
	p.entries = p.entries[n:]
	return batch
}

// letters reads the dead letters of a batch, in its order. Dead letters that were deleted by the topic's
// retention since the scan are missing in the result.
func (c *Client) letters(ctx context.Context, batch []entry) ([]*Letter, error) {
	wanted := map[Position][]int64{} // offsets by partition; the offset in the key is 0
	for _, e := range batch {
		partition := Position{Topic: e.at.Topic, Partition: e.at.Partition}
		wanted[partition] = append(wanted[partition], e.at.Offset)
	}
	found := map[Position]*Letter{}
	for of, offsets := range wanted {
		slices.Sort(offsets)
		records, err := c.fetch(ctx, of.Topic, of.Partition, offsets)
		if err != nil {
			return nil, err
		}
		for offset, rec := range records {
			found[Position{of.Topic, of.Partition, offset}] = Read(rec)
		}
	}
	var letters []*Letter
	for _, e := range batch {
		if l := found[e.at]; l != nil {
			letters = append(letters, l)
		}
	}
	return letters, nil
}
