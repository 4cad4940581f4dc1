package app

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/routesets"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// ShadowState compares a shadow with the key rule in force, over all tasks. Its JSON names are an interface:
// programs read them.
type ShadowState struct {
	Route     string `json:"route"`
	Namespace string `json:"namespace"` // namespace of the shadow
	// Share is the part of the keys that the shadow examines, 0 to 1. The counts are counts of the events with
	// these keys.
	Share float64 `json:"share"`
	// Events are the numbers of events that the shadow has examined, by fate; see dedup.ShadowFate.
	Events map[string]uint64 `json:"events"`
	// Samples are the newest events whose fate differs under the shadow, and the newest events without a new
	// key.
	Samples []ShadowEvent `json:"samples"`
	// Promotable reports whether a promotion is possible, as far as that can be told outside of the tasks. If it
	// is not, WaitMS is how far stream time still has to move, in ms, and Reason says what else is missing.
	Promotable bool   `json:"promotable"`
	WaitMS     int64  `json:"wait_ms,omitempty"`
	Reason     string `json:"reason,omitempty"`

	since  int64 // the latest event time that the shadow may have missed, in ms
	window dedup.Window
}

// ShadowEvent is a sample of a shadow. Event and First have the form topic/partition/offset. First is the
// emitted event of which Event would be a duplicate; "" for none.
type ShadowEvent struct {
	Fate   string `json:"fate"`
	Event  string `json:"event"`
	First  string `json:"first,omitempty"`
	TimeMS int64  `json:"time_ms"` // event time
}

// Shadows returns the states of the shadows in force, from the newest checkpoints of all tasks.
func (rt *App) Shadows(tasks []TaskCheckpoint) []ShadowState {
	all := []ShadowState{}
	for _, r := range rt.Routes {
		if r.Shadow == nil {
			continue
		}
		s := ShadowState{
			Route: r.Name, Namespace: r.Shadow.Namespace, Share: r.Route.Shadow.Sample, Events: map[string]uint64{}, Samples: []ShadowEvent{},
			since: dedup.NoStreamTime, window: r.Shadow.Span,
		}
		for fate := range dedup.ShadowFate(dedup.ShadowFates) {
			s.Events[fate.String()] = 0
		}
		for i := range tasks {
			if tasks[i].Task.Topic == rt.Topology.Repartition {
				s.add(rt, r, &tasks[i].Checkpoint)
			}
		}
		slices.SortStableFunc(s.Samples, func(a, b ShadowEvent) int {
			return cmp.Or(cmp.Compare(a.Fate, b.Fate), cmp.Compare(b.TimeMS, a.TimeMS))
		})
		s.decide(rt, r, tasks)
		all = append(all, s)
	}
	return all
}

// add adds the counts in the checkpoint of a task.
func (s *ShadowState) add(rt *App, r *Route, c *wire.Checkpoint) {
	counts := c.ShadowOf(r.Shadow.NamespaceID)
	if counts == nil { // the task has not changed over to the set with the shadow yet
		if latest, ok := c.Latest(r.NamespaceID); ok {
			s.since = max(s.since, latest)
		}
		return
	}
	s.since = max(s.since, counts.Begin)
	s.Add(rt, counts)
}

// Add adds counts of the shadow to the state.
func (s *ShadowState) Add(rt *App, counts *wire.ShadowCounts) {
	for fate, n := range counts.Fates {
		s.Events[dedup.ShadowFate(fate).String()] += n
	}
	for i, samples := range counts.Samples {
		for _, one := range samples {
			sample := ShadowEvent{Fate: wire.SampledFates[i].String(), Event: string(rt.PositionText(one.At)), TimeMS: one.Time}
			if wire.SampledFates[i] == dedup.ShadowWouldDrop {
				sample.First = string(rt.PositionText(one.First))
			}
			s.Samples = append(s.Samples, sample)
		}
	}
}

// decide decides whether the shadow can be promoted. An event that the new rule emits may be a window and the
// grace behind stream time, and the event of which it is a duplicate may be one more window older. So the shadow
// must have examined all events of 2 windows and the grace.
func (s *ShadowState) decide(rt *App, r *Route, tasks []TaskCheckpoint) {
	rule := r.Route.Shadow
	if refused := refusePromotion(r); refused != "" {
		s.Reason = refused
		return
	}
	if s.since != dedup.NoStreamTime {
		for i := range tasks {
			if c := &tasks[i].Checkpoint; tasks[i].Task.Topic == rt.Topology.Repartition && c.StreamTimes.Has[r.Shadow.NamespaceID] {
				s.WaitMS = max(s.WaitMS, s.since+s.window.Retention()-c.StreamTimes.At[r.Shadow.NamespaceID])
			}
		}
		if !slices.ContainsFunc(tasks, func(t TaskCheckpoint) bool { return t.Checkpoint.StreamTimes.Has[r.Shadow.NamespaceID] }) {
			s.WaitMS = s.window.Retention()
		}
	}
	if s.WaitMS > 0 {
		s.Reason = fmt.Sprintf("it has not seen all events of 2 windows and the grace, %s", routesets.Short(2*rule.Window+rule.Grace))
		return
	}
	s.Promotable = true
}

// refusePromotion returns the reason why the shadow of a route could never be promoted as it is; "" if there is
// none.
func refusePromotion(r *Route) string {
	switch {
	case !r.Route.Shadow.IsFull():
		return "it looks at a sample of the keys: apply it with sample: 100%"
	case r.Off:
		return "enabled: false forwards events that make no row: apply enabled: true first"
	case r.FailOpen:
		return "on_state_failure: fail_open forwards events that make no row: apply fail_closed first, and fail_open again afterwards"
	}
	return ""
}

// Text returns the state in one line, such as "would drop 112, would let through 9; promote in 3h12m".
func (s *ShadowState) Text() string {
	text := fmt.Sprintf("would drop %d, would let through %d", s.Events[dedup.ShadowWouldDrop.String()], s.Events[dedup.ShadowWouldEmit.String()])
	if n := s.Events[dedup.ShadowNoKey.String()]; n > 0 {
		text += fmt.Sprintf(", %d without the new key", n)
	}
	switch {
	case s.Promotable:
		return text + "; can be promoted"
	case s.WaitMS > 0:
		return text + "; promote in " + routesets.Short((time.Duration(s.WaitMS) * time.Millisecond).Round(time.Second)) + " of event time"
	}
	return text + "; not to be promoted: " + s.Reason
}

// refuseShadows returns an operator error if an app at level 1 has shadows: older builds, which may run such an
// app, cannot read the records of shadows.
func refuseShadows(m *Manifest, routes *rules.Routes) error {
	for _, r := range routes.Routes {
		if r.Shadow != nil && m.level() < 2 {
			return kafka.OperatorErrorf("route %s: app is at level %d, and shadow needs level 2: leave it out, run oncebus finalize once all processes have this build, and apply it then", r.Name, m.level())
		}
	}
	return nil
}
