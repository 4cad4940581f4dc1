package processor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
	"oncebus/state"
	"oncebus/state/failpoint"
)

// restoreRetryPause separates the first two attempts of a restore that the
// broker or the disk failed; it doubles up to restoreRetryMax.
const restoreRetryPause, restoreRetryMax = 500 * time.Millisecond, 4 * time.Second

// background is work for a task in a goroutine of its own. Until done is closed
// what it works on is its own.
type background struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// start begins the work; finished is called when it has ended, also by stop.
func (b *background) start(ctx context.Context, finished func(), work func(context.Context)) {
	ctx, b.cancel = context.WithCancel(ctx)
	b.done = make(chan struct{})
	go func() {
		defer finished()
		defer close(b.done)
		work(ctx)
	}()
}

// stop ends the work and waits for it.
func (b *background) stop() {
	b.cancel()
	<-b.done
}

// finished reports whether the work has ended.
func (b *background) finished() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// A restore brings one task's store up to the changelog's high watermark, in a
// goroutine of its own, while the worker goes on with its other tasks. Until
// done is closed the store belongs to it; after that, to the task again.
type restore struct {
	background

	broken   error // why the store it was given cannot go on
	failures int   // attempts since something was read
	// failing is since when the store cannot be used, in Unix ns; 0 if it can.
	failing atomic.Int64
	watch   *stallWatch
	// overtaken says that the task has written to the changelog meanwhile, so
	// that what is restored is not the newest. It is the worker's.
	overtaken bool

	// Written before done is closed.
	store      *state.Store
	checkpoint wire.Checkpoint // next is -1 if the changelog has none
	counts     app.Counts      // of keys as of it
	emptied    bool            // the changelog had records once, and the store has none of them
	rows       int
	from, to   int64 // changelog offsets
	err        error
}

// failed notes, unless err is nil, that the store cannot be used for now: its
// files or its disk failed us. A restore that merely has much to read, or waits
// for a broker, has not failed.
func (r *restore) failed(err error) error {
	if err != nil {
		r.failing.CompareAndSwap(0, time.Now().UnixNano())
	}
	return err
}

// failedFor is how long the store could not be used.
func (r *restore) failedFor() time.Duration {
	since := r.failing.Load()
	if since == 0 {
		return 0
	}
	return time.Since(time.Unix(0, since))
}

// room waits until the disk takes more.
func (r *restore) room(ctx context.Context, p *Processor) error {
	_ = r.failed(p.disk.paused()) // which await waits for
	return p.disk.await(ctx)
}

// startRestore moves the task to restoring. finished is called from the
// restore's goroutine when it ends by itself.
func (t *task) startRestore(ctx context.Context, p *Processor, finished func()) {
	if t.state != restoring {
		t.to(restoring)
	}
	r := &restore{store: t.store, broken: t.broken}
	t.store, t.restore, t.broken = nil, r, nil
	r.start(ctx, finished, func(ctx context.Context) { r.err = r.run(ctx, p, t) })
}

func (r *restore) run(ctx context.Context, p *Processor, t *task) error {
	began := time.Now()
	r.watch = newStallWatch(ctx, p, t)
	defer r.watch.stop()
	err := r.failed(r.broken)
	for {
		if err == nil {
			err = r.once(ctx, p, t)
		}
		if err == nil {
			t.metrics.restoreTime.Observe(time.Since(began).Seconds())
			t.log.Info("restored", "from", r.from, "to", r.to, "rows", r.rows, "next", r.checkpoint.Next,
				"took", time.Since(began).Round(time.Millisecond).String())
			return nil
		}
		if err := r.recover(ctx, p, t, err); err != nil {
			return err
		}
		err = nil
	}
}

// recover does what an error asks for before the next attempt, or returns the
// error that ends the restore.
func (r *restore) recover(ctx context.Context, p *Processor, t *task, err error) error {
	if ctx.Err() == nil && !errors.Is(err, kafka.ErrOperator) && (errors.Is(err, errStale) || untrusted(err)) {
		if err = r.letGo(p, t, func() error { return p.quarantine(t, err) }); err == nil {
			return nil
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errTooOften) && len(p.rt.FailOpen[t.id.Topic]) > 0:
		// A person has to look at the disk; until then events go on without it.
		t.log.Error("local state stays out of use", "error", err)
		p.snapshot.explain(t.id, err.Error())
		return kafka.Pause(ctx, restoreRetryMax)
	case errors.Is(err, kafka.ErrOperator):
		return err
	case kafka.Classify(err) == kafka.Stop:
		return err
	}
	if r.store != nil && (r.broken != nil && errors.Is(err, r.broken) || r.store.Err() != nil) {
		// It takes no more work; its files may be well.
		if err := r.letGo(p, t, func() error { return nil }); err != nil {
			return err
		}
	}
	t.log.Warn("restore failed, trying again", "error", err)
	p.snapshot.explain(t.id, "restore failed, trying again: "+err.Error())
	wait := min(restoreRetryPause<<min(r.failures, 8), restoreRetryMax)
	r.failures++
	return kafka.Pause(ctx, wait)
}

// errStale says that local state does not fit the changelog: it ends before
// the changelog begins, or reaches beyond its end.
var errStale = errors.New("local state is out of step with the changelog")

// once opens the store if need be and reads the changelog from the store's
// position to the high watermark, which is taken after the group's stable
// offset fetch: whoever owned the task before had its last transaction either
// counted in that fetch, its rows then stand below the watermark, or it will
// never commit (invariant 4, hazards B1 and B2).
func (r *restore) once(ctx context.Context, p *Processor, t *task) error {
	if err := r.room(ctx, p); err != nil {
		return err
	}
	if r.store == nil {
		if err := r.open(ctx, p, t); err != nil {
			return err
		}
	}
	info := p.rt.Topology.Topics[t.changelog]
	if t.id.Partition >= info.Partitions {
		return kafka.OperatorErrorf("topic %s has a partition %d, its changelog has only %d: a key must keep its partition, so the count is fixed; recreate the topic with %d partitions, or use another ONCEBUS_APP_ID",
			t.id.Topic, t.id.Partition, info.Partitions, info.Partitions)
	}
	reader := kafka.NewReader(p.client, t.changelog, info.Id, t.id.Partition)
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return err
	}
	from := r.store.Position()
	fresh := from == 0 && len(r.store.Checkpoint()) == 0
	switch {
	case fresh:
		from = start
		r.emptied = start > 0
	case from < start:
		return fmt.Errorf("%w: position %d, the changelog begins at %d", errStale, from, start)
	case from > end:
		return fmt.Errorf("%w: position %d, the changelog ends at %d", errStale, from, end)
	}
	r.from, r.to = from, end
	failpoint.Hit(failpoint.RestoreStart)
	left := t.metrics.restoreLeft.WithLabelValues(t.id.Topic, strconv.Itoa(int(t.id.Partition)))
	left.Set(float64(end - from))
	r.watch.position.Store(from)
	r.watch.end.Store(end)
	err = reader.Read(ctx, from, end, func(records []*kgo.Record, position int64) error {
		r.rows += len(records)
		t.metrics.restored.Add(float64(len(records)))
		left.Set(float64(max(0, end-position)))
		r.watch.position.Store(position)
		r.failures = 0
		if err := r.room(ctx, p); err != nil {
			return err
		}
		return r.failed(r.apply(records, position))
	})
	if err != nil {
		return err
	}
	if err := r.readCheckpoint(); err != nil {
		return err
	}
	r.counts, err = countKeys(p.rt, &r.checkpoint, r.store)
	return r.failed(err)
}

// apply puts one fetch of the changelog into the store. Rows are facts, so to
// apply them twice or in part is harmless as long as the position does not
// run ahead of them.
func (r *restore) apply(records []*kgo.Record, position int64) error {
	newest := r.store.Checkpoint()
	for _, rec := range records {
		if string(rec.Key) == wire.CheckpointKey {
			newest = rec.Value
			continue
		}
		if len(rec.Key) != len(dedup.Digest{}) {
			return kafka.OperatorErrorf("changelog record %s/%d/%d has a key of %d bytes: only oncebus may write this topic", rec.Topic, rec.Partition, rec.Offset, len(rec.Key))
		}
		row, err := dedup.DecodeValue(dedup.Digest(rec.Key), rec.Value)
		if err != nil {
			return kafka.OperatorErrorf("changelog record %s/%d/%d: %w; run the build that wrote it", rec.Topic, rec.Partition, rec.Offset, err)
		}
		r.store.Put(row)
	}
	if err := r.store.Apply(position, newest); err != nil {
		return err
	}
	failpoint.Hit(failpoint.RestoreChunk)
	return nil
}

func (r *restore) readCheckpoint() error {
	r.checkpoint = wire.Checkpoint{Next: -1, Epoch: -1}
	b := r.store.Checkpoint()
	if len(b) == 0 {
		return nil
	}
	c, err := wire.DecodeCheckpoint(b)
	if err != nil {
		return kafka.OperatorErrorf("%w; run the build that wrote it", err)
	}
	r.checkpoint = c
	return nil
}

// open opens the task's directory, once nobody else in this process has it.
// A store of another cluster or topic, or one that cannot be read, is set
// aside: Kafka is the truth, the store a cache of it.
func (r *restore) open(ctx context.Context, p *Processor, t *task) error {
	if err := p.dirs.acquire(ctx, t.id); err != nil {
		return err
	}
	store, err := p.host.Open(p.storeDir(t.id), p.storeIdentity(t))
	if !errors.Is(err, state.ErrForeign) && !errors.Is(err, state.ErrUnclean) {
		_ = r.failed(err) // and not another app's, or a host's that stopped
	}
	if err != nil && untrusted(err) {
		if err := p.quarantine(t, err); err != nil {
			p.dirs.release(t.id)
			return err
		}
		store, err = p.host.Open(p.storeDir(t.id), p.storeIdentity(t))
	}
	if err != nil {
		p.dirs.release(t.id)
		return fmt.Errorf("open the store of %v: %w", t.id, err)
	}
	r.store = store
	return nil
}

// untrusted reports that local files must not be used, whatever they hold.
func untrusted(err error) bool {
	return errors.Is(err, state.ErrCorrupt) || errors.Is(err, state.ErrForeign) || errors.Is(err, state.ErrUnclean)
}

// letGo closes the store as it is, and does what is to be done with its
// directory before somebody else may have it.
func (r *restore) letGo(p *Processor, t *task, then func() error) error {
	if r.store == nil {
		return then()
	}
	if err := r.store.Abandon(); err != nil {
		t.log.Warn("closing a store that is given up", "error", err)
	}
	r.store = nil
	defer p.dirs.release(t.id)
	return then()
}

// quarantine renames the task's directory aside, for a person to look at.
func (p *Processor) quarantine(t *task, why error) error {
	dir := p.storeDir(t.id)
	if !errors.Is(why, state.ErrUnclean) {
		if err := p.rebuilds.allow(t.id.String(), why, time.Now()); err != nil {
			return err
		}
	}
	failpoint.Hit(failpoint.BeforeQuarantine)
	aside, err := state.Quarantine(dir, time.Now())
	if err != nil {
		return fmt.Errorf("set the store of %v aside: %w", t.id, err)
	}
	failpoint.Hit(failpoint.AfterQuarantine)
	t.metrics.quarantined.Inc()
	t.log.Error("local state set aside, rebuilding from the changelog", "reason", why, "quarantine_dir", aside)
	return nil
}

func (p *Processor) storeDir(id app.TaskID) string {
	return filepath.Join(p.cfg.StateDir, p.cfg.AppID, id.Topic+"-"+strconv.Itoa(int(id.Partition)))
}

// storeIdentity names what the state of a task belongs to.
func (p *Processor) storeIdentity(t *task) []byte {
	info := p.rt.Topology.Topics[t.changelog]
	return []byte(p.rt.Topology.Cluster + "/" + app.TopicIDText(info.Id) + "/" + strconv.Itoa(int(t.id.Partition)))
}

// makeStateDir creates the state directory, readable for its owner only.
func (p *Processor) makeStateDir() error {
	dir := filepath.Join(p.cfg.StateDir, p.cfg.AppID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return kafka.OperatorErrorf("the state directory cannot be made: %w; set ONCEBUS_STATE_DIR to a local disk", err)
	}
	return nil
}

// countKeys returns the counts that belong to a checkpoint: those it holds,
// and for a class whose window is new, those of the store's rows.
func countKeys(rt *app.App, c *wire.Checkpoint, store *state.Store) (app.Counts, error) {
	all := app.NewCounts(rt)
	recount, err := all.Decode(c.Counts)
	if err != nil {
		return app.Counts{}, kafka.OperatorErrorf("%w; run the build that wrote it", err)
	}
	for _, h := range all.Hits {
		if !c.Counted && c.StreamTimes.Has[h.Class] {
			recount[h.Class] = true
		}
	}
	if len(recount) == 0 {
		return all, nil
	}
	for i := range all.Censuses {
		if one := &all.Censuses[i]; recount[one.Class] {
			one.Census = dedup.NewCensus(one.Window)
		}
	}
	for row, err := range store.Rows() {
		if err != nil {
			return app.Counts{}, err
		}
		one := all.Of(row.Class, row.Status)
		if one == nil || !recount[row.Class] || !one.Window.Held(row.First, c.StreamTimes.At[row.Class]) {
			continue
		}
		one.Add(row.First)
		claim, err := dedup.DecodeClaim(row.Result)
		if err != nil {
			return app.Counts{}, err
		}
		for range claim.Requests {
			all.Of(row.Class, app.StatusWaiting).Add(row.First)
		}
	}
	return all, nil
}
