package restore

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// StandbyPoll is the time after which a standby lists the end of its changelog again.
const StandbyPoll = time.Second

// standbyRetry is the pause after a standby that ended with an error, before Follow may start it again.
const standbyRetry = 5 * time.Second

// errTaken reports that a task of this process has the directory.
var errTaken = errors.New("a task of this process has the store")

// errUndecided reports that a restore would not simply read the changelog, but would have to make a decision.
// The standby leaves that decision to the restore of the task.
var errUndecided = errors.New("local state and changelog do not fit together")

// Standbys follow the changelogs of tasks of other processes, so that a restore after a takeover has to read
// only the end of a changelog. They also follow the changelogs of the new tasks that a move of the app's
// partitions prepares. A standby is a restore that is interrupted when a task of this process needs the
// directory. It judges nothing, and nothing depends on it.
type Standbys struct {
	log *slog.Logger

	mu       sync.Mutex // not locked while a standby ends, because closing its store may take long
	closed   bool
	running  map[app.TaskID]*standby
	stopping map[app.TaskID]*standby // standbys that must end before their tasks can be followed again
}

// NewStandbys returns Standbys that follow no task yet.
func NewStandbys(log *slog.Logger) *Standbys {
	return &Standbys{log: log, running: map[app.TaskID]*standby{}, stopping: map[app.TaskID]*standby{}}
}

// StandbyState describes one standby, for people and scripts.
type StandbyState struct {
	Task     string `json:"task"`
	Position int64  `json:"position"`    // in the changelog
	Lag      int64  `json:"lag_records"` // changelog offsets that the standby has not read; -1 while not known
	// CaughtUp reports that the standby has reached the end of the changelog at least once.
	CaughtUp bool `json:"caught_up"`
}

// Follow makes wanted the set of tasks that are followed, each with the source that its restore would use. It
// starts a standby again if the standby has ended, or began with another source. It waits until the standbys
// that are no longer wanted have ended; if ctx is done before, Close waits for them.
func (s *Standbys) Follow(ctx context.Context, wanted map[app.TaskID]*Source) {
	s.mu.Lock()
	ending := s.stop(wanted)
	s.mu.Unlock()
	for _, b := range ending {
		select {
		case <-b.done:
		case <-ctx.Done():
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	maps.DeleteFunc(s.stopping, func(_ app.TaskID, b *standby) bool { return b.Finished() })
	for id, src := range wanted {
		if s.running[id] == nil && s.stopping[id] == nil {
			s.running[id] = s.start(ctx, src, id)
		}
	}
}

// stop cancels the standbys that have ended or are not wanted. It returns all standbys for whose end
// somebody must wait, also those that other calls canceled. The caller has locked s.mu.
func (s *Standbys) stop(wanted map[app.TaskID]*Source) []*standby {
	for id, b := range s.running {
		if b.Finished() || b.r.src != wanted[id] {
			b.cancel()
			delete(s.running, id)
			s.stopping[id] = b
		}
	}
	return slices.Collect(maps.Values(s.stopping))
}

// Close stops all standbys and closes their stores.
func (s *Standbys) Close() {
	s.mu.Lock()
	s.closed = true // set under the lock that stop uses, so that a Follow that waits now starts nothing
	ending := s.stop(nil)
	s.mu.Unlock()
	for _, b := range ending {
		b.Stop()
	}
}

// State returns the running standbys, in the order of their tasks.
func (s *Standbys) State() []StandbyState {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []StandbyState
	for id, b := range s.running {
		if !b.Finished() {
			all = append(all, StandbyState{id.String(), b.position.Load(), b.lag.Load(), b.caughtUp.Load()})
		}
	}
	slices.SortFunc(all, func(a, b StandbyState) int { return strings.Compare(a.Task, b.Task) })
	return all
}

// standby follows the changelog of one task.
type standby struct {
	background

	r             *Restore
	reader        *kafka.Reader
	position, lag atomic.Int64
	caughtUp      atomic.Bool
}

func (s *Standbys) start(ctx context.Context, src *Source, id app.TaskID) *standby {
	changelog := src.App.ChangelogOf(id.Topic)
	b := &standby{
		r:      &Restore{src: src, id: id, changelog: changelog, log: s.log.With("task", id.String()), skips: skips{}},
		reader: src.Leaders.NewReader(changelog, src.App.Topology.Topics[changelog].ID, id.Partition),
	}
	b.reader.Skip(b.r.skips.has)
	b.lag.Store(-1)
	ctx, yield := context.WithCancel(ctx)
	b.r.yield = yield
	b.start(ctx, yield, b.run)
	return b
}

// run follows the changelog until ctx is done or an error occurs; Follow starts the standby again after
// an error.
func (b *standby) run(ctx context.Context) {
	labels := []string{b.r.id.Topic, strconv.Itoa(int(b.r.id.Partition))}
	defer b.r.src.Metrics.standbyLag.DeleteLabelValues(labels...)
	err := b.follow(ctx, func(lag int64) {
		b.lag.Store(lag)
		b.r.src.Metrics.standbyLag.WithLabelValues(labels...).Set(float64(lag))
	})
	rows := b.r.rows
	failed := b.close()
	if ctx.Err() != nil {
		err = failed
	}
	switch {
	case err == nil:
		b.r.log.Info("standby ended", "position", b.position.Load(), "rows", rows)
		return
	case errors.Is(err, errTaken):
	default:
		b.r.log.Warn("standby ended, a restore reads what it lacks", "position", b.position.Load(), "reason", err)
	}
	_ = kafka.Pause(ctx, standbyRetry)
}

// close closes the store with a flush and frees the directory.
func (b *standby) close() error {
	if b.r.Store == nil {
		return nil
	}
	defer b.r.src.Stores.Release(b.r.id)
	err := b.r.Store.Close()
	if err == nil {
		b.r.src.Stores.tallies.keep(b.r.id, b.r.Store.Position(), b.r.tally)
	}
	return err
}

// tally counts the rows of the task, until the task's changelog has a checkpoint with counts.
func (b *standby) tally(ctx context.Context) (err error) {
	switch {
	case b.r.fold.Has() && b.r.fold.Newest().Sequence > 0:
		b.r.tally = nil
	case b.r.tally == nil:
		b.r.tally, err = newTally(ctx, b.r.src.App, b.r.Store)
	}
	return err
}

// follow opens the store and reads the changelog up to the last stable offset, again and again. It returns
// only with an error. note gets the number of changelog offsets that the store lacks.
func (b *standby) follow(ctx context.Context, note func(lag int64)) error {
	if err := b.r.awaitDisk(ctx); err != nil {
		return err
	}
	if err := b.r.open(ctx); err != nil {
		return err
	}
	from, err := b.begin(ctx)
	if err != nil {
		return err
	}
	for {
		b.position.Store(from)
		end, err := b.reader.StableEnd(ctx)
		switch {
		case err != nil && kafka.Classify(err) != kafka.Retry:
			return err
		case err == nil:
			note(max(0, end-from))
			if err := b.read(ctx, from, end, note); err != nil {
				return err
			}
			from = max(from, end)
			b.position.Store(from)
			note(0)
			if err := b.tally(ctx); err != nil {
				return err
			}
			b.caughtUp.Store(true)
			b.evict()
		}
		if err := kafka.Pause(ctx, StandbyPoll); err != nil {
			return err
		}
	}
}

// read reads the changelog from one offset to another. It leaves out records that an operator decided
// to skip.
func (b *standby) read(ctx context.Context, from, end int64, note func(lag int64)) error {
	apply := b.r.applyOnDisk(ctx)
	err := b.reader.Read(ctx, from, end, func(records []*kgo.Record, position int64) error {
		if err := apply(records, position); err != nil {
			return err
		}
		b.position.Store(position)
		note(max(0, end-position))
		return nil
	})
	if b.r.skipsDecided(ctx, err) {
		return b.read(ctx, b.position.Load(), end, note)
	}
	return err
}

// begin decides, as a restore does, from which offset to read. It refuses a changelog that lacks rows, because a
// later restore would take the rows of this store for all rows.
func (b *standby) begin(ctx context.Context) (int64, error) {
	start, end, err := b.reader.Bounds(ctx)
	if err != nil {
		return 0, err
	}
	f, err := b.r.gather(ctx, b.reader, start, end)
	if b.r.skipsDecided(ctx, err) {
		return b.begin(ctx)
	}
	if err != nil {
		return 0, err
	}
	b.r.base = f.stored
	switch chosen, _ := decide(f); {
	case chosen == readTail:
		return f.position, nil
	case chosen == rebuild && f.position <= end+1:
		return start, b.r.renew(ctx, false)
	}
	return 0, errUndecided
}

// evict makes the store drop rows that no event needs, as the task does. If the task judges by another route set
// than the one that this process has read, this process does not know the windows, and evict drops no row.
func (b *standby) evict() {
	if c, ok := evictable(b.r.src, &b.r.fold); ok {
		b.r.Store.EvictBefore(b.r.src.App.Horizons(&c))
	}
	b.r.Store.FlushAged()
}

// evictable returns the newest checkpoint, by which rows can be evicted. ok reports whether this process knows
// the windows by which the task judges.
func evictable(src *Source, fold *wire.Fold) (c wire.Checkpoint, ok bool) {
	if !fold.Has() || !fold.IsWhole() {
		return c, false
	}
	c = fold.Newest()
	return c, c.Set == src.App.Set
}
