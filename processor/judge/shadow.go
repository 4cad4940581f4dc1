package judge

import (
	"bytes"
	"slices"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// A shadow tests a new key rule without using its verdicts. Two copies of an event may have the same key by the
// new rule but different keys, and so different partitions, by the rule in force; no task can look up both keys.
// So the task that judges an event sends its verdict to the task of the new key. It does so in the same
// transaction and after the verdict: only then it is known whether the event was emitted, and only an emitted
// event may get a row of the shadow. The router cannot send the event itself to the task of the new key, because
// a copy that the rule in force drops would then get a row, too.
// in force drops would then make a row.

// Shadows has a worker's key derivers of the shadows in force, by route index.
type Shadows struct {
	derivers []*rules.Deriver // nil for a route without a shadow
	// The decoded input and output of the event that is being processed.
	input    rules.Input
	derived  rules.Derived
	envelope wire.Envelope
}

// NewShadows returns the shadows of one worker; newDeriver makes their derivers.
func NewShadows(rt *app.App, newDeriver func(*rules.Shadow) *rules.Deriver) *Shadows {
	s := &Shadows{derivers: make([]*rules.Deriver, len(rt.Routes))}
	for i, r := range rt.Routes {
		if r.Shadow != nil {
			s.derivers[i] = newDeriver(r.Route.Shadow)
		}
	}
	return s
}

// release drops the references to the last record.
func (s *Shadows) release() {
	s.input, s.envelope = rules.Input{}, wire.Envelope{}
	for _, d := range s.derivers {
		if d != nil {
			d.Release()
		}
	}
}

// setOriginal fills in the input of a key derivation from a record of the repartition topic, so that
// the deriver sees the record as its producer wrote it.
func (t *Judge) setOriginal(in *rules.Input, ev *event) {
	wire.SetInput(in, ev.rec)
	in.Topic, in.Key, in.Timestamp = t.App.TopicName(ev.from.Topic), ev.recordKey, ev.timestamp
	if !slices.Contains(ev.route.Topics, in.Topic) { // the ingress wrote it
		in.Topic = ev.route.Topics[0]
		if ev.route.HTTP != nil {
			in.Topic = ev.route.HTTP.Topic
		}
	}
}

// deriveShadow derives the event's key by the new rule. The judge calls it before it emits anything of
// the event, because the event may have to wait for its schema.
func (t *Judge) deriveShadow(j *Judging, ev *event) error {
	if ev.route.Shadow == nil || j.Shadows == nil {
		return nil
	}
	t.setOriginal(&j.Shadows.input, ev)
	derived := &j.Shadows.derived
	j.Shadows.derivers[ev.route.Index].DeriveTo(derived, &j.Shadows.input)
	if derived.Finding == rules.SchemaPending {
		return pendingOf(ev.rec, derived)
	}
	return nil
}

// shadow sends the verdict on an event to the task of the event's key by the new rule, which
// deriveShadow has derived.
func (t *Judge) shadow(j *Judging, ev *event, c *candidate, emitted bool) {
	if ev.route.Shadow == nil || j.Shadows == nil || !t.Repartitioned {
		return
	}
	rule := ev.route.Route.Shadow
	derived := &j.Shadows.derived
	if derived.Finding != rules.Keyed {
		t.countShadow(ev.route.Shadow, dedup.ShadowNoKey, wire.ShadowSample{At: ev.from, Time: c.event.Time})
		return
	}
	if !rule.Samples(&derived.Digest) {
		return
	}
	env := &j.Shadows.envelope
	*env = wire.Envelope{Route: ev.route.Shadow.WireName, Digest: derived.Digest, EventTime: c.event.Time, Timestamp: ev.timestamp, From: ev.from}
	env.Fingerprint = derived.Fingerprint
	env.Shadow = wire.ShadowSent
	if emitted {
		env.Shadow |= wire.ShadowEmitted
	}
	if c.clamped {
		env.Shadow |= wire.ShadowClamped
	}
	out := j.NewRecord()
	out.Topic, out.Partition = t.App.Topology.Repartition, t.App.Hasher.Partition(&derived.Routing)
	out.Key = env.Append(j.bytes.take(env.Size())[:0])
	j.produce(out, dedup.Position{})
}

// judgeShadow compares the verdict on an event with the verdict of a shadow, in the task of the
// shadow's key. It emits nothing.
func (t *Judge) judgeShadow(j *Judging, route *app.Route, env *wire.Envelope) error {
	if !bytes.Equal(route.WireName, env.Route) {
		return nil // the verdict is for a shadow before the promoted one
	}
	id := route.NamespaceID
	streamTime, window := t.streamTime(id), t.window(route)
	ev := dedup.Event{Digest: env.Digest, Time: env.EventTime, At: env.From, NamespaceID: id, Fingerprint: env.Fingerprint}
	prior, found, err := t.Store.Get(env.Digest)
	if err != nil {
		return err
	}
	fate, row, store := dedup.DecideShadow(ev, env.Shadow&wire.ShadowEmitted != 0, prior, found, window, streamTime)
	if store {
		var replaced *dedup.Row
		if found && window.Decides(&prior, streamTime) {
			replaced = &prior
		}
		t.put(j.Emitter, &change{row: &row, replaced: replaced})
	}
	if env.Shadow&wire.ShadowClamped == 0 {
		next := dedup.NextStreamTime(streamTime, env.EventTime, env.EventTime)
		t.Open.StreamTimes.At[id], t.Open.StreamTimes.Has[id] = next, true
		j.countEnded(route, t.OpenCounts.Advance(id, next))
	}
	if store && row.First > t.streamTime(id) {
		t.Open.SetAhead(id, row.First)
	}
	sample := wire.ShadowSample{At: env.From, Time: env.EventTime}
	if fate == dedup.ShadowWouldDrop {
		sample.First = prior.At
	}
	t.countShadow(route, fate, sample)
	return nil
}

// countShadow counts an event of a shadow in the open transaction. It ignores a shadow that is not in
// force.
func (t *State) countShadow(route *app.Route, fate dedup.ShadowFate, sample wire.ShadowSample) {
	if t.Open.ShadowOf(route.NamespaceID) == nil {
		return
	}
	if len(t.Committed.Shadows) > 0 && &t.Open.Shadows[0] == &t.Committed.Shadows[0] {
		t.Open.Shadows = slices.Clone(t.Open.Shadows)
	}
	t.Open.ShadowOf(route.NamespaceID).Count(fate, sample)
}
