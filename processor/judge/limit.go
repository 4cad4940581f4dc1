package judge

import (
	"fmt"

	"oncebus/dedup"
	"oncebus/processor/app"
)

// overLimit reports whether an event has a new key and the namespace already has live_keys keys.
func (t *State) overLimit(route *app.Route, c *candidate) bool {
	return c.replaced == nil && route.Limits.LiveKeys > 0 && t.OpenCounts.LiveKeys(route.NamespaceID) >= uint64(route.Limits.LiveKeys)
}

// applyLimitPolicy applies the policy on_limit to an event whose new key would exceed live_keys. The event's
// time advances stream time all the same, which frees keys of ended windows.
func (t *Judge) applyLimitPolicy(j *Judging, ev *event) {
	ev.verdict = dedup.Limited
	ev.reason = fmt.Sprintf("new key beyond the limit: %d keys of namespace %s are live in %v, live_keys is %d",
		t.OpenCounts.LiveKeys(ev.route.NamespaceID), ev.route.Namespace, t.ID, ev.route.Limits.LiveKeys)
	j.byPolicy(ev, ev.route.Limits.OnLimit)
}
