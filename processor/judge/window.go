package judge

import (
	"slices"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// window returns the window by which the task judges the events of a route.
func (t *State) window(route *app.Route) dedup.Window {
	if len(t.Open.Known) == 0 {
		return route.Span
	}
	return t.Open.Window(route.NamespaceID, route.Span)
}

// adoptSet moves the open transaction to a newer route set; from is 0 for a task without a
// transaction, or of an app that was at level 1. Where the window of a namespace changes, it
// notes what is known of the rows. Nothing that is stored but not known decides an event:
// another copy of the store may not have it any more.
func (t *State) adoptSet(from, to int64) {
	t.Open.Known = t.App.KnownUnder(&t.Open, to)
	t.Open.Set = to
	if from > 0 {
		t.Log.Info("task judges by a newer route set", "set", to, "before", from)
	}
}

// dropWhole drops the namespaces whose change of the window has no effect any more.
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
