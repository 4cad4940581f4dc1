package restore

import (
	"context"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/state"
)

// FindWaiting returns the claims of a store with requests that wait. It reads the rows only
// if the counts say that there are some.
func FindWaiting(ctx context.Context, a *app.App, counts *app.Counts, store *state.Store) (*app.Waiting, error) {
	found := app.NewWaiting(a)
	waiting := uint64(0)
	for _, route := range a.Routes {
		if route.Mode == rules.ClaimMode {
			waiting += counts.Waiting(route.NamespaceID)
		}
	}
	if waiting == 0 {
		return found, nil
	}
	rows := 0
	for row, err := range store.Rows() {
		if err != nil {
			return nil, err
		}
		if rows++; rows%recountStep == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err := found.Read(&row); err != nil {
			return nil, err
		}
	}
	return found, nil
}
