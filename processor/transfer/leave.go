package transfer

import (
	"context"
	"math"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/portable"
)

// ExportLeaving writes the file with which the app continues in another cluster. The app must be in a complete
// hold that was begun in order to leave. Then nothing is judged any more, so the exported rows belong to the
// held offsets. If there are claims without an outcome, it returns an operator error, unless withoutOpen allows
// to leave these claims out.
func (c *Client) ExportLeaving(ctx context.Context, to File, withoutOpen bool, watch func(done, total int64)) (*Exported, error) {
	exported, err := c.exportLeaving(ctx, to, withoutOpen, watch)
	return exported, c.explain(err)
}

// exportLeaving writes the file. Then it checks that the hold is still the same, and that no event was routed
// meanwhile, so that the file has everything that the app has judged.
func (c *Client) exportLeaving(ctx context.Context, to File, withoutOpen bool, watch func(done, total int64)) (*Exported, error) {
	before, err := c.leavingHold(ctx)
	if err != nil {
		return nil, err
	}
	leaving := &portable.Leaving{Hold: before.hold.ID, Routes: c.routes.Digest, HashSecret: c.app.Manifest.HashSecret}
	inputs, _ := c.routes.Inputs()
	for _, topic := range inputs {
		for p := range c.app.Topology.Topics[topic].Partitions {
			id := app.TaskID{Topic: topic, Partition: p}
			in := portable.Input{Topic: topic, Partition: p, Held: before.held[id], Outcomes: len(c.app.Outcomes[topic]) > 0}
			if in.Tail, in.Earliest, err = c.tailBefore(ctx, id, in.Held); err != nil {
				return nil, err
			}
			leaving.Inputs = append(leaving.Inputs, in)
		}
	}
	exported, err := c.exportWith(ctx, to, leaving, watch)
	if err != nil {
		return nil, err
	}
	if exported.Open > 0 && !withoutOpen {
		return nil, kafka.OperatorErrorf("%d claims have no outcome yet, and their tokens name places of this cluster: take the app back by 'oncebus release --back', wait until 'oncebus stats' counts none in progress, and hold it again; "+
			"or leave them behind by --without-open-claims: their duplicates run again", exported.Open)
	}
	after, err := c.leavingHold(ctx)
	switch {
	case err != nil:
	case after.hold.ID != before.hold.ID:
		err = kafka.OperatorErrorf("the hold ended while its file was written: run this again")
	default:
		err = c.refuseEventsSince(ctx, before.ends)
	}
	return exported, err
}

// refuseEventsSince returns an operator error if an event has come to the repartition topic behind these ends.
// To compare the ends is not enough, because they also grow without events: when the broker ends the
// transaction of a killed process, it writes control records, and routers write progress records.
func (c *Client) refuseEventsSince(ctx context.Context, ends map[int32]int64) error {
	for partition, end := range ends {
		if n, err := c.unread(ctx, c.app.Topology.Repartition, partition, end); err != nil {
			return err
		} else if n > 0 {
			return kafka.OperatorErrorf("events came through the ingress while the file was written: keep requests away from it, and run this again")
		}
	}
	return nil
}

// completeHold is the hold of an app that leaves, with the held offsets of the inputs, and the end offsets of
// the repartition topic: all records below them are judged.
type completeHold struct {
	hold *app.Hold
	held map[app.TaskID]int64
	ends map[int32]int64
}

// leavingHold returns the hold of an app that leaves. It is an operator error if the hold is not complete, or
// if the app cannot leave.
func (c *Client) leavingHold(ctx context.Context) (*completeHold, error) {
	t := c.app.Topology
	rows, err := app.ReadRows(ctx, c.client, t)
	if err != nil {
		return nil, err
	}
	r, err := app.ResidenceIn(rows)
	if err != nil {
		return nil, err
	}
	hold, err := r.Export()
	switch {
	case err != nil:
		return nil, err
	case len(t.Prepartitioned) > 0:
		return nil, kafka.OperatorErrorf("topics %v are prepartitioned: their producers choose the partition of a key, and a seed does not know it; hold the app for its windows in place of a move", t.Prepartitioned)
	}
	if err := c.seedableLevel(); err != nil {
		return nil, err
	}
	if err := c.app.InForce.RefuseShadows("the rows of a shadow stay here"); err != nil {
		return nil, kafka.OperatorErrorf("%v", err)
	}
	held, err := app.HeldIn(rows, hold.ID)
	if err != nil {
		return nil, err
	}
	missing, err := app.NotHeld(ctx, c.admin, t, held)
	if err != nil {
		return nil, err
	}
	ends, err := app.Ends(ctx, c.conn(), t.Repartition)
	if err != nil {
		return nil, err
	}
	undrained, err := app.Undrained(ctx, c.conn(), t, t.Repartition, ends)
	if err != nil {
		return nil, err
	}
	if len(missing)+len(undrained) > 0 {
		return nil, kafka.OperatorErrorf("the hold is not complete: not held are %v, with records to judge %v; wait for it with 'oncebus hold'", missing, undrained)
	}
	return &completeHold{hold, held, ends}, nil
}

// takeAlong adds to the tasks of a header the data that only the file of an app that leaves its cluster
// contains.
func (c *Client) takeAlong(h *portable.Header, snapshots []*snapshot) error {
	for i, s := range snapshots {
		if len(s.checkpoint.Bypassed) > 0 {
			return kafka.OperatorErrorf("task %v forwarded events that it has not stored: wait until its state is restored, see /readyz", s.id)
		}
		for _, k := range c.app.KnownUnder(&s.checkpoint, c.app.Set) {
			if h.Tasks[i].Known == nil {
				h.Tasks[i].Known = map[string]portable.Known{}
			}
			h.Tasks[i].Known[c.app.Namespaces[k.NamespaceID]] = portable.Known{Since: k.Since, LateBefore: k.LateBefore}
		}
	}
	return nil
}

// tailBefore returns the checksums of the last committed records of a partition before an offset, and the
// lowest timestamp in the later half of these records. The search in a mirror begins at that timestamp; records
// of the earlier half may have the same timestamp. Control records and aborted records use offsets as well, so
// tailBefore may have to read further back.
func (c *Client) tailBefore(ctx context.Context, id app.TaskID, before int64) (tail []byte, earliest int64, err error) {
	reader := c.leaders.NewReader(id.Topic, c.app.Topology.Topics[id.Topic].ID, id.Partition)
	reader.BoundBatches(c.cfg.BatchBytesMax())
	start, _, err := reader.Bounds(ctx)
	if err != nil {
		return nil, 0, err
	}
	var last []tailRecord
	for reach := int64(2 * tailRecords); ; reach *= 8 { // not every offset has a record
		from := max(start, before-reach)
		if last, err = lastOf(ctx, reader, from, before); err != nil {
			return nil, 0, err
		}
		if len(last) >= tailRecords || from <= start {
			break
		}
	}
	if len(last) == 0 {
		return nil, 0, nil
	}
	earliest = math.MaxInt64
	for i := range last {
		tail = append(tail, last[i].sum[:]...)
		if len(last)-i <= tailRecords/2 {
			earliest = min(earliest, last[i].at)
		}
	}
	return tail, earliest, nil
}

// A tailRecord is a record before a held offset, with its timestamp in ms.
type tailRecord struct {
	sum recordSum
	at  int64
}

// lastOf returns the last records of a range of offsets, at most tailRecords of them.
func lastOf(ctx context.Context, reader *kafka.Reader, from, before int64) (last []tailRecord, err error) {
	err = reader.Read(ctx, from, before, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			if rec.Offset < before {
				last = append(last, tailRecord{sumOf(rec), rec.Timestamp.UnixMilli()})
			}
		}
		last = last[max(0, len(last)-tailRecords):]
		return nil
	})
	return last, err
}
