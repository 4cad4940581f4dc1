package app

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/routesets"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// A WindowPlan says from when on the new window of a namespace is in force for all events.
type WindowPlan struct {
	Namespace string       `json:"namespace"`
	Tasks     []TaskWindow `json:"tasks,omitempty"` // tasks with events of the namespace; the others have no rows that could be missing

	before, after dedup.Window
}

// A TaskWindow is the WindowPlan for one task, as of its newest checkpoint. Both times are event times in ms.
// The new window is in force at once if FullFrom is not after StreamTime.
type TaskWindow struct {
	Task       string `json:"task"` // topic/partition
	StreamTime int64  `json:"stream_time"`
	FullFrom   int64  `json:"full_from"`
}

// A TaskCheckpoint is a task with its newest checkpoint.
type TaskCheckpoint struct {
	Task       TaskID
	Checkpoint wire.Checkpoint
}

// PlanWindows returns how new routes would change the windows, as of the newest checkpoints of the tasks.
func (rt *App) PlanWindows(tasks []TaskCheckpoint, next *rules.Routes) (plans []WindowPlan) {
	planned := map[uint8]bool{}
	for _, r := range next.Routes {
		i := slices.IndexFunc(rt.Routes, func(old *Route) bool { return old.Namespace == r.Namespace })
		if i < 0 || planned[rt.Routes[i].NamespaceID] || rt.Routes[i].Span.SameRetention(r.Span()) {
			continue
		}
		old := rt.Routes[i]
		planned[old.NamespaceID] = true
		plan := WindowPlan{Namespace: r.Namespace, before: old.Span, after: r.Span()}
		for n := range tasks {
			c := &tasks[n].Checkpoint
			if w, ok := rt.WindowAt(c, old.NamespaceID); ok && c.StreamTimes.Has[old.NamespaceID] {
				now := c.StreamTimes.At[old.NamespaceID]
				plan.Tasks = append(plan.Tasks, TaskWindow{Task: tasks[n].Task.String(), StreamTime: now, FullFrom: w.ChangeTo(r.Span(), now).FullFrom()})
			}
		}
		plans = append(plans, plan)
	}
	return plans
}

// Wait returns how far stream time has to move until the new window is fully in force in every task; 0 if it is
// at once.
func (p *WindowPlan) Wait() (wait time.Duration) {
	for _, t := range p.Tasks {
		wait = max(wait, time.Duration(t.FullFrom-t.StreamTime)*time.Millisecond)
	}
	return wait
}

// String returns the plan in one line, such as "orders: window 24h -> 168h after 119h50m of event time, for
// events from 2026-12-01T08:30:00Z on".
func (p *WindowPlan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: window %s", p.Namespace, hours(p.before.Size))
	if p.after.Size != p.before.Size {
		fmt.Fprintf(&b, " -> %s", hours(p.after.Size))
	}
	if p.after.Grace != p.before.Grace {
		fmt.Fprintf(&b, ", grace %s -> %s", hours(p.before.Grace), hours(p.after.Grace))
	}
	wait := p.Wait()
	if wait == 0 {
		return b.String() + " at once"
	}
	fmt.Fprintf(&b, " after %s of event time, for events from ", hours(wait.Milliseconds()))
	byTime := func(a, b TaskWindow) int { return cmp.Compare(a.FullFrom, b.FullFrom) }
	first, last := slices.MinFunc(p.Tasks, byTime), slices.MaxFunc(p.Tasks, byTime)
	fmt.Fprintf(&b, "%s on", instant(first.FullFrom))
	if first.FullFrom != last.FullFrom {
		fmt.Fprintf(&b, " (%s) to %s on (%s)", first.Task, instant(last.FullFrom), last.Task)
	}
	return b.String()
}

// hours returns a duration in ms as text, without zero units at its end.
func hours(ms int64) string { return routesets.Short(time.Duration(ms) * time.Millisecond) }

func instant(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
