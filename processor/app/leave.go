package app

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
)

// refuseRelease returns the operator error for the release of an app that leaves its cluster.
// If it was released elsewhere, a release here would emit every event twice.
func (h *Hold) refuseRelease() error {
	if h.Left {
		return kafka.OperatorErrorf("the app has left this cluster for good: %s, since %s; stop its processes", h.Reason, h.At.Format(time.RFC3339))
	}
	return kafka.OperatorErrorf("the app leaves this cluster: %s, since %s; if it was never released in the other one, take it back: oncebus release --back", h.Reason, h.At.Format(time.RFC3339))
}

// TakeBack ends the hold of an app that leaves its cluster, and returns the hold. The caller
// says that the app was not released in the other one. A file that was written under the hold
// must not be used any more.
func TakeBack(ctx context.Context, c Conn, cfg Config, t *Topology) (ended *Hold, err error) {
	err = changeLeaving(ctx, c, cfg, t, func(h *Hold) (any, error) {
		if h.Left {
			return nil, h.refuseRelease()
		}
		ended = h
		return nil, nil
	})
	return ended, err
}

// Leave makes the hold of an app that leaves its cluster final, and returns it: from then on
// TakeBack refuses. The caller says that the app was released in the other one.
func Leave(ctx context.Context, c Conn, cfg Config, t *Topology) (left *Hold, err error) {
	err = changeLeaving(ctx, c, cfg, t, func(h *Hold) (any, error) {
		left = h
		left.Left = true
		return left, nil
	})
	return left, err
}

// changeLeaving replaces the hold of an app that leaves; with nil it removes it.
func changeLeaving(ctx context.Context, c Conn, cfg Config, t *Topology, change func(*Hold) (any, error)) error {
	return ChangeRows(ctx, c, cfg, t, func(rows Rows) ([]*kgo.Record, error) {
		h, err := HoldIn(rows)
		switch {
		case err != nil:
			return nil, err
		case h == nil || !h.Leaving:
			return nil, kafka.OperatorErrorf("the app does not leave this cluster: oncebus hold --leaving begins it")
		}
		row, err := change(h)
		if err != nil {
			return nil, err
		}
		rec, err := encodeRow(holdKey, row)
		return []*kgo.Record{rec}, err
	})
}
