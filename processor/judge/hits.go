package judge

import (
	"fmt"

	"oncebus/processor/kafka"
)

// countHit ends the judging of a duplicate. It sends the verdict to the shadow of the route, if there is one,
// and counts the duplicate as a hit in the row of its key. The row is part of the transaction, so each duplicate
// counts once. Only an app at level 2 (the checkpoint names a route set) counts hits, because all its builds can
// read rows with hits.
func (t *Judge) countHit(j *Judging, ev *event, c *candidate) error {
	t.shadow(j, ev, c, false)
	if !ev.route.CountHits || t.Open.Set == 0 {
		return nil
	}
	row, err := c.prior.Hit(ev.brokerTime)
	if err != nil {
		return fmt.Errorf("%w: hits of key %v: %w", kafka.ErrIllegalState, c.prior.Digest, err)
	}
	t.put(j.Emitter, &change{row: &row, replaced: &c.prior})
	return nil
}
