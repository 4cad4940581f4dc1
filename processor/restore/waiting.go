package restore

import (
	"context"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
	"oncebus/state"
)

// FindWaiting returns the claims in a store for whose outcome requests wait, as of a checkpoint. If known is
// given, it uses these claims. Otherwise it reads the rows of the store, but only if the counts say that
// requests wait. It leaves out evicted claims, because the store may still have older rows of such claims in
// which requests wait.
func FindWaiting(ctx context.Context, a *app.App, c *wire.Checkpoint, counts *app.Counts, store *state.Store, known *app.Waiting) (*app.Waiting, error) {
	if known == nil {
		known = app.NewWaiting(a)
		if err := readWaiting(ctx, a, counts, store, known); err != nil {
			return nil, err
		}
	}
	before := a.Horizons(c)
	known.Evict(&before)
	return known, nil
}

// readWaiting reads the waiting claims from the rows of a store, unless the counts say that there are none.
func readWaiting(ctx context.Context, a *app.App, counts *app.Counts, store *state.Store, found *app.Waiting) error {
	waiting := uint64(0)
	for _, route := range a.Routes {
		if route.Mode == rules.ClaimMode {
			waiting += counts.Waiting(route.NamespaceID)
		}
	}
	if waiting == 0 {
		return nil
	}
	return eachRow(ctx, store, func(context.Context) {}, found.Read)
}
