package restore

import (
	"context"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
	"oncebus/state"
)

// recountStep is how many rows a recount reads between two checks of its context.
const recountStep = 1024

// CountKeys returns the counts of a checkpoint. For namespaces whose window has changed since the checkpoint, it
// counts the store's rows. That may take minutes, so CountKeys stops when ctx is done: in a rebalance the worker
// ends the restore, and waits for it.
func CountKeys(ctx context.Context, a *app.App, c *wire.Checkpoint, store *state.Store) (app.Counts, error) {
	return countKeys(ctx, a, c, store, nil, func(context.Context) {})
}

// countKeys is CountKeys, with a tally that may save the counting (nil for none), and with step, which is
// called after every recountStep rows.
func countKeys(ctx context.Context, a *app.App, c *wire.Checkpoint, store *state.Store, counted *tally, step func(context.Context)) (app.Counts, error) {
	all := app.NewCounts(a)
	recount, err := all.Decode(c, a.Set)
	if err != nil {
		return app.Counts{}, kafka.OperatorErrorf("%w; run the build that wrote it", err)
	}
	all.LoadSenders(a, c.Senders)
	all.LoadTenants(a, c.Tenants)
	for _, h := range all.Hits {
		// A namespace may have rows before it has a stream time.
		if _, rows := c.Latest(h.NamespaceID); rows && (!c.Counted || c.Sequence == 0) {
			recount[h.NamespaceID] = true
		}
	}
	if len(recount) == 0 || counted.into(&all, recount, c) {
		return all, nil
	}
	if err := countAgain(ctx, &all, recount, c, store, step); err != nil {
		return app.Counts{}, err
	}
	return all, nil
}

// A checkpoint with Sequence 0 is the first checkpoint of a generation of partitions, which has no
// counts of rows (wire.FirstOf).

// countAgain counts the rows of the namespaces in recount.
func countAgain(ctx context.Context, all *app.Counts, recount map[uint8]bool, c *wire.Checkpoint, store *state.Store, step func(context.Context)) error {
	for i := range all.Counters {
		if one := &all.Counters[i]; recount[one.NamespaceID] && one.CountsRows() {
			one.KeyCounter = dedup.NewKeyCounter(one.Window)
		}
	}
	return eachRow(ctx, store, step, func(row *dedup.Row) error {
		one := all.Of(row.NamespaceID, row.Status)
		if one == nil || row.Earlier || !recount[row.NamespaceID] || !c.Window(row.NamespaceID, one.Window).Retains(row.First, c.StreamTimes.Of(row.NamespaceID)) {
			return nil
		}
		one.Add(row.First)
		waiting, err := waitingIn(row)
		for range waiting {
			all.Of(row.NamespaceID, app.StatusWaiting).Add(row.First)
		}
		return err
	})
}

// eachRow calls f with each row of a store, and step after every recountStep rows.
func eachRow(ctx context.Context, store *state.Store, step func(context.Context), f func(*dedup.Row) error) error {
	rows := 0
	for row, err := range store.Rows() {
		if err != nil {
			return err
		}
		if rows++; rows%recountStep == 0 {
			step(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if err := f(&row); err != nil {
			return err
		}
	}
	return nil
}
