package judge

import (
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// forward sends what reached the repartition topic of an earlier generation after its tasks had
// closed to the tasks of its keys, unchanged. An ingress that slept during the switch may have
// written it. The envelope has all that the router would derive again.
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
			continue // the new tasks get their own
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

// isSkipped reports whether an operator skips the record or the batch of a partition that err is about.
func (r *Router) isSkipped(id app.TaskID, err error) bool {
	skip := r.Skips[id]
	return skip != nil && errors.Is(err, skip)
}

// SkipBatch emits one dead letter for a batch of an input that decompresses to more than limit bytes, or
// that no client can read. A batch of an earlier generation's repartition topic has no dead letter: its
// partition waits, as the returned error says, until an operator skips it. So does one that asks is
// about in any topic.
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
