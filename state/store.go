package state

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"oncebus/dedup"
)

// Store is the state of one task. One goroutine, the owner, calls its methods, except those documented as
// safe from any goroutine. The store's background goroutine flushes, merges, evicts and collects garbage.
type Store struct {
	host *Host
	dir  string
	// earlier says by how much this store flushes before the limits in the settings are reached, in steps
	// (flushSpreadSteps).
	earlier int
	db      *database
	log     *slog.Logger

	// Only the owner uses these.
	active     *table // rows since the last freeze, those of the open transaction included
	ownerView  *view
	checkpoint []byte // nil before the first
	dirtySince time.Time
	lookups    [answers]uint64
	closed     bool
	unwritten  bool // the store has neither files nor a flush

	// Only the background goroutine uses these.
	manifest     *manifest
	owesToken    bool   // the background goroutine has to return freezeToken once flush and merges allow it
	garbage      uint64 // bytes of deleted blocks that the value log still stores
	filled       uint64 // garbage when the memtable was last filled; see fillMemTable
	markedOpen   bool   // STATUS is open, no longer opening
	filesChanged bool   // the files changed since disk was measured

	// freezeToken contains a token when the owner may freeze the active table.
	freezeToken    chan struct{}
	frozen         chan *frozenTable
	wakeUps        chan struct{}
	quit           chan struct{} // closed: the background goroutine has to stop
	backgroundDone chan struct{} // closed: the background goroutine has returned
	failed         chan struct{} // closed: err is set

	releaseDue  atomic.Bool // see releaseMapped
	position    atomic.Int64
	durable     atomic.Int64
	recentRows  atomic.Int64
	evicted     atomic.Uint64
	orphans     atomic.Uint64
	disk        atomic.Uint64 // disk space of the files, measured after they changed
	evictBounds atomic.Pointer[[256]int64]

	mu          sync.Mutex // never locked during I/O
	currentView *view
	deadRuns    []*run
	err         error
}

// Get returns the newest row of d: from the open transaction, the recent rows,
// or the runs from newest to oldest. The caller must not change the row's
// Result. After an error the store has failed; the error wraps ErrCorrupt if a
// page is unreadable.
func (s *Store) Get(d dedup.Digest) (row dedup.Row, found bool, err error) {
	hash := s.host.seed.hash(&d)
	if slot, ordinal := s.active.find(hash, &d); slot != nil {
		if ordinal < s.active.applied.rows {
			s.lookups[answerRecent]++
		} else {
			s.lookups[answerOverlay]++
		}
		return s.active.row(slot), true, nil
	}
	if f := s.ownerView.frozen; f != nil {
		if slot, _ := f.table.find(hash, &d); slot != nil {
			s.lookups[answerRecent]++
			return f.table.row(slot), true, nil
		}
	}
	answer := answerFilter
	for _, r := range s.ownerView.runs {
		if !r.filter.has(&d) {
			continue
		}
		row, found, err := s.readRow(r, d)
		if err != nil {
			s.fail(err)
			return dedup.Row{}, false, err
		}
		if found {
			s.lookups[answerPage]++
			return row, true, nil
		}
		answer = answerFalseHit
	}
	s.lookups[answer]++
	return dedup.Row{}, false, nil
}

// readRow looks d up in the one page of r that can contain it.
func (s *Store) readRow(r *run, d dedup.Digest) (row dedup.Row, found bool, err error) {
	err = s.db.readPage(r, pageOf(prefix(&d), r.pages), func(p page) error {
		i, onPage := p.find(&d)
		if !onPage {
			return nil
		}
		var err error
		if row, err = p.row(i); err != nil {
			return err
		}
		if row.Result != nil {
			row.Result = append([]byte{}, row.Result...) // Badger reuses the page's memory
		}
		found = true
		return nil
	})
	return row, found, err
}

// Put adds a row to the open transaction and copies its Result.
func (s *Store) Put(row dedup.Row) {
	if row.Result != nil {
		row.Result = append([]byte{}, row.Result...)
	}
	s.active.put(s.host.seed.hash(&row.Digest), slotOf(&row), extraOf(&row))
}

// Discard removes the rows of the open transaction after an abort.
func (s *Store) Discard() {
	s.active.rollback()
	s.refreshView()
	s.publishCounters()
}

// Apply adds the rows of the committed transaction to the store. position is the first changelog offset whose
// rows the store does not have; it must not decrease. The store copies checkpoint, which is any bytes that the
// caller wants to store together with position.
//
// Apply returns when the rows are in memory. It blocks only when flushes or
// merges fall behind (backpressure). A lower position or an oversized
// checkpoint changes nothing. After any other error the store has failed:
// close it, open it again and restore the missing rows from the changelog.
func (s *Store) Apply(position int64, checkpoint []byte) error {
	if err := s.Err(); err != nil {
		return err
	}
	if at := s.position.Load(); position < at {
		return fmt.Errorf("apply up to changelog offset %d: the store is already at offset %d", position, at)
	}
	return s.apply(position, checkpoint)
}

// ApplyMore does what Apply does, with a checkpoint that is the previous checkpoint with the bytes more
// appended. Its cost depends on the length of more only, however long the checkpoint is.
func (s *Store) ApplyMore(position int64, more []byte) error {
	if err := s.Err(); err != nil {
		return err
	}
	if at := s.position.Load(); position < at {
		return fmt.Errorf("apply up to changelog offset %d: the store is already at offset %d", position, at)
	}
	if err := checkCheckpoint(position, len(s.checkpoint)+len(more)); err != nil {
		return err
	}
	s.checkpoint = append(s.checkpoint, more...)
	return s.applyRows(position)
}

// Rebase does what Apply does, but its position may be lower than before. It is for a changelog that lost its
// last records. The store keeps its rows. The files get the new position with the next flush.
func (s *Store) Rebase(position int64, checkpoint []byte) error {
	if err := s.Err(); err != nil {
		return err
	}
	return s.apply(position, checkpoint)
}

func (s *Store) apply(position int64, checkpoint []byte) error {
	if err := checkCheckpoint(position, len(checkpoint)); err != nil {
		return err
	}
	s.checkpoint = append(s.checkpoint[:0], checkpoint...)
	if s.checkpoint == nil && checkpoint != nil {
		s.checkpoint = []byte{}
	}
	return s.applyRows(position)
}

func checkCheckpoint(position int64, size int) error {
	if size > maxCheckpointBytes {
		return fmt.Errorf("apply up to changelog offset %d: checkpoint has %d bytes, more than the limit of %d", position, size, maxCheckpointBytes)
	}
	return nil
}

// applyRows adds the rows of the committed transaction to the store. The caller has set the checkpoint.
func (s *Store) applyRows(position int64) error {
	s.active.commit()
	s.position.Store(position)
	if s.dirtySince.IsZero() {
		s.dirtySince = time.Now()
	}
	s.publishCounters()
	s.refreshView()
	return s.freezeIfDue()
}

// FlushAged begins to write the rows to disk if some are older than FlushAge. Apply does so, too, but a store
// without new transactions needs a caller of FlushAged. Otherwise its last rows stay only in memory and in the
// changelog, however old they are, and after a kill they must be restored from the changelog.
func (s *Store) FlushAged() {
	if s.dirtySince.IsZero() || time.Since(s.dirtySince) < sooner(s.host.cfg.FlushAge, s.earlier) {
		return
	}
	select {
	case <-s.freezeToken:
		s.freezeTable()
	default: // the flush before this one is still in progress
	}
}

// flushSpreadSteps and flushSpread spread the flushes of a process's stores over the last quarter of the time
// to a flush. The tasks of one topic start at the same time and their tables fill up at the same time. If all
// stores also flushed at the same time, the events of all tasks would wait for the disk at that moment.
const flushSpreadSteps, flushSpread = 1024, 256

// flushesEarlier returns by how many steps the store in dir flushes earlier. The number depends only on the
// name of the directory, so a store has the same number after a restart and on another machine.
func flushesEarlier(dir string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(filepath.Base(dir))) // never fails
	return int(h.Sum32() % flushSpread)
}

// sooner returns a limit of rows or time, reduced by the part by which a store flushes earlier.
func sooner[T int | time.Duration](limit T, earlier int) T {
	return limit - limit/flushSpreadSteps*T(earlier)
}

// freezeIfDue freezes the active table when it is full or older than FlushAge.
// Only a full table blocks the owner until the background goroutine is ready.
func (s *Store) freezeIfDue() error {
	if s.active.weight() < sooner(s.host.rowsPerStore(), s.earlier) {
		s.FlushAged()
		return nil
	}
	select {
	case <-s.freezeToken:
		s.freezeTable()
		return nil
	default:
	}
	now := time.Now()
	defer func() { s.host.metrics.backpressure.Add(time.Since(now).Seconds()) }()
	select {
	case <-s.freezeToken:
		s.freezeTable()
		return nil
	case <-s.failed:
		return s.Err()
	}
}

// freezeTable sends the active table to the background goroutine, without the rows of the
// open transaction. The caller has received the freeze token, so the send does not block.
func (s *Store) freezeTable() *frozenTable {
	f := &frozenTable{table: s.active, position: s.position.Load(), done: make(chan struct{})}
	if s.checkpoint != nil {
		f.checkpoint = append([]byte{}, s.checkpoint...)
	}
	s.unwritten = false
	s.active = s.host.getTable()
	f.table.moveOpen(s.active)
	s.recentRows.Store(0)
	s.dirtySince = time.Time{}
	s.publishView(func(old *view) *view { return &view{frozen: f, runs: old.runs} })
	s.refreshView()
	s.frozen <- f
	return f
}

// Position returns the first changelog offset whose rows the store does not have, neither in memory nor in
// files. Safe from any goroutine.
func (s *Store) Position() int64 { return s.position.Load() }

// DurablePosition returns the first changelog offset whose rows are not in the files. Safe from any goroutine.
func (s *Store) DurablePosition() int64 { return s.durable.Load() }

// Checkpoint returns a copy of the checkpoint of the last Apply, or nil.
func (s *Store) Checkpoint() []byte {
	if s.checkpoint == nil {
		return nil
	}
	return append([]byte{}, s.checkpoint...)
}

// EvictBefore permits the store to evict rows of namespace id n with First
// below before[n]. Eviction happens later. Until then Get may return such a
// row, or an older expired row of its digest. Safe from any goroutine.
func (s *Store) EvictBefore(before [256]int64) {
	s.evictBounds.Store(&before)
	s.wakeBackground()
}

// Err returns why the store has failed, or nil. Safe from any goroutine.
func (s *Store) Err() error {
	select {
	case <-s.failed:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.err
	default:
		return nil
	}
}

// fail stores the first error and marks the store as failed.
func (s *Store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	close(s.failed)
	if errors.Is(err, ErrCorrupt) {
		s.host.metrics.corruptStores.Inc()
	}
}

// Flush makes all applied rows durable and returns when they are.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.Err(); err != nil {
		return err
	}
	s.refreshView()
	if s.dirtySince.IsZero() {
		// There is no row since the last freeze, but the flush of that freeze may still be running.
		if f := s.ownerView.frozen; f != nil {
			return s.awaitFlush(ctx, f)
		}
		return nil
	}
	if f := s.ownerView.frozen; f != nil {
		if err := s.awaitFlush(ctx, f); err != nil {
			return err
		}
	}
	select {
	case <-s.freezeToken:
	case <-s.failed:
		return s.Err()
	case <-ctx.Done():
		return fmt.Errorf("flush up to changelog offset %d: %w", s.position.Load(), ctx.Err())
	}
	err := s.awaitFlush(ctx, s.freezeTable())
	s.refreshView()
	return err
}

func (s *Store) awaitFlush(ctx context.Context, f *frozenTable) error {
	select {
	case <-f.done:
		return nil
	case <-s.failed:
		return s.Err()
	case <-ctx.Done():
		return fmt.Errorf("flush up to changelog offset %d: %w", f.position, ctx.Err())
	}
}

// createdAtClose is a number of open stores: if the process has more, a store without files does not create
// files when it closes. Without this limit a stop of 1,000 tasks in their first minute would create 1,000
// databases, at 10 ms of CPU each, which may take longer than ONCEBUS_STOP_TIMEOUT. The next start would read
// these databases, which takes longer than reading their changelogs. A start with more tasks logs a warning.
const createdAtClose = 400

// Close flushes and closes the store. A store that was never flushed is closed without a flush if the process
// has more than createdAtClose stores; no row is lost, because its rows are in the changelog. A failed store
// closes without a flush and returns the failure. Close always releases the directory's lock; a second call
// does nothing.
func (s *Store) Close() error {
	if s.closed {
		return nil
	}
	if s.unwritten && s.host.openStores.Load() > createdAtClose {
		return errors.Join(s.Err(), s.stop())
	}
	return errors.Join(s.Flush(context.Background()), s.stop())
}

// Abandon closes the store without a flush. The next restore reads the changelog from DurablePosition on.
func (s *Store) Abandon() error {
	if s.closed {
		return nil
	}
	return s.stop()
}

func (s *Store) stop() error {
	s.closed = true
	close(s.quit)
	<-s.backgroundDone
	s.publishCounters()
	s.host.removeStore(s)
	var deleteErr error
	if s.Err() == nil {
		s.refreshView()
		deleteErr = s.deleteDeadRuns()
	}
	s.host.putTable(s.active)
	if !s.db.hasFiles() {
		return nil // there is no STATUS either, or STATUS stays as the failed creation left it
	}
	if err := s.db.close(); err != nil {
		return errors.Join(deleteErr, fmt.Errorf("close %s: %w", s.dir, err))
	}
	if deleteErr != nil || s.Err() != nil {
		return deleteErr // the content of the files is unknown: STATUS stays open
	}
	return status{state: statusClosed, boot: s.host.boot, position: s.durable.Load()}.write(s.dir)
}
