package judge

import (
	"oncebus/dedup"
	"oncebus/processor/app"
)

// links reports whether the rows of a route are linked, so that those of earlier windows stay.
// The builds of an app at level 2 all read such rows, and its checkpoints name a route set. Rows
// that a pack can have are those of plain deduplication without adjacent buckets.
func (t *State) links(route *app.Route) bool {
	return t.Open.Set > 0 && t.App.Packed[route.NamespaceID]
}

// decidePlain decides on an event of plain deduplication that lookUp found the row for. An event
// before the window of that row has further rows to look up.
func (t *Judge) decidePlain(c *candidate) (dedup.Verdict, dedup.Row, error) {
	if err := t.goBelow(c); err != nil {
		return 0, dedup.Row{}, err
	}
	if c.descent == nil {
		verdict, row := dedup.Decide(c.event, c.prior, c.hasPrior, c.window, c.streamTime)
		return verdict, row, nil
	}
	verdict, row := dedup.DecideBelow(c.event, c.descent, c.prior, c.hasPrior, c.window, c.streamTime)
	return verdict, row, nil
}

// goBelow goes down the rows of the event's key to the one that decides on it. It reads as many
// rows as the key has windows between. An event of an erased key does so too.
func (t *Judge) goBelow(c *candidate) (err error) {
	for c.hasPrior && c.event.GoesBelow(&c.prior, c.window, c.streamTime) {
		if c.descent == nil {
			c.descent = new(dedup.Descent) // allocated, but for no event in order
		}
		passed := c.prior
		c.descent.Pass(&passed)
		c.replaced = c.descent.Above // no new key
		digest, linked := passed.Below(c.window, c.streamTime)
		if c.hasPrior = linked; !linked {
			break
		}
		if c.prior, c.hasPrior, err = t.Store.Get(digest); err != nil {
			return err
		}
	}
	return nil
}

// putFirst stores the row of an event that came out, and what this changes in the other rows of
// its key.
func (t *Judge) putFirst(e *Emitter, c *candidate, row *dedup.Row) {
	switch {
	case row.Earlier:
		above := c.descent.Above.Above(row.First)
		t.put(e, &change{row: row})
		t.put(e, &change{row: &above, replaced: c.descent.Above})
	case row.Link == dedup.LinkBefore && c.replaced != nil:
		earlier := c.replaced.AsEarlier()
		t.put(e, &change{row: &earlier})
		t.put(e, &change{row: row, replaced: c.replaced})
	default:
		t.put(e, &change{row: row, replaced: c.replaced})
	}
}
