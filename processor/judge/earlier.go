package judge

import (
	"oncebus/dedup"
	"oncebus/processor/app"
)

// links reports whether the task links the rows of a key in this route, so that the rows of earlier windows stay
// (hazard T24). There are two conditions. The checkpoint must name a route set: that is at level 2, where all
// builds of the app read linked rows. And the rows must fit into packs, as rows of plain deduplication without
// adjacent buckets do.
func (t *State) links(route *app.Route) bool {
	return t.Open.Set > 0 && t.App.Packed[route.NamespaceID]
}

// decidePlain decides on an event of plain mode by the row that lookUp found. For an event before the
// window of that row it first looks up the rows of earlier windows.
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

// goBelow follows the links from the newest row of the event's key to the rows of earlier windows, one window at
// a time, until it finds the row that decides on the event. It reads as many rows as the key has windows in
// between, also if the key was erased.
func (t *Judge) goBelow(c *candidate) (err error) {
	for c.hasPrior && c.event.GoesBelow(&c.prior, c.window, c.streamTime) {
		if c.descent == nil {
			c.descent = new(dedup.Descent) // on the heap, but only for events that are out of order
		}
		passed := c.prior
		c.descent.Pass(&passed)
		c.replaced = c.descent.Above // the key has a row, so the event adds no new key to the counts
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

// putFirst stores the row of an event that was emitted, and updates the links in the other rows of its
// key.
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
