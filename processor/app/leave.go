package app

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TakeBack ends the hold of an app that leaves its cluster, and returns the hold. By calling TakeBack, an
// operator states that the app was not released in the other cluster. A file that was exported under the hold
// must not be used any more.
func TakeBack(ctx context.Context, c Conn, cfg Config, t *Topology) (ended *Hold, err error) {
	before, _, err := changeResidence(ctx, c, cfg, t, Residence.TakeBack)
	return before.Hold, err
}

// Leave makes the hold of an app that leaves its cluster final, and returns the hold: TakeBack refuses from then
// on. By calling Leave, an operator states that the app was released in the other cluster.
func Leave(ctx context.Context, c Conn, cfg Config, t *Topology) (left *Hold, err error) {
	_, after, err := changeResidence(ctx, c, cfg, t, Residence.Leave)
	return after.Hold, err
}

// changeResidence applies a decision about where the app runs to the rows of the manifest topic, in one
// transaction.
func changeResidence(ctx context.Context, c Conn, cfg Config, t *Topology, decide func(Residence) (Residence, error)) (before, after Residence, err error) {
	err = ChangeRows(ctx, c, cfg, t, func(rows Rows) ([]*kgo.Record, error) {
		var err error
		if before, err = ResidenceIn(rows); err != nil {
			return nil, err
		}
		if after, err = decide(before); err != nil {
			return nil, err
		}
		return after.records(before)
	})
	return before, after, err
}
