package restore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
	"oncebus/state"
	"oncebus/state/failpoint"
)

// retryPause is the pause after the first failed attempt of a restore. It doubles with each further
// failure, up to retryMax.
const retryPause, retryMax = 500 * time.Millisecond, 4 * time.Second

// Restore reads the changelog into one task's store up to the high watermark, in a goroutine of its
// own, while the worker processes its other tasks. The restore owns the store until it has finished;
// from then on the task owns it.
type Restore struct {
	background

	src       *Source
	id        app.TaskID
	changelog string
	log       *slog.Logger

	broken   error // why the given store is unusable; nil if it is usable
	startAt  int64 // the input offset at which a task without a checkpoint starts
	failures int   // attempts since the last successful read
	// failing is when the store became unusable, in Unix ns; 0 while it is usable.
	failing atomic.Int64
	watch   *stallWatch
	yield   func() // set for a standby only: called when a task needs the directory

	// These belong to the attempt in progress. base is the checkpoint of the local store and logged the
	// checkpoint of the changelog (nil for none); accepted is an operator's decision between them.
	base, logged *wire.Checkpoint
	accepted     *app.Acceptance
	local        string // localWarm or localCold; "" before the store's position was found
	tally        *tally // counts of the rows of Store; nil for none
	skips        skips  // records of the changelog that an operator decided to skip
	// fold is the newest checkpoint up to position, the changelog offset up to which the attempt has
	// read. firsts has the latest First of the rows that it has read.
	fold     wire.Fold
	position int64
	firsts   firstSeen

	// Overtaken reports that the task wrote to the changelog during the restore, so that another
	// restore must follow. Only the worker uses it.
	Overtaken bool

	// The restore writes the fields below before it closes done; others may read them after that.
	Store      *state.Store
	Checkpoint wire.Checkpoint // Next is -1 if the changelog has none
	Counts     app.Counts      // counts of keys at that checkpoint
	// Waiting has the claims in Store for whose outcome requests wait.
	Waiting  *app.Waiting
	rows     int
	from, to int64 // changelog offsets between which the restore read
	Err      error
}

// noteFailure stores the time when the store became unusable, unless err is nil, and returns err. Only errors of
// the store's files and disk count: a restore that takes long, or that waits for a broker, is not a failure.
func (r *Restore) noteFailure(err error) error {
	if err != nil {
		r.failing.CompareAndSwap(0, time.Now().UnixNano())
	}
	return err
}

// FailedFor returns how long the store has been unusable; 0 if it is usable.
func (r *Restore) FailedFor() time.Duration {
	since := r.failing.Load()
	if since == 0 {
		return 0
	}
	return time.Since(time.Unix(0, since))
}

// awaitDisk waits until the disk has enough free space.
func (r *Restore) awaitDisk(ctx context.Context) error {
	_ = r.noteFailure(r.src.Stores.Disk.paused()) // not returned: the next line waits until the pause ends
	return r.src.Stores.Disk.awaitSpace(ctx)
}

// Start restores the store of a task; if store is nil, it opens the store first. broken says why the
// given store is unusable; nil if it is usable. startAt is the input offset at which a task without a
// checkpoint starts. The restore's goroutine calls finished at its end.
func Start(ctx context.Context, src *Source, id app.TaskID, log *slog.Logger, store *state.Store, waiting *app.Waiting, broken error, startAt int64, finished func()) *Restore {
	r := &Restore{src: src, id: id, changelog: src.App.ChangelogOf(id.Topic), log: log, Store: store, Waiting: waiting, broken: broken, startAt: startAt, skips: skips{}}
	r.start(ctx, finished, func(ctx context.Context) { r.Err = r.run(ctx) })
	return r
}

// run makes attempts until one succeeds or an error ends the restore.
func (r *Restore) run(ctx context.Context) error {
	began := time.Now()
	r.watch = newStallWatch(ctx, r)
	defer r.watch.stop()
	err := r.noteFailure(r.broken)
	for {
		if err == nil {
			err = r.once(ctx)
		}
		if unreadable, ok := errors.AsType[*wire.UnreadableError](err); ok {
			if err = r.awaitSkip(ctx, unreadable); err == nil {
				continue
			}
		}
		if err == nil {
			r.src.Metrics.restoreTime.Observe(time.Since(began).Seconds())
			r.src.Metrics.restores.WithLabelValues(r.local).Inc()
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

// noteLocal records whether the store already contained state when the restore began. A position counts as
// state, too, because the store of a standby may have rows without a checkpoint.
func (r *Restore) noteLocal() {
	if r.local != "" {
		return
	}
	if r.local = localCold; r.base != nil || r.Store.Position() > 0 {
		r.local = localWarm
	}
}

// remedy is what a restore does after an error.
type remedy uint8

const (
	retry           remedy = iota // keep the store open
	reopen                        // close and open the store, which accepts no work now; its files may be valid
	awaitOperator                 // wait until the operator acts; meanwhile fail-open routes bypass the store
	quarantineStore               // rename the store's directory
	giveUp                        // end the restore with the error
)

// chooseRemedy returns what to do after an error.
func (r *Restore) chooseRemedy(err error) remedy {
	switch {
	case errors.Is(err, ErrTooOften) && len(r.src.App.FailOpen[r.id.Topic]) > 0:
		return awaitOperator
	case errors.Is(err, kafka.ErrOperator):
		return giveUp
	case untrusted(err):
		return quarantineStore
	case errors.Is(err, kerr.OffsetOutOfRange):
		return retry // the changelog was trimmed during the restore: decide again
	case kafka.Classify(err) == kafka.Stop:
		return giveUp
	case r.Store != nil && (r.broken != nil && errors.Is(err, r.broken) || r.Store.Err() != nil):
		return reopen
	}
	return retry
}

// recover applies the remedy for an error before the next attempt, or returns the
// error that ends the restore.
func (r *Restore) recover(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	todo := r.chooseRemedy(err)
	if todo == quarantineStore {
		if err = r.abandon(func() error { return r.quarantine(err) }); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		todo = r.chooseRemedy(err)
	}
	switch todo {
	case giveUp:
		return err
	case awaitOperator:
		r.log.Error("local store out of use: too many rebuilds", "error", err)
		r.src.Explain(r.id, err.Error())
		return kafka.Pause(ctx, retryMax)
	case reopen:
		if err := r.abandon(func() error { return nil }); err != nil {
			return err
		}
	case retry, quarantineStore: // the quarantine itself failed
	}
	r.log.Warn("restore failed, retrying", "error", err)
	r.src.Explain(r.id, "restore failed, retrying: "+err.Error())
	wait := min(retryPause<<min(r.failures, 8), retryMax)
	r.failures++
	return kafka.Pause(ctx, wait)
}

// errStale reports that a store's position is outside of the changelog. Rebuilds for this reason count towards
// the limit, like the rebuilds of damaged stores.
var errStale = errors.New("local state is out of step with the changelog")

// errTrimmed reports that the former owner of the task trimmed the changelog during the restore. The next
// attempt lists the start of the changelog again, and makes a new decision.
var errTrimmed = errors.New("changelog was trimmed during the restore")

// awaitMove handles a partition that was added to a topic after the app began. If the topic is
// prepartitioned, the task waits until the process reads the topic through the routing stage (oncebus move
// --to-routed): it must not judge the new partition, because keys in it may have rows in other tasks. For
// another topic, an added partition is an operator error.
func (r *Restore) awaitMove(ctx context.Context, began int32) error {
	if r.id.Topic == r.src.App.Topology.Repartition {
		return app.ErrAddedPartition(r.id.Topic, r.id.Partition, began)
	}
	text := app.AddedPartitionText(r.id.Topic, r.id.Partition, began)
	r.log.Error("prepartitioned topic has got a partition, it waits", "reason", text)
	r.src.Explain(r.id, text)
	<-ctx.Done()
	return ctx.Err()
}

// once makes one attempt: it opens the store if needed, and reads the changelog from the store's position to the
// high watermark. It reads the watermark after the fetch of the group's stable offset, because that fetch waits
// until the last transaction of the task's former owner has ended. After the fetch, the transaction either has
// committed, and its rows are below the watermark, or it never commits (invariant 4, hazards B1 and B2).
func (r *Restore) once(ctx context.Context) error {
	if err := r.awaitDisk(ctx); err != nil {
		return err
	}
	info := r.src.App.Topology.Topics[r.changelog]
	if r.id.Partition >= info.Partitions {
		return r.awaitMove(ctx, info.Partitions)
	}
	if r.Store == nil {
		if err := r.open(ctx); err != nil {
			return err
		}
	}
	reader := r.src.Leaders.NewReader(r.changelog, info.ID, r.id.Partition)
	reader.Skip(r.skips.has)
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return err
	}
	left := r.src.Metrics.restoreLeft.WithLabelValues(r.id.Topic, strconv.Itoa(int(r.id.Partition)))
	left.Set(float64(end - start))
	r.watch.position.Store(start)
	r.watch.end.Store(end)
	from, err := r.locate(ctx, reader, start, end)
	if err != nil {
		return err
	}
	r.noteLocal()
	r.from, r.to = from, end
	failpoint.Hit(failpoint.RestoreStart)
	left.Set(float64(max(0, end-from)))
	r.watch.position.Store(from)
	r.position, r.firsts = 0, firstSeen{}
	err = reader.Read(ctx, from, end, func(records []*kgo.Record, position int64) error {
		left.Set(float64(max(0, end-position)))
		r.watch.position.Store(position)
		r.failures = 0
		if err := r.awaitDisk(ctx); err != nil {
			return err
		}
		err := r.apply(records, position)
		if errors.As(err, new(*wire.UnreadableError)) {
			return err // a record that cannot be read is no failure of the store
		}
		return r.noteFailure(err)
	})
	switch {
	case errors.Is(err, kerr.OffsetOutOfRange):
		return fmt.Errorf("%w: %v", errTrimmed, err) //nolint:errorlint // the code would end the restore
	case err != nil:
		return err
	}
	if err := r.conclude(start); err != nil {
		return err
	}
	if err := r.checkTail(ctx); err != nil {
		return err
	}
	if err := r.checkInput(ctx); err != nil {
		return err
	}
	r.dropRefusal(ctx)
	r.Counts, err = countKeys(ctx, r.src.App, &r.Checkpoint, r.Store, r.tally, r.src.Counting)
	if err == nil {
		r.Waiting, err = FindWaiting(ctx, r.src.App, &r.Checkpoint, &r.Counts, r.Store, r.Waiting)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return r.noteFailure(err)
}

// apply puts one fetch of the changelog into the store, and its checkpoints into the fold. After an error a row
// may be applied twice, or only a part of a fetch may be applied. That is safe as long as the store's position
// is not after rows that were not applied. While the store does not get the checkpoints (see keepsUp), its
// position does not change.
func (r *Restore) apply(records []*kgo.Record, position int64) error {
	stored := r.Store.Checkpoint()
	for _, rec := range records {
		if number, ok := wire.CheckpointNumber(rec.Key); ok {
			var err error
			if stored, err = r.addCheckpoint(stored, number, rec.Value); err == nil && number == 0 {
				err = checkCounts(r.src.App, &r.fold)
			}
			if err != nil {
				return wire.Unreadable(rec, err)
			}
			continue
		}
		if err := r.applyRows(rec); err != nil {
			return err
		}
	}
	r.position = position
	if !r.keepsUp() {
		position = r.Store.Position()
	}
	if err := r.Store.Apply(position, stored); err != nil {
		return err
	}
	failpoint.Hit(failpoint.RestoreChunk)
	return nil
}

// applyOnDisk returns apply with a wait for free disk space before it.
func (r *Restore) applyOnDisk(ctx context.Context) func([]*kgo.Record, int64) error {
	return func(records []*kgo.Record, position int64) error {
		if err := r.awaitDisk(ctx); err != nil {
			return err
		}
		return r.apply(records, position)
	}
}

// applyRows puts the rows of one changelog record into the store.
func (r *Restore) applyRows(rec *kgo.Record) error {
	rows := 0
	for row, err := range wire.RowsOf(rec) {
		if err == nil {
			err = checkClaim(row)
		}
		if err != nil {
			return wire.Unreadable(rec, err)
		}
		rows++
		if err := r.put(row); err != nil {
			return err
		}
		r.firsts.note(row)
		if r.Waiting != nil {
			if err := r.Waiting.Read(row); err != nil {
				return err
			}
		}
	}
	r.rows += rows
	if r.yield != nil {
		r.src.Metrics.standbyRows.Add(float64(rows))
	} else {
		r.src.Metrics.Restored.Add(float64(rows))
	}
	return nil
}

// open opens the task's store, once no other owner in this process has its directory. It quarantines a
// damaged store and a store of another cluster or topic, because the changelog can rebuild it.
func (r *Restore) open(ctx context.Context) error {
	if err := r.acquire(ctx); err != nil {
		return err
	}
	store, err := r.src.Stores.Host.OpenUntil(ctx, r.src.Stores.DirOf(r.id), StoreIdentity(r.src.App, r.id))
	if ctx.Err() == nil && !errors.Is(err, state.ErrForeign) && !errors.Is(err, state.ErrUnclean) {
		_ = r.noteFailure(err) // a store of another app, or after a host crash, is no failure
	}
	if err != nil && untrusted(err) {
		if err := r.quarantine(err); err != nil {
			r.src.Stores.leases.release(r.id)
			return err
		}
		store, err = r.src.Stores.Host.OpenUntil(ctx, r.src.Stores.DirOf(r.id), StoreIdentity(r.src.App, r.id))
	}
	if err != nil {
		r.src.Stores.leases.release(r.id)
		return fmt.Errorf("open the store of %v: %w", r.id, err)
	}
	r.Store, r.local = store, ""
	r.tally = r.src.Stores.tallies.take(r.id, store.Position())
	return nil
}

// acquire takes the directory. A standby takes it only if no task has it.
func (r *Restore) acquire(ctx context.Context) error {
	if r.yield == nil {
		return r.src.Stores.leases.acquire(ctx, r.id)
	}
	if !r.src.Stores.leases.acquireUnlessTaken(r.id, r.yield) {
		return errTaken
	}
	return nil
}

// untrusted reports whether err says that the store's files must not be used.
func untrusted(err error) bool {
	return errors.Is(err, state.ErrCorrupt) || errors.Is(err, state.ErrForeign) || errors.Is(err, state.ErrUnclean)
}

// abandon closes the store without a flush, calls then, and frees the directory. Nothing else in this process
// can open the directory before then has returned.
func (r *Restore) abandon(then func() error) error {
	if r.Store == nil {
		return then()
	}
	if err := r.Store.Abandon(); err != nil {
		r.log.Warn("close of an abandoned store failed", "error", err)
	}
	r.Store = nil
	defer r.src.Stores.leases.release(r.id)
	return then()
}

// quarantine renames the task's directory, so that an operator can examine the files. The next open
// creates a new one.
func (r *Restore) quarantine(why error) error {
	dir := r.src.Stores.DirOf(r.id)
	if !errors.Is(why, state.ErrUnclean) {
		if err := r.src.Stores.rebuilds.allow(r.id.String(), why, time.Now()); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		r.log.Warn("rows of the local store dropped, it had no files yet", "reason", why)
		return nil
	}
	failpoint.Hit(failpoint.BeforeQuarantine)
	quarantined, err := state.Quarantine(dir, time.Now())
	if err != nil {
		return fmt.Errorf("quarantine the store of %v: %w", r.id, err)
	}
	failpoint.Hit(failpoint.AfterQuarantine)
	r.src.Metrics.Quarantined.Inc()
	r.log.Error("local store quarantined", "reason", why, "quarantine_dir", quarantined)
	return nil
}

// StoreIdentity returns the identity of a task's store: the cluster, the topic id of the changelog, and
// the partition. A store with another identity is foreign.
func StoreIdentity(a *app.App, id app.TaskID) []byte {
	changelog := a.Topology.Topics[a.ChangelogOf(id.Topic)]
	return []byte(a.Topology.Cluster + "/" + app.TopicIDText(changelog.ID) + "/" + strconv.Itoa(int(id.Partition)))
}
