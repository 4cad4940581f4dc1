package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"oncebus/dedup"
)

// Store is the state of one task. Except where a method says otherwise it
// belongs to one goroutine, its owner; a keeper goroutine of its own flushes,
// merges, expires and collects in the background.
type Store struct {
	host *Host
	dir  string
	db   *database
	log  *slog.Logger

	// The owner's.
	overlay    *table // rows of the open transaction
	active     *table // committed rows since the last freeze
	mine       *view
	checkpoint []byte // nil before the first
	dirtySince time.Time
	lookups    [answers]uint64
	closed     bool

	// The keeper's.
	manifest *manifest
	owesRoom bool   // the owner waits for merges before the next freeze
	garbage  uint64 // bytes deleted and not yet collected
	alive    bool   // the status says that the store is open

	// room holds a token when the owner may freeze the active table.
	room   chan struct{}
	frozen chan *frozen
	nudge  chan struct{}
	quit   chan struct{} // closed: the keeper stops
	kept   chan struct{} // closed: the keeper has stopped
	failed chan struct{} // closed: err is set

	position   atomic.Int64
	durable    atomic.Int64
	recentRows atomic.Int64
	evicted    atomic.Uint64
	orphans    atomic.Uint64
	before     atomic.Pointer[[256]int64]

	mu      sync.Mutex // held briefly, never across I/O
	current *view
	dead    []*run
	err     error
}

// Get returns the newest row held for d: from the open transaction, the recent
// rows, or the runs from newest to oldest. The row's Result must not be
// changed. An error means that the store cannot be used any more; it wraps
// ErrCorrupt if a page cannot be read.
func (s *Store) Get(d dedup.Digest) (row dedup.Row, held bool, err error) {
	hash := s.host.seed.hash(&d)
	if slot := s.overlay.find(hash, &d); slot != nil {
		s.lookups[answerOverlay]++
		return s.overlay.row(slot), true, nil
	}
	if slot := s.active.find(hash, &d); slot != nil {
		s.lookups[answerRecent]++
		return s.active.row(slot), true, nil
	}
	if f := s.mine.frozen; f != nil {
		if slot := f.table.find(hash, &d); slot != nil {
			s.lookups[answerRecent]++
			return f.table.row(slot), true, nil
		}
	}
	answer := answerFilter
	for _, r := range s.mine.runs {
		if !r.filter.has(&d) {
			continue
		}
		row, held, err := s.readRow(r, d)
		if err != nil {
			s.fail(err)
			return dedup.Row{}, false, err
		}
		if held {
			s.lookups[answerPage]++
			return row, true, nil
		}
		answer = answerFalseHit
	}
	s.lookups[answer]++
	return dedup.Row{}, false, nil
}

// readRow looks d up in the one page of r that can hold it.
func (s *Store) readRow(r *run, d dedup.Digest) (row dedup.Row, held bool, err error) {
	err = s.db.readPage(r, pageOf(prefix(&d), r.pages), func(p page) error {
		i, found := p.find(&d)
		if !found {
			return nil
		}
		var err error
		if row, err = p.row(i); err != nil {
			return err
		}
		if row.Result != nil {
			row.Result = append([]byte{}, row.Result...) // the page is Badger's
		}
		held = true
		return nil
	})
	return row, held, err
}

// Put adds a row to the open transaction. The row's Result is copied.
func (s *Store) Put(row dedup.Row) {
	if row.Result != nil {
		row.Result = append([]byte{}, row.Result...)
	}
	s.overlay.put(s.host.seed.hash(&row.Digest), slotOf(&row), extraOf(&row))
}

// Discard forgets the rows of the open transaction: it did not commit.
func (s *Store) Discard() {
	s.overlay.clear()
	s.refresh()
	s.publishCounters()
}

// Apply makes the rows of the open transaction, which has committed, part of
// the store. position is the next changelog offset that the store lacks and
// never goes backwards; checkpoint is the caller's, valid as of position.
//
// Apply returns when the rows are in memory. It blocks only while flush or
// merge is behind. An error other than a position going backwards means that
// the store has failed and must be closed and opened again; the changelog
// holds what it lacks.
func (s *Store) Apply(position int64, checkpoint []byte) error {
	if err := s.Err(); err != nil {
		return err
	}
	if at := s.position.Load(); position < at {
		return fmt.Errorf("apply up to changelog offset %d: the store already holds all below %d", position, at)
	}
	if len(checkpoint) > maxCheckpointBytes {
		return fmt.Errorf("apply up to changelog offset %d: checkpoint of %d bytes, at most %d are kept",
			position, len(checkpoint), maxCheckpointBytes)
	}
	s.overlay.moveTo(s.active)
	s.overlay.clear()
	s.position.Store(position)
	s.checkpoint = append(s.checkpoint[:0], checkpoint...)
	if s.checkpoint == nil && checkpoint != nil {
		s.checkpoint = []byte{}
	}
	now := time.Now()
	if s.dirtySince.IsZero() {
		s.dirtySince = now
	}
	s.publishCounters()
	s.refresh()
	return s.freezeIfDue(now)
}

// freezeIfDue hands the active table to the keeper when it is full or old.
// Only a full one waits for the keeper.
func (s *Store) freezeIfDue(now time.Time) error {
	if s.active.weight() < s.host.share() {
		if now.Sub(s.dirtySince) < s.host.cfg.FlushAge {
			return nil
		}
		select {
		case <-s.room:
			s.freeze()
		default: // a flush is under way; the next Apply asks again
		}
		return nil
	}
	select {
	case <-s.room:
		s.freeze()
		return nil
	default:
	}
	defer func() { s.host.metrics.backpressure.Add(time.Since(now).Seconds()) }()
	select {
	case <-s.room:
		s.freeze()
		return nil
	case <-s.failed:
		return s.Err()
	}
}

// freeze gives the active table to the keeper. The owner has taken the token
// from s.room, so the channel has space.
func (s *Store) freeze() *frozen {
	f := &frozen{table: s.active, position: s.position.Load(), done: make(chan struct{})}
	if s.checkpoint != nil {
		f.checkpoint = append([]byte{}, s.checkpoint...)
	}
	s.active = s.host.getTable()
	s.recentRows.Store(0)
	s.dirtySince = time.Time{}
	s.publish(func(old *view) *view { return &view{frozen: f, runs: old.runs} })
	s.refresh()
	s.frozen <- f
	return f
}

// Position returns the next changelog offset that the store lacks, in memory.
// Safe from any goroutine.
func (s *Store) Position() int64 { return s.position.Load() }

// DurablePosition returns the next changelog offset that the files lack.
// Safe from any goroutine.
func (s *Store) DurablePosition() int64 { return s.durable.Load() }

// Checkpoint returns a copy of what the last Apply was given, nil if there was
// none.
func (s *Store) Checkpoint() []byte {
	if s.checkpoint == nil {
		return nil
	}
	return append([]byte{}, s.checkpoint...)
}

// Expire tells the store that rows of class c whose First is below before[c]
// may go; it need not be sorted out at once, and Get may return such a row or
// an older one of its digest that is out of time as well. Safe from any
// goroutine.
func (s *Store) Expire(before [256]int64) {
	s.before.Store(&before)
	s.wake()
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

// fail records the first error after which the store cannot go on.
func (s *Store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	close(s.failed)
	if errors.Is(err, ErrCorrupt) {
		s.host.metrics.corrupt.Inc()
	}
}

// Flush makes all applied rows durable and returns when they are.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.Err(); err != nil {
		return err
	}
	s.refresh()
	if s.dirtySince.IsZero() {
		// Nothing since the last freeze; that one may still be under way.
		if f := s.mine.frozen; f != nil {
			return s.await(ctx, f)
		}
		return nil
	}
	if f := s.mine.frozen; f != nil {
		if err := s.await(ctx, f); err != nil {
			return err
		}
	}
	select {
	case <-s.room:
	case <-s.failed:
		return s.Err()
	case <-ctx.Done():
		return fmt.Errorf("flush up to changelog offset %d: %w", s.position.Load(), ctx.Err())
	}
	err := s.await(ctx, s.freeze())
	s.refresh()
	return err
}

func (s *Store) await(ctx context.Context, f *frozen) error {
	select {
	case <-f.done:
		return nil
	case <-s.failed:
		return s.Err()
	case <-ctx.Done():
		return fmt.Errorf("flush up to changelog offset %d: %w", f.position, ctx.Err())
	}
}

// Close flushes and closes the store. After a failure it closes without
// flushing and reports the failure; the directory's lock is released in any
// case. A second Close does nothing.
func (s *Store) Close() error {
	if s.closed {
		return nil
	}
	return errors.Join(s.Flush(context.Background()), s.stop())
}

// Abandon closes the store without flushing: the rows since DurablePosition
// are read from the changelog next time.
func (s *Store) Abandon() error {
	if s.closed {
		return nil
	}
	return s.stop()
}

func (s *Store) stop() error {
	s.closed = true
	close(s.quit)
	<-s.kept
	s.publishCounters()
	s.host.remove(s)
	var reclaimErr error
	if s.Err() == nil {
		s.refresh()
		reclaimErr = s.reclaim()
	}
	s.host.putTable(s.active)
	s.host.putTable(s.overlay)
	if err := s.db.close(); err != nil {
		return errors.Join(reclaimErr, fmt.Errorf("close %s: %w", s.dir, err))
	}
	if reclaimErr != nil || s.Err() != nil {
		return reclaimErr // what is on disk is not known: the status stays open
	}
	return status{state: statusClosed, boot: s.host.boot}.write(s.dir)
}
