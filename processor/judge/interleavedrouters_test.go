package judge_test

import (
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/wire"
)

const (
	// observeMargin is the margin of package progress: how far its estimate of broker time may be ahead of a broker's
	// clock. Each clock of an interleaving is off by at most clockError. Both are in ms.
	observeMargin, clockError = 1000, 450
)

// routerTransaction is a transaction of a router. Until the transaction has ended, the task reads neither its records
// nor any record after them.
type routerTransaction struct{ ended, aborted bool }

// routedRecord is a record of the repartition topic.
type routedRecord struct {
	*kgo.Record

	of *routerTransaction // nil for one of the ingress
}

// interleavedRouter is the router of a worker, with the state that its worker keeps.
type interleavedRouter struct {
	*judge.Router

	x        *interleaving
	emitter  *judge.Emitter
	marks    *app.Marks
	error    int64              // of its estimate of broker time
	open     *routerTransaction // nil for none
	position map[int]int64      // of its inputs, with the open transaction
	known    map[int]*reachedInput
	looking  *look                // nil for none
	fresh    []wire.InputProgress // observed and not written
}

// reachedInput is what package progress keeps of an input: the first observed end that the worker has not reached,
// and a broker time before the observation.
type reachedInput struct{ at, end int64 }

// newRouter begins the life of a worker without inputs.
func (x *interleaving) newRouter(n int) *interleavedRouter {
	rt := x.apps.routers[n]
	r := &interleavedRouter{
		Router: &judge.Router{App: rt, Keys: judge.NewKeys(x.logs.routes.NewDeriver(nil), x.apps.metrics)},
		x:      x, marks: app.NewMarks(rt, app.NewHolds()), error: x.rng.Int64N(2*clockError+1) - clockError,
		position: map[int]int64{}, known: map[int]*reachedInput{},
	}
	r.emitter = judge.NewEmitter(rt, r.send)
	return r
}

// send adds a record to the open transaction. The record is in the log at once, though no task reads it yet.
func (r *interleavedRouter) send(rec *kgo.Record) error {
	x := r.x
	x.append(&kgo.Record{
		Topic: rec.Topic, Partition: rec.Partition, Key: slices.Clone(rec.Key), Value: slices.Clone(rec.Value), Headers: slices.Clone(rec.Headers),
	}, r.open)
	return nil
}

// assign gives the router an input, from the offset that the previous owner has committed.
func (r *interleavedRouter) assign(input int) {
	r.x.owner[input] = r
	r.position[input] = r.x.read[input]
	r.marks.Assign(r.x.logs.inputs[input].TaskID, r.x.read[input], -1, nil)
}

// revoke takes an input away from the router, after its transaction has ended.
func (r *interleavedRouter) revoke(input int) {
	id := r.x.logs.inputs[input].TaskID
	r.marks.Revoke(map[string][]int32{id.Topic: {id.Partition}})
	delete(r.position, input)
	r.x.owner[input] = nil
}

// begin opens a transaction unless one is open.
func (r *interleavedRouter) begin() {
	if r.open == nil {
		r.open = &routerTransaction{}
	}
	r.App.Clock.Set(r.x.now + r.error)
}

// read routes up to n records of an input into the open transaction.
func (r *interleavedRouter) read(input int, n int64) {
	log, from := &r.x.logs.inputs[input], r.position[input]
	to := min(from+n, log.stored(r.x.now))
	if to <= from {
		return
	}
	r.begin()
	must(r.x.t, r.Process(r.emitter, log.records[from:to]))
	r.marks.Routed(log.TaskID, log.records[to-1], r.Fronts)
	r.position[input] = to
}

// commit ends the open transaction. If writes is set, the transaction includes what the router has observed.
func (r *interleavedRouter) commit(writes bool) {
	if writes && len(r.fresh) > 0 {
		r.begin()
		r.WriteProgress(r.emitter, &wire.Progress{Inputs: r.marks.AddFronts(r.fresh)}, everyPartition)
		r.fresh = nil
	}
	if r.open == nil {
		return
	}
	r.end(true)
	for input, position := range r.position {
		r.x.read[input] = position
	}
}

// abort aborts the open transaction.
func (r *interleavedRouter) abort() {
	if r.open == nil {
		return
	}
	r.end(false)
	for input := range r.position {
		r.position[input] = r.x.read[input]
	}
}

func (r *interleavedRouter) end(committed bool) {
	r.open.ended, r.open.aborted, r.open = true, !committed, nil
	r.marks.End(committed, time.UnixMilli(r.x.now))
	r.emitter.Reset()
}

// look is what a router observes before it asks for the ends of its inputs.
type look struct {
	positions map[string]map[int]int64 // by topic and input, as committed
	at        int64                    // broker time
}

// observe begins to look how far the router has read its inputs, or ends the look, as package progress does: from the
// router's committed positions, and from ends that it observes after the broker time that it states. Anything may
// happen between the two halves.
func (r *interleavedRouter) observe() {
	if r.looking == nil {
		r.look()
		return
	}
	r.observeEnds(r.looking)
	r.looking = nil
}

// look stores the committed positions, and then the broker time.
func (r *interleavedRouter) look() {
	l := &look{positions: map[string]map[int]int64{}}
	for _, input := range r.owned() {
		id := r.x.logs.inputs[input].TaskID
		if l.positions[id.Topic] == nil {
			l.positions[id.Topic] = map[int]int64{}
		}
		l.positions[id.Topic][input] = r.marks.Positions(id.Topic)[id.Partition]
	}
	l.at = r.x.now + r.error - observeMargin
	r.looking = l
}

// observeEnds stores the ends of the inputs that the router had at the look.
func (r *interleavedRouter) observeEnds(l *look) {
	x := r.x
	var all []wire.InputProgress
	for _, topic := range []string{"a.raw", "b.raw"} {
		if len(l.positions[topic]) == 0 || x.rng.IntN(10) == 0 { // none, or no answer
			continue
		}
		p := wire.InputProgress{Topic: r.App.TopicNumbers[topic], Partitions: x.partitionsOf(topic), CountedAt: l.at}
		for _, input := range slices.Sorted(maps.Keys(l.positions[topic])) {
			read := wire.NewReadProgress(x.logs.inputs[input].Partition)
			if x.rng.IntN(10) > 0 { // else the partition has no leader
				read.To = r.reached(input, l.positions[topic][input], reachedInput{l.at, x.logs.inputs[input].stored(x.now)})
			}
			p.Read = append(p.Read, read)
		}
		all = append(all, p)
	}
	if len(all) > 0 {
		r.fresh = all
	}
}

// reached returns the broker time up to which an input was read at a position.
func (r *interleavedRouter) reached(input int, position int64, newest reachedInput) int64 {
	known := r.known[input]
	if known == nil {
		known = &reachedInput{newest.at, newest.end}
		r.known[input] = known
	}
	if position < known.end {
		return dedup.NoStreamTime
	}
	to := known.at
	if *known = newest; position >= newest.end {
		to = newest.at
	}
	return to
}
