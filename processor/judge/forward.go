package judge

import (
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// forward handles records that reached the repartition topic of an earlier generation after the tasks of that
// topic had closed: an ingress that was suspended during the switch may have written them. It sends the records,
// unchanged, to the tasks that now have their keys. A record's envelope has everything that a router would
// derive.
func (r *Router) forward(e *Emitter, records []*kgo.Record) error {
	for _, rec := range records {
		env := &e.current.envelope
		if err := wire.ReadEnvelope(rec, env); err != nil {
			if !r.isSkipped(app.TaskID{Topic: rec.Topic, Partition: rec.Partition}, err) {
				return err
			}
			continue
		}
		if env.IsProgress {
			continue // progress records are not forwarded: the new tasks get their own
		}
		partition := r.App.Hasher.Partition(&env.Digest)
		if env.Outcome != nil {
			partition = r.App.Hasher.Partition(&env.Outcome.Token.Digest)
		}
		from := r.App.PositionOf(rec)
		out := e.NewRecord()
		out.Topic, out.Partition, out.Key, out.Value, out.Headers = r.App.Topology.Repartition, partition, rec.Key, rec.Value, rec.Headers
		if limits := e.limitsOf(out.Topic); !e.fits(out) {
			n := wire.RecordBytes(out)
			return kafka.OperatorErrorf("record %s/%d/%d has %d bytes, and %s of %s is %d: raise it to that of %s", rec.Topic, rec.Partition, rec.Offset, n, limits.BytesSetting, out.Topic, limits.MaxBytes, rec.Topic)
		}
		if reason, _ := e.refused(from, out.Topic); reason != "" {
			return kafka.OperatorErrorf("record %s/%d/%d: topic %s refuses it: %s", rec.Topic, rec.Partition, rec.Offset, out.Topic, reason)
		}
		e.produce(out, from)
	}
	return nil
}

// isSkipped reports whether err is about the record or batch of this partition that an operator decided
// to skip.
func (r *Router) isSkipped(id app.TaskID, err error) bool {
	skip := r.Skips[id]
	return skip != nil && errors.Is(err, skip)
}

// SkipBatch handles a batch that no client can read, or that decompresses to more than limit bytes. For a
// batch of an input topic it emits one dead letter. A batch of an earlier generation's repartition topic gets
// no dead letter: its partition waits, as the returned error says, until an operator decides to skip the batch.
// With asks, which describes the batch, a batch of any topic waits for the operator.
func (r *Router) SkipBatch(e *Emitter, batch *kgo.ErrDecompressTooLarge, limit int, asks *wire.UnreadableError) *wire.UnreadableError {
	forwarded := slices.Contains(r.App.Topology.Forwarded, batch.Topic)
	if asks == nil && forwarded {
		asks = wire.UnreadableBatch(batch.Topic, batch.Partition, batch.Offset, batch.NextOffset-1, batch)
	}
	if asks != nil && !r.isSkipped(app.TaskID{Topic: batch.Topic, Partition: batch.Partition}, asks) {
		return asks
	}
	if !forwarded {
		e.DeadLetterBatch(batch, r.App.Clock.Now(), limit)
	}
	return nil
}
