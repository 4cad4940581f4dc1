package judge

import (
	"slices"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// window returns the window by which the task judges the events of a route. After a change of the window it
// differs from the route's own window until the rows of the new window are complete.
func (t *State) window(route *app.Route) dedup.Window {
	if len(t.Open.Known) == 0 {
		return route.Span
	}
	return t.Open.Window(route.NamespaceID, route.Span)
}

// dropWhole drops from the open checkpoint the changes of windows that no longer have an effect,
// because the rows of the window are complete by now.
func (t *State) dropWhole() {
	if slices.ContainsFunc(t.Open.Known, t.isWhole) {
		t.Open.Known = slices.DeleteFunc(slices.Clone(t.Open.Known), t.isWhole)
		if len(t.Open.Known) == 0 {
			t.Open.Known = nil
		}
	}
}

func (t *State) isWhole(k wire.KnownSince) bool {
	w, ok := t.App.WindowAt(&t.Open, k.NamespaceID)
	return ok && w.IsWhole(t.streamTime(k.NamespaceID))
}
