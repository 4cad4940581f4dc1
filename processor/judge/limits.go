package judge

import (
	"fmt"

	"oncebus/dedup"
	"oncebus/processor/app"
)

// waitingMax is how many requests of a namespace may wait in one partition,
// those of dispatched events included. A duplicate beyond it gets in_progress at once.
const waitingMax = 64 << 10

// overLimit reports whether a new key is one too many.
func (t *Judge) overLimit(route *app.Route) bool {
	return route.Limits.LiveKeys > 0 && t.OpenCounts.LiveKeys(route.NamespaceID) >= uint64(route.Limits.LiveKeys)
}

// applyLimitPolicy lets an event with a key too many go, unchecked. Its time counts
// all the same: time is what makes room for new keys.
func (t *Judge) applyLimitPolicy(j *Judging, ev *event) {
	ev.verdict = dedup.Limited
	ev.reason = fmt.Sprintf("new key beyond the limit: %d keys of namespace %s are live in %v, live_keys is %d",
		t.OpenCounts.LiveKeys(ev.route.NamespaceID), ev.route.Namespace, t.ID, ev.route.Limits.LiveKeys)
	j.byPolicy(ev, ev.route.Limits.OnLimit)
}

// mayWait reports whether one more request of a route may wait.
func (t *Judge) mayWait(route *app.Route) bool {
	return t.OpenCounts.Waiting(route.NamespaceID) < waitingMax
}
