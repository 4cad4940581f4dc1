package judge

import (
	"slices"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// joinSources gives each namespace the sources that its routes have (the partitions of their inputs), at the
// beginning of the open transaction. A namespace without a route in force keeps its sources, because its last
// records may still come. A namespace has no sources if its task belongs to a prepartitioned topic, or if all
// its events come by HTTP. Every event then moves the namespace's stream time directly.
func (t *State) joinSources() {
	t.owned, t.counted = [256]bool{}, [256]bool{}
	if len(t.App.Sources) > 0 && t.ID.Topic == t.App.Topology.Repartition {
		t.addSources()
	}
	t.placed = [256]int16{}
	for at := range t.Open.Sources {
		t.placed[t.Open.Sources[at].NamespaceID] = int16(at) + 1
	}
}

// addSources adds to the open checkpoint the sources that it lacks.
func (t *State) addSources() {
	for id, numbers := range t.App.Sources {
		at, has := t.Open.SourcesOf(id)
		if has && t.Open.Sources[at].Has(numbers) {
			continue
		}
		t.Open.Sources = slices.Clone(t.Open.Sources)
		if has {
			t.Open.Sources[at] = t.Open.Sources[at].WithTopics(numbers)
			continue
		}
		s := wire.NewSources(id, numbers)
		s.Highest = t.streamTime(id)
		t.Open.Sources = slices.Insert(t.Open.Sources, at, s)
	}
}

// sourcesOf returns the index of a namespace's sources in the open checkpoint; false if the namespace
// has none.
func (t *State) sourcesOf(namespaceID uint8) (int, bool) {
	at := int(t.placed[namespaceID]) - 1
	return at, at >= 0
}

// ownSources returns the sources at index at, as a copy that the open transaction may change.
func (t *State) ownSources(at int) *wire.Sources {
	if id := t.Open.Sources[at].NamespaceID; !t.owned[id] {
		if t.owned == [256]bool{} {
			t.Open.Sources = slices.Clone(t.Open.Sources)
		}
		t.Open.Sources[at] = t.Open.Sources[at].Clone()
		t.owned[id] = true
	}
	return &t.Open.Sources[at]
}

// front returns the highest event time in the event's own source among the events that this task has judged;
// dedup.NoStreamTime if there is none. The ingress counts as the source of an event that came by HTTP.
func (t *State) front(ev *event) int64 {
	at, follows := t.sourcesOf(ev.route.NamespaceID)
	if !follows {
		return dedup.NoStreamTime
	}
	s := &t.Open.Sources[at]
	if i, ok := s.Of(ev.from.Topic, ev.from.Partition); ok {
		return s.Front[i]
	}
	if ev.isFromIngress() {
		return s.Ingress
	}
	return dedup.NoStreamTime
}

// isFromIngress reports whether an event of the repartition topic came by HTTP.
func (ev *event) isFromIngress() bool { return ev.envelope != nil && ev.envelope.FromIngress }

// advance updates the sources and the stream time of a route's namespace after an event that was admitted with
// this time. The event may raise the time of its source. If that source alone kept stream time back, stream time
// can now move.
func (t *Judge) advance(e *Emitter, ev *event, time int64) error {
	id := ev.route.NamespaceID
	if until, retired := t.App.RetiredUntil[id]; retired && ev.brokerTime >= until {
		t.returned[id] = until
	}
	at, follows := t.sourcesOf(id)
	if !follows {
		return t.moveStreamTime(e, ev.route, max(time, t.streamTime(id)))
	}
	s := &t.Open.Sources[at]
	i, known := s.Of(ev.from.Topic, ev.from.Partition)
	if !known && s.HasTopic(ev.from.Topic) {
		s = t.ownSources(at)
		s.Grow(ev.from.Topic, int(ev.from.Partition)+1, dedup.NoStreamTime)
		i, known = s.Of(ev.from.Topic, ev.from.Partition)
	}
	keptBack := !known // nothing is known of an unknown source, so assume that it kept stream time back
	if known && time > s.Front[i] {
		s = t.ownSources(at)
		keptBack = max(s.Front[i], s.Bound[i]) <= t.streamTime(id)
		s.Front[i] = time
	}
	if ev.isFromIngress() && time > s.Ingress {
		s = t.ownSources(at)
		s.Ingress = time
	}
	if time > s.Highest {
		s = t.ownSources(at)
		s.Highest = time
	}
	if !keptBack && t.counted[id] {
		return nil
	}
	return t.follow(e, ev.route, at, ev.brokerTime)
}

// follow sets the stream time of a route's namespace to the least of its sources' times, at broker time now. It
// never sets stream time back, because late events stay late, and evicted rows stay evicted.
func (t *Judge) follow(e *Emitter, route *app.Route, at int, now int64) error {
	s := &t.Open.Sources[at]
	next := s.Least(now)
	t.counted[s.NamespaceID] = s.AreCounted(now)
	if next <= t.streamTime(route.NamespaceID) {
		return nil
	}
	t.ownSources(at).DropSamples(next)
	return t.moveStreamTime(e, route, next)
}

// readInputs applies what a progress record says about the inputs. stored is the broker time at which
// the record was stored, ms.
func (t *Judge) readInputs(e *Emitter, inputs []wire.InputProgress, stored int64) error {
	var done [256]bool
	for _, route := range t.App.Routes {
		id := route.NamespaceID
		if done[id] || route.IsShadow() {
			continue
		}
		done[id] = true
		at, follows := t.sourcesOf(id)
		if !follows || !slices.ContainsFunc(inputs, func(in wire.InputProgress) bool { return t.Open.Sources[at].HasTopic(in.Topic) }) {
			continue
		}
		s := t.ownSources(at)
		latest := stored + t.skewOf(id)
		for i := range inputs {
			readInput(s, &inputs[i], stored, latest)
		}
		s.TakeSample(stored, t.App.GoesOn[id])
		if err := t.follow(e, route, at, stored); err != nil {
			return err
		}
	}
	return nil
}

// endRetired makes the rows of namespaces without a route in force expire, once broker time has advanced by
// their retention. No router reads for such a namespace, so nothing else moves its stream time. Stream time
// moves by a little more than the retention, since a key may count as live for a 64th of the retention too long.
// It never moves beyond broker time. So if a route comes back, none of its live events is late.
func (t *Judge) endRetired(e *Emitter, stored int64) error {
	if len(t.App.RetiredUntil) == 0 {
		return nil
	}
	for _, route := range t.App.Kept() {
		id := route.NamespaceID
		until, retired := t.App.RetiredUntil[id]
		// If the task has judged an event of the namespace that was stored after the retention, the route has
		// come back: this process only has not read the new route set yet.
		if !retired || stored < until || t.returned[id] == until {
			continue
		}
		latest, has := t.Open.Latest(id)
		if at, follows := t.sourcesOf(id); follows {
			latest = t.Open.Sources[at].Highest
		} else if t.OpenCounts.LiveKeys(id) == 0 {
			continue // for example a shadow without keys, whose latest time is its stream time
		}
		retention := route.Span.Retention()
		if next := min(latest+retention+retention/32+1, stored); has && next > t.streamTime(id) {
			if err := t.moveStreamTime(e, route, next); err != nil {
				return err
			}
		}
	}
	return nil
}

// skewOf returns the longest time, in ms, by which the routes of a namespace let an event be ahead of
// broker time.
func (t *Judge) skewOf(namespaceID uint8) (longest int64) {
	for _, route := range t.App.Routes {
		if route.NamespaceID == namespaceID {
			longest = max(longest, route.Span.Skew)
		}
	}
	return longest
}

// readInput applies what a progress record says about one input. The broker stored the record at broker time
// stored. No event after latest can be admitted, so a time after latest counts as latest.
func readInput(s *wire.Sources, in *wire.InputProgress, stored, latest int64) {
	if !s.HasTopic(in.Topic) {
		return
	}
	s.Grow(in.Topic, in.Partitions, min(in.CountedAt, stored))
	for _, r := range in.Read {
		i, ok := s.Of(in.Topic, r.Partition)
		if !ok {
			continue
		}
		for _, f := range r.Fronts {
			if f.NamespaceID == s.NamespaceID {
				s.Bound[i] = max(s.Bound[i], min(f.At, latest))
				s.Highest = max(s.Highest, s.Bound[i])
			}
		}
		if r.To != dedup.NoStreamTime {
			s.ReadTo(i, min(r.To, stored))
		}
	}
}
