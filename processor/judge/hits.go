package judge

import (
	"fmt"

	"oncebus/processor/kafka"
)

// countHit ends the judging of a duplicate: it tries its shadow out, and stores with the row of a key that it had one more duplicate. It is part of the
// transaction, so each duplicate counts once. The builds of an app at level 2 all read such rows.
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
