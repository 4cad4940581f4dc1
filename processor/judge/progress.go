package judge

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// WriteProgress produces a progress record to every chosen partition of the repartition topic. A task reads that
// record after the outcomes of earlier transactions, so the task may rely on what the record says about these
// outcomes.
func (r *Router) WriteProgress(e *Emitter, p *wire.Progress, chosen func(partition int32) bool) {
	env := wire.Envelope{IsProgress: true}
	key := env.Append(nil)
	value := p.AppendRecord(nil)
	topic := r.App.Topology.Repartition
	for partition := range r.App.Topology.Topics[topic].Partitions {
		if !chosen(partition) {
			continue
		}
		out := e.NewRecord()
		out.Topic, out.Partition, out.Key, out.Value = topic, partition, key, value
		e.produce(out, dedup.Position{})
	}
}

// applyProgress adds what a progress record says to what the task knows.
func (t *Judge) applyProgress(j *Judging, rec *kgo.Record) error {
	record, err := wire.DecodeProgress(rec.Value)
	if err != nil {
		return wire.Unreadable(rec, err)
	}
	if t.Blind {
		return nil // the task applies it after the restore
	}
	stored := rec.Timestamp.UnixMilli()
	if err := t.readInputs(j.Emitter, record.Inputs, stored); err != nil {
		return err
	}
	if err := t.endRetired(j.Emitter, stored); err != nil {
		return err
	}
	if !t.App.WritesProgress || record.IsEmpty() && len(record.Inputs) > 0 {
		return nil
	}
	if t.followsStep(stored) {
		t.Open.Progress, t.Open.SteppedAt, t.SteppedAt = wire.Progress{}, stored, 0
	}
	t.Open.ProgressAt = stored
	t.Open.Progress = t.Open.Progress.Merge(&record, stored, func(route string) (int64, uint16) {
		if r := t.App.ByName[route]; r != nil {
			return r.Rule.Lease, t.App.TopicNumbers[r.Claim.Outcomes]
		}
		return 0, 0
	})
	return t.answerLeases(j.Emitter, rec.Timestamp.UnixMilli())
}

// While claims are open, the routing stage writes a progress record about every second. If the next record is
// more than progressGapMax later, or more than setBackMin earlier (both in ms, broker time), then a broker's
// clock may have been set, or no router was running for that time. A process cannot tell one from the other.
const progressGapMax, setBackMin = 60_000, 1000

// followsStep reports whether broker time may have jumped since the last progress record. A process that starts
// after the jump cannot observe the jump itself, so it relies on what the log shows.
func (t *Judge) followsStep(stored int64) bool {
	last := t.Open.ProgressAt
	return last != 0 && (stored > last+progressGapMax || stored < last-setBackMin)
}

// evidence returns what the task knows about the outcomes of a route and about its executor. This evidence
// decides whether a lease is over.
func (t *State) evidence(route *app.Route) dedup.LeaseEvidence {
	if !t.App.WritesProgress {
		return dedup.LeaseEvidence{}
	}
	e := dedup.LeaseEvidence{
		Written: true, OutcomesReadTo: t.Open.Progress.OutcomesReadTo(t.App.TopicNumbers[route.Claim.Outcomes]), ExecutorPassedTo: dedup.NoStreamTime,
		SteppedAt: t.Open.SteppedAt,
	}
	if route.Rule.HasGroup && e.OutcomesReadTo != dedup.NoStreamTime {
		e.ExecutorPassedTo = t.Open.Progress.ExecutorPassedTo(route.Name, route.Rule.Lease, t.Open.SteppedAt, e.OutcomesReadTo)
	}
	return e
}

// leaseBegan records that a lease, which may still run, began at the broker time at, in ms. stored is the broker
// time of the event or outcome that shows this. The routing stage writes progress records while a lease may
// still run.
func (t *State) leaseBegan(at, stored int64) {
	if !t.App.WritesProgress {
		return
	}
	if stored < t.Open.ProgressAt-setBackMin {
		// Broker time was set back. The progress that the task knows has times from before that. With these
		// times the wait for new progress records would end too early.
		t.Open.Progress = wire.Progress{}
	}
	t.Open.ClaimedAt = max(t.Open.ClaimedAt, at)
}

// AwaitsProgress reports whether the task needs progress records, as of the open transaction: a lease
// may still run, or a lease has ended while requests wait for its claim.
func (t *State) AwaitsProgress() bool {
	return t.App.WritesProgress && slices.ContainsFunc(t.App.Routes, func(route *app.Route) bool {
		if route.Mode != rules.ClaimMode || t.OpenCounts.InProgress(route.NamespaceID) == 0 {
			return false
		}
		e, began := t.evidence(route), t.Open.ClaimedAt
		return t.Waiting.HasLeases(route.NamespaceID) || began != 0 &&
			(e.OutcomesReadTo == dedup.NoStreamTime || e.OutcomesReadTo-route.Rule.Lease <= began || route.Rule.HasGroup && e.ExecutorPassedTo <= began)
	})
}
