package page

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor"
)

// compute makes the snapshot for the reading now. Rates are computed since the earlier reading before, and
// commit times since the earlier reading minute. At the start of the process, both may be the reading now
// itself.
func (p *Page) compute(now, before, minute *reading) *Snapshot {
	var states []processor.State
	if p.source.States != nil {
		states = p.source.States()
	}
	s := &Snapshot{
		Time: now.at, Role: p.source.Role, Version: p.source.Version, App: p.source.App, Instance: p.source.Instance,
		Started: time.UnixMilli(int64(now.started * 1000)), Ready: true, BrokerUp: now.brokerUp,
		Lag: now.lag(), Tasks: tasks(states, now, before), Commits: []Commit{}, Senders: senders(now, before), Shadows: shadows(now), Log: p.source.Log.Entries(),
	}
	if now.started == 0 {
		s.Started = p.began
	}
	s.behind(states)
	if err := p.source.Ready(); err != nil {
		s.Ready, s.Reason = false, err.Error()
	}
	seconds := now.at.Sub(before.at).Seconds()
	var all, earlier counts
	for route, c := range now.events {
		all.add(c)
		earlier.add(before.events[route])
	}
	s.Events = eventsOf(&all, &earlier, seconds)
	s.Routes = make([]Route, len(p.source.Routes))
	for i, r := range p.source.Routes {
		s.Routes[i] = describeRoute(r)
		c := now.events[r.Name]
		if c == nil {
			c = new(counts)
		}
		s.Routes[i].Events = eventsOf(c, before.events[r.Name], seconds)
	}
	for _, stage := range slices.Sorted(maps.Keys(now.commits)) {
		all := now.commits[stage]
		recent := all.since(minute.commits[stage])
		if recent.count == 0 {
			recent = all
		}
		s.Commits = append(s.Commits, Commit{Stage: stage, Total: float64(all.count),
			PerSecond: perSecond(float64(all.count), float64(before.commits[stage].count), seconds), P50: recent.quantile(0.5), P99: recent.quantile(0.99)})
	}
	if now.free != nil {
		s.Disk = &Disk{StateBytes: now.state, FreeBytes: *now.free, Paused: now.paused}
	}
	if now.hasHTTP {
		s.HTTP = httpOf(now, before, minute)
	}
	s.Process = Process{CPU: perSecond(now.cpu, before.cpu, seconds), ResidentBytes: now.resident, Goroutines: now.goroutines}
	return s
}

// perSecond returns the rate of a counter; 0 if no time has passed.
func perSecond(now, before, seconds float64) float64 {
	if seconds <= 0 || now < before {
		return 0
	}
	return (now - before) / seconds
}

// eventsOf summarises counts. earlier has the counts of seconds seconds ago; nil if there are no earlier
// counts.
func eventsOf(now, earlier *counts, seconds float64) Events {
	recent := now.since(earlier)
	e := Events{
		Total: now.total(), PerSecond: perSecond(recent.total(), 0, seconds), Duplicates: now.duplicates(),
		DuplicateShare: ratio(recent.duplicates(), recent.total()), Verdicts: []Verdict{},
	}
	if recent.total() <= 0 {
		e.DuplicateShare = ratio(now.duplicates(), now.total())
	}
	for i, v := range dedup.Verdicts {
		if now[i] > 0 {
			e.Verdicts = append(e.Verdicts, Verdict{Verdict: v.String(), Total: now[i], PerSecond: perSecond(recent[i], 0, seconds)})
		}
	}
	return e
}

func describeRoute(r *rules.Route) Route {
	keys := make([]string, len(r.Keys))
	for i := range r.Keys {
		keys[i] = r.Keys[i].String()
	}
	mode := "plain"
	if r.Mode == rules.ClaimMode {
		mode = "claim"
	}
	return Route{
		Name: r.Name, Namespace: r.Namespace, Mode: mode, Off: r.Off, Topics: r.Topics, Output: r.Output, DeadLetter: r.DeadLetter,
		Window: r.Window.String(), Key: strings.Join(keys, "; else "),
	}
}

// tasks lists the tasks of all processes that the page shows.
func tasks(states []processor.State, now, before *reading) []Task {
	all := []Task{}
	seconds := now.at.Sub(before.at).Seconds()
	for i := range states {
		for j := range states[i].Tasks {
			all = append(all, taskOf(&states[i], &states[i].Tasks[j], len(states) > 1, now, before, seconds))
		}
	}
	slices.SortFunc(all, compareTasks)
	return all
}

// taskOf describes a task. If several processes share the registry, the task's series have the label process.
func taskOf(s *processor.State, t *processor.TaskState, shared bool, now, before *reading, seconds float64) Task {
	topic, partition := splitTask(t.Task)
	k := taskKey{topic: topic, partition: partition}
	if shared {
		k.process = s.Instance
	}
	m, known := now.tasks[k]
	if !known {
		m.lagRecords, m.lagSeconds = -1, -1
	}
	task := Task{
		Task: t.Task, Process: s.Instance, Worker: t.Worker, State: t.State, Reason: t.Reason, Since: t.Since,
		LagRecords: m.lagRecords, LagSeconds: m.lagSeconds,
	}
	for _, c := range t.Keys {
		task.Keys += c.Total
	}
	if t.Store != nil {
		task.DiskBytes = t.Store.DiskBytes
	} else if t.State == stateRestoring {
		task.Restore = &Restore{RemainingRecords: m.remaining, Stalled: m.stalled}
		if earlier, ok := before.tasks[k]; ok && earlier.remaining > m.remaining && seconds > 0 {
			task.Restore.PerSecond = (earlier.remaining - m.remaining) / seconds
			eta := m.remaining / task.Restore.PerSecond
			task.Restore.ETASeconds = &eta
		}
	}
	return task
}

// stateRestoring is the state of a task that restores, spelled as in /state.
const stateRestoring = "restoring"

// sendersMax is how many senders a snapshot names. otherSenders is the label of all other senders of a route
// together; it is listed last, even if its number is large.
const (
	sendersMax   = 10
	otherSenders = "other"
)

func senders(now, before *reading) []Sender {
	if !now.hasSenders {
		return nil
	}
	seconds := now.at.Sub(before.at).Seconds()
	named, others := []Sender{}, []Sender{}
	for k, n := range now.senders {
		s := Sender{Route: k[0], Sender: k[1], Duplicates: n, PerSecond: perSecond(n, before.senders[k], seconds)}
		switch {
		case s.Sender != otherSenders:
			named = append(named, s)
		case n > 0:
			others = append(others, s)
		}
	}
	most := func(a, b Sender) int {
		return cmp.Or(cmp.Compare(b.Duplicates, a.Duplicates), strings.Compare(a.Route, b.Route), strings.Compare(a.Sender, b.Sender))
	}
	slices.SortFunc(named, most)
	slices.SortFunc(others, most)
	return append(named[:min(len(named), sendersMax)], others[:min(len(others), sendersMax)]...)
}

func httpOf(now, before, minute *reading) *HTTP {
	seconds := now.at.Sub(before.at).Seconds()
	recent := now.responses.since(minute.responses)
	if recent.count == 0 {
		recent = now.responses
	}
	h := &HTTP{
		Total: sum(now.codes), PerSecond: perSecond(sum(now.codes), sum(before.codes), seconds), InFlight: now.inFlight,
		P50: recent.quantile(0.5), P99: recent.quantile(0.99), Codes: []Code{},
	}
	for _, code := range slices.Sorted(maps.Keys(now.codes)) {
		h.Codes = append(h.Codes, Code{Code: code, Total: now.codes[code], PerSecond: perSecond(now.codes[code], before.codes[code], seconds)})
	}
	return h
}

// shadows returns the shadows (key rules that are tried out), sorted by route.
func shadows(now *reading) (all []Shadow) {
	for k := range now.shadows {
		if k[1] != dedup.ShadowBothEmit.String() {
			continue
		}
		of := func(fate dedup.ShadowFate) float64 { return now.shadows[[2]string{k[0], fate.String()}] }
		all = append(all, Shadow{
			Route: k[0], BothEmit: of(dedup.ShadowBothEmit), BothDrop: of(dedup.ShadowBothDrop),
			WouldDrop: of(dedup.ShadowWouldDrop), WouldEmit: of(dedup.ShadowWouldEmit), NoKey: of(dedup.ShadowNoKey),
		})
	}
	slices.SortFunc(all, func(a, b Shadow) int { return strings.Compare(a.Route, b.Route) })
	return all
}
