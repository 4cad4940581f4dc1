package restore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// retryPause separates the first two attempts of a restore that the
// broker or the disk failed; it doubles up to restoreRetryMax.
const retryPause, retryMax = 500 * time.Millisecond, 4 * time.Second

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

// Stop ends the work and waits for it.
func (b *background) Stop() {
	b.cancel()
	<-b.done
}

// Finished reports whether the work has ended.
func (b *background) Finished() bool {
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
type Restore struct {
	background

	src       *Source
	id        app.TaskID
	changelog string
	log       *slog.Logger

	broken   error // why the store it was given cannot go on
	failures int   // attempts since something was read
	// failing is since when the store cannot be used, in Unix ns; 0 if it can.
	failing atomic.Int64
	watch   *stallWatch
	// Overtaken says that the task has written to the changelog meanwhile, so
	// that what is restored is not the newest. It is the worker's.
	Overtaken bool

	// Written before done is closed.
	Store      *state.Store
	Checkpoint wire.Checkpoint // next is -1 if the changelog has none
	Counts     app.Counts      // of keys as of it
	Emptied    bool            // the changelog had records once, and the store has none of them
	rows       int
	from, to   int64 // changelog offsets
	Err        error
}

// failed notes, unless err is nil, that the store cannot be used for now: its
// files or its disk failed us. A restore that merely has much to read, or waits
// for a broker, has not failed.
func (r *Restore) failed(err error) error {
	if err != nil {
		r.failing.CompareAndSwap(0, time.Now().UnixNano())
	}
	return err
}

// FailedFor is how long the store could not be used.
func (r *Restore) FailedFor() time.Duration {
	since := r.failing.Load()
	if since == 0 {
		return 0
	}
	return time.Since(time.Unix(0, since))
}

// room waits until the disk takes more.
func (r *Restore) room(ctx context.Context) error {
	_ = r.failed(r.src.Stores.Disk.paused()) // which await waits for
	return r.src.Stores.Disk.await(ctx)
}

// Start restores the store of a task, which is nil if it is to be
// opened. broken is why it cannot go on as it is. finished is called from the
// restore's goroutine when it ends by itself.
func Start(ctx context.Context, src *Source, id app.TaskID, log *slog.Logger, store *state.Store, broken error, finished func()) *Restore {
	r := &Restore{src: src, id: id, changelog: src.App.ChangelogOf(id.Topic), log: log, Store: store, broken: broken}
	r.start(ctx, finished, func(ctx context.Context) { r.Err = r.run(ctx) })
	return r
}

func (r *Restore) run(ctx context.Context) error {
	began := time.Now()
	r.watch = newStallWatch(ctx, r)
	defer r.watch.stop()
	err := r.failed(r.broken)
	for {
		if err == nil {
			err = r.once(ctx)
		}
		if err == nil {
			r.src.Metrics.restoreTime.Observe(time.Since(began).Seconds())
			r.log.Info("restored", "from", r.from, "to", r.to, "rows", r.rows, "next", r.Checkpoint.Next,
				"took", time.Since(began).Round(time.Millisecond).String())
			return nil
		}
		if err := r.recover(ctx, err); err != nil {
			return err
		}
		err = nil
	}
}

// recover does what an error asks for before the next attempt, or returns the
// error that ends the restore.
func (r *Restore) recover(ctx context.Context, err error) error {
	if ctx.Err() == nil && !errors.Is(err, kafka.ErrOperator) && (errors.Is(err, errStale) || untrusted(err)) {
		if err = r.letGo(func() error { return r.quarantine(err) }); err == nil {
			return nil
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, ErrTooOften) && len(r.src.App.FailOpen[r.id.Topic]) > 0:
		// A person has to look at the disk; until then events go on without it.
		r.log.Error("local state stays out of use", "error", err)
		r.src.Explain(r.id, err.Error())
		return kafka.Pause(ctx, retryMax)
	case errors.Is(err, kafka.ErrOperator):
		return err
	case kafka.Classify(err) == kafka.Stop:
		return err
	}
	if r.Store != nil && (r.broken != nil && errors.Is(err, r.broken) || r.Store.Err() != nil) {
		// It takes no more work; its files may be well.
		if err := r.letGo(func() error { return nil }); err != nil {
			return err
		}
	}
	r.log.Warn("restore failed, trying again", "error", err)
	r.src.Explain(r.id, "restore failed, trying again: "+err.Error())
	wait := min(retryPause<<min(r.failures, 8), retryMax)
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
func (r *Restore) once(ctx context.Context) error {
	if err := r.room(ctx); err != nil {
		return err
	}
	if r.Store == nil {
		if err := r.open(ctx); err != nil {
			return err
		}
	}
	info := r.src.App.Topology.Topics[r.changelog]
	if r.id.Partition >= info.Partitions {
		return kafka.OperatorErrorf("topic %s has a partition %d, its changelog has only %d: a key must keep its partition, so the count is fixed; recreate the topic with %d partitions, or use another ONCEBUS_APP_ID",
			r.id.Topic, r.id.Partition, info.Partitions, info.Partitions)
	}
	reader := kafka.NewReader(r.src.Client, r.changelog, info.ID, r.id.Partition)
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return err
	}
	from := r.Store.Position()
	fresh := from == 0 && len(r.Store.Checkpoint()) == 0
	switch {
	case fresh:
		from = start
		r.Emptied = start > 0
	case from < start:
		return fmt.Errorf("%w: position %d, the changelog begins at %d", errStale, from, start)
	case from > end:
		return fmt.Errorf("%w: position %d, the changelog ends at %d", errStale, from, end)
	}
	r.from, r.to = from, end
	failpoint.Hit(failpoint.RestoreStart)
	left := r.src.Metrics.restoreLeft.WithLabelValues(r.id.Topic, strconv.Itoa(int(r.id.Partition)))
	left.Set(float64(end - from))
	r.watch.position.Store(from)
	r.watch.end.Store(end)
	err = reader.Read(ctx, from, end, func(records []*kgo.Record, position int64) error {
		r.rows += len(records)
		r.src.Metrics.Restored.Add(float64(len(records)))
		left.Set(float64(max(0, end-position)))
		r.watch.position.Store(position)
		r.failures = 0
		if err := r.room(ctx); err != nil {
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
	r.Counts, err = countKeys(r.src.App, &r.Checkpoint, r.Store)
	return r.failed(err)
}

// apply puts one fetch of the changelog into the store. Rows are facts, so to
// apply them twice or in part is harmless as long as the position does not
// run ahead of them.
func (r *Restore) apply(records []*kgo.Record, position int64) error {
	newest := r.Store.Checkpoint()
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
		r.Store.Put(row)
	}
	if err := r.Store.Apply(position, newest); err != nil {
		return err
	}
	failpoint.Hit(failpoint.RestoreChunk)
	return nil
}

func (r *Restore) readCheckpoint() error {
	r.Checkpoint = wire.Checkpoint{Next: -1, Epoch: -1}
	b := r.Store.Checkpoint()
	if len(b) == 0 {
		return nil
	}
	c, err := wire.DecodeCheckpoint(b)
	if err != nil {
		return kafka.OperatorErrorf("%w; run the build that wrote it", err)
	}
	r.Checkpoint = c
	return nil
}

// open opens the task's directory, once nobody else in this process has it.
// A store of another cluster or topic, or one that cannot be read, is set
// aside: Kafka is the truth, the store a cache of it.
func (r *Restore) open(ctx context.Context) error {
	if err := r.src.Stores.leases.acquire(ctx, r.id); err != nil {
		return err
	}
	store, err := r.src.Stores.Host.Open(r.src.Stores.DirOf(r.id), StoreIdentity(r.src.App, r.id))
	if !errors.Is(err, state.ErrForeign) && !errors.Is(err, state.ErrUnclean) {
		_ = r.failed(err) // and not another app's, or a host's that stopped
	}
	if err != nil && untrusted(err) {
		if err := r.quarantine(err); err != nil {
			r.src.Stores.leases.release(r.id)
			return err
		}
		store, err = r.src.Stores.Host.Open(r.src.Stores.DirOf(r.id), StoreIdentity(r.src.App, r.id))
	}
	if err != nil {
		r.src.Stores.leases.release(r.id)
		return fmt.Errorf("open the store of %v: %w", r.id, err)
	}
	r.Store = store
	return nil
}

// untrusted reports that local files must not be used, whatever they hold.
func untrusted(err error) bool {
	return errors.Is(err, state.ErrCorrupt) || errors.Is(err, state.ErrForeign) || errors.Is(err, state.ErrUnclean)
}

// letGo closes the store as it is, and does what is to be done with its
// directory before somebody else may have it.
func (r *Restore) letGo(then func() error) error {
	if r.Store == nil {
		return then()
	}
	if err := r.Store.Abandon(); err != nil {
		r.log.Warn("closing a store that is given up", "error", err)
	}
	r.Store = nil
	defer r.src.Stores.leases.release(r.id)
	return then()
}

// quarantine renames the task's directory aside, for a person to look at.
func (r *Restore) quarantine(why error) error {
	dir := r.src.Stores.DirOf(r.id)
	if !errors.Is(why, state.ErrUnclean) {
		if err := r.src.Stores.rebuilds.allow(r.id.String(), why, time.Now()); err != nil {
			return err
		}
	}
	failpoint.Hit(failpoint.BeforeQuarantine)
	aside, err := state.Quarantine(dir, time.Now())
	if err != nil {
		return fmt.Errorf("set the store of %v aside: %w", r.id, err)
	}
	failpoint.Hit(failpoint.AfterQuarantine)
	r.src.Metrics.Quarantined.Inc()
	r.log.Error("local state set aside, rebuilding from the changelog", "reason", why, "quarantine_dir", aside)
	return nil
}

// StoreIdentity names what the state of a task belongs to.
func StoreIdentity(a *app.App, id app.TaskID) []byte {
	changelog := a.Topology.Topics[a.ChangelogOf(id.Topic)]
	return []byte(a.Topology.Cluster + "/" + app.TopicIDText(changelog.ID) + "/" + strconv.Itoa(int(id.Partition)))
}
