package state

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4"

	"oncebus/state/failpoint"
)

// errStopped ends a flush or merge because the store is closing or has failed.
var errStopped = errors.New("store is closing")

// runBackground is the only goroutine that writes to Badger. A flush takes precedence over all other work; a
// running merge pauses to let a flush go first.
func (s *Store) runBackground() {
	defer close(s.backgroundDone)
	for {
		var err error
		select {
		case f := <-s.frozen:
			err = s.flush(f)
		case <-s.wakeUps:
		case <-s.quit:
			return
		}
		if err == nil {
			err = s.maintain()
		}
		if err == nil {
			err = s.markOpen()
		}
		if err != nil {
			if !errors.Is(err, errStopped) {
				s.fail(err) // the owner's next Apply returns it
			}
			return
		}
	}
}

// markOpen sets STATUS to open, once, after the first round of background work with files. By then the process
// has read the files without being killed by them.
func (s *Store) markOpen() error {
	if s.markedOpen || !s.db.hasFiles() {
		return nil
	}
	s.markedOpen = true
	return status{state: statusOpen, boot: s.host.boot, position: s.durable.Load()}.write(s.dir)
}

// notePosition writes the position of the manifest to STATUS. While the status in that file is still opening,
// the file counts how many times in a row the process died while it opened the files, so notePosition writes
// nothing. markOpen later writes the position together with the status open.
func (s *Store) notePosition() error {
	if !s.markedOpen {
		return nil
	}
	return status{state: statusOpen, boot: s.host.boot, position: s.durable.Load()}.note(s.dir)
}

// maintain evicts, deletes and merges until no work is left, then collects
// garbage.
func (s *Store) maintain() error {
	for {
		if err := s.flushFrozen(); err != nil {
			return err
		}
		if err := s.evictRuns(); err != nil {
			return err
		}
		if err := s.deleteDeadRuns(); err != nil {
			return err
		}
		s.releaseMapped()
		var inputs []*run
		if !s.host.mergesPaused.Load() {
			inputs = s.pickRuns()
		}
		s.returnToken(inputs == nil)
		if inputs == nil {
			break
		}
		if err := s.mergeRuns(inputs); err != nil {
			return err
		}
	}
	err := s.collectValueLog()
	if s.filesChanged {
		s.filesChanged = false
		s.disk.Store(diskBytes(s.dir))
	}
	if s.host.onIdle != nil {
		s.host.onIdle()
	}
	return err
}

// flushFrozen flushes the frozen table, if there is one. The caller must return if the error is errStopped.
func (s *Store) flushFrozen() error {
	select {
	case <-s.quit:
		return errStopped
	case <-s.failed:
		return errStopped
	default:
	}
	select {
	case f := <-s.frozen:
		return s.flush(f)
	default:
		return nil
	}
}

// flush writes a frozen table as a run and then the manifest that names it.
func (s *Store) flush(f *frozenTable) error {
	began := time.Now()
	if !s.db.hasFiles() {
		if err := s.createFiles(); err != nil {
			return err
		}
	}
	next := *s.manifest
	next.position, next.checkpoint = f.position, f.checkpoint
	if f.table.rows > 0 {
		work, err := s.acquireScratch(s.host.flushScratch, nil)
		if err != nil {
			return err
		}
		r, err := work.writeTable(s.db, f.table, s.newRunID(), s.host.cfg.PageBytes)
		s.host.flushScratch <- work
		if err != nil {
			return fmt.Errorf("flush %d rows up to changelog offset %d: %w", f.table.rows, f.position, err)
		}
		next.runs = append([]*run{r}, s.manifest.runs...)
	}
	failpoint.Hit(failpoint.FlushWritten)
	if err := s.commitManifest(&next, true); err != nil {
		return fmt.Errorf("flush up to changelog offset %d: %w", f.position, err)
	}
	failpoint.Hit(failpoint.FlushCommitted)
	s.host.boundMapped()
	s.durable.Store(f.position)
	close(f.done)
	if err := s.notePosition(); err != nil {
		return err
	}
	s.host.metrics.flushSeconds.Observe(time.Since(began).Seconds())
	s.owesToken = true
	s.returnToken(false)
	return nil
}

// newRunID returns an id that no run of this directory ever had. The next manifest stores the counter. If a
// crash comes before that, database.load raises the counter above the ids of all blocks.
func (s *Store) newRunID() uint64 {
	s.manifest.nextRun++
	return s.manifest.nextRun - 1
}

// commitManifest writes the manifest and publishes its runs. flushed says that the rows of the frozen table
// are now in a run: the new view has no frozen table.
func (s *Store) commitManifest(next *manifest, flushed bool) error {
	next.nextRun = s.manifest.nextRun
	if err := s.db.putManifest(next); err != nil {
		return err
	}
	s.manifest, s.filesChanged = next, true
	s.publishView(func(old *view) *view {
		v := &view{runs: next.runs}
		if !flushed {
			v.frozen = old.frozen
		}
		return v
	})
	return nil
}

// acquireScratch waits for a scratch of the channel from: until fewer than BackgroundJobs flushes of the
// process are running, or fewer than BackgroundJobs merges and collections. While it waits, it flushes the
// tables that it receives from frozen, unless frozen is nil, and releases mapped memory, because these two must
// not wait for the merges of other stores. If it flushed a table or consumed a wake-up meanwhile, it asks for
// another round of background work.
func (s *Store) acquireScratch(from chan *scratch, frozen <-chan *frozenTable) (*scratch, error) {
	for woken := false; ; {
		s.releaseMapped() // runBackground may have consumed the wake-up for a release that is due
		select {
		case work := <-from:
			if woken {
				s.wakeBackground()
			}
			return work, nil
		case f := <-frozen:
			if err := s.flush(f); err != nil {
				return nil, err
			}
			woken = true
		case <-s.wakeUps:
			woken = true
		case <-s.quit:
			return nil, errStopped
		}
	}
}

// mergeBacklogFactor bounds the backlog of merges: while there are mergeBacklogFactor times MergeFanIn runs
// below the top tier, the owner must not freeze its table (backpressure).
const mergeBacklogFactor = 6

// returnToken lets the owner freeze again after a flush, unless too many runs wait for a merge: flushes take
// precedence over merges, so without this limit a fast writer would add runs without bound. merged reports that
// no merge can reduce the number of runs.
func (s *Store) returnToken(merged bool) {
	if s.owesToken && (merged || s.countMergeable() < mergeBacklogFactor*s.host.cfg.MergeFanIn) {
		s.owesToken = false
		s.freezeToken <- struct{}{}
	}
}

// evictRuns evicts a run only if neither it nor any older run has a retained row of the run's namespaces.
// Otherwise Get could return an older retained row of a digest whose newest row is evicted.
func (s *Store) evictRuns() error {
	before := s.evictBounds.Load()
	if before == nil {
		return nil
	}
	next := *s.manifest
	next.runs = nil
	var rows uint64
	last := lastFirstsOf(nil)
	for _, r := range slices.Backward(s.manifest.runs) {
		last.add(r)
		if slices.ContainsFunc(r.namespaces, func(c namespaceRows) bool { return last[c.id] >= before[c.id] }) {
			next.runs = append(next.runs, r)
		} else {
			rows += r.rows
		}
	}
	if rows == 0 {
		return nil
	}
	slices.Reverse(next.runs)
	if err := s.commitManifest(&next, false); err != nil {
		return fmt.Errorf("evict %d rows: %w", rows, err)
	}
	s.countEvicted(rows, "expired runs")
	return nil
}

// countEvicted counts the rows that one step of the background work evicted, and logs their number.
func (s *Store) countEvicted(rows uint64, by string) {
	if rows == 0 {
		return
	}
	s.evicted.Add(rows)
	s.host.metrics.evictedRows.Add(float64(rows))
	s.log.Info("expired rows evicted", "dir", s.dir, "rows", rows, "by", by)
}

// lastFirsts has, by namespace id, the greatest First in a set of runs.
type lastFirsts [256]int64

func lastFirstsOf(runs []*run) *lastFirsts {
	var l lastFirsts
	for i := range l {
		l[i] = math.MinInt64
	}
	for _, r := range runs {
		l.add(r)
	}
	return &l
}

func (l *lastFirsts) add(r *run) {
	for _, c := range r.namespaces {
		l[c.id] = max(l[c.id], c.lastFirst)
	}
}

// deleteDeadRuns deletes the blocks of the runs that no view has any more.
func (s *Store) deleteDeadRuns() error {
	for _, r := range s.takeDeadRuns() {
		if err := s.db.deleteRun(r.id); err != nil {
			return fmt.Errorf("delete run %d: %w", r.id, err)
		}
		s.garbage += r.bytes
	}
	return nil
}

// Badger rewrites a value-log file when garbage is at least the share collectRatio of the file. Badger counts a
// deleted block as garbage only after it has compacted the block's tombstone.
const (
	collectRatio = 0.5
	collectMax   = 8 // files per round, so that flushes are not delayed
	// fillerWait is much longer than Badger needs to flush a memtable.
	fillerWait = 100 * time.Millisecond
)

// collectValueLog frees the disk space of deleted runs, file by file. Badger's collection can restore deleted
// entries, so collectValueLog ends with deleteOrphanRuns.
func (s *Store) collectValueLog() error {
	if s.garbage < uint64(s.host.valueLogBytes) {
		return nil
	}
	rewritten := 0
	for rewritten < collectMax {
		err := s.collectFile()
		if errors.Is(err, badger.ErrNoRewrite) || errors.Is(err, badger.ErrRejected) {
			if err := s.flushTombstones(); err != nil {
				return fmt.Errorf("flush tombstones: %w", err)
			}
			break
		}
		if err != nil {
			return fmt.Errorf("collect value log: %w", err)
		}
		rewritten++
		s.filesChanged = true
		s.garbage -= min(s.garbage, uint64(s.host.valueLogBytes))
		s.host.boundMapped() // the collection has read a file, and written what it kept
		s.releaseMapped()
		if err := s.flushFrozen(); err != nil {
			return err
		}
	}
	if rewritten == 0 {
		return nil
	}
	s.filled = min(s.filled, s.garbage)
	s.host.metrics.collections.Add(float64(rewritten))
	return s.deleteOrphanRuns()
}

// flushTombstones makes Badger flush its memtable. The tombstones of deleted blocks are then compacted in a
// later round, so that Badger counts these blocks as garbage. Few tombstones do not fill a memtable by
// themselves: with flushTombstones, stores of a million rows took 27 bytes per key on disk instead of 31.
func (s *Store) flushTombstones() error {
	if s.garbage < s.filled+uint64(s.host.valueLogBytes) {
		return nil // an earlier call has flushed the tombstones of this garbage
	}
	s.filled = s.garbage
	if err := s.db.fillMemTable(); err != nil {
		return err
	}
	time.AfterFunc(fillerWait, s.wakeBackground)
	return nil
}

// collectFile rewrites one file of the value log. It counts as a merge (mergeScratch), because it maps two
// files, the file that it reads and the file that it writes: when eight stores collected at the same time, none
// of them released mapped memory for a second.
func (s *Store) collectFile() error {
	work, err := s.acquireScratch(s.host.mergeScratch, s.frozen)
	if err != nil {
		return err
	}
	defer func() { s.host.mergeScratch <- work }()
	// Badger counts deleted blocks as garbage only after a compaction.
	if err := s.db.compact(1); err != nil {
		return err
	}
	return s.db.RunValueLogGC(collectRatio)
}

// deleteOrphanRuns deletes the blocks of runs that neither the manifest nor a view names.
func (s *Store) deleteOrphanRuns() error {
	named := slices.Clone(s.manifest.runs)
	s.mu.Lock()
	for _, v := range []*view{s.currentView, s.ownerView} {
		if v != nil {
			named = append(named, v.runs...)
		}
	}
	named = append(named, s.deadRuns...)
	s.mu.Unlock()
	return s.deleteRunsBut(named)
}

// deleteRunsBut deletes the blocks of all runs except the named ones.
func (s *Store) deleteRunsBut(named []*run) error {
	known := make(map[uint64]bool)
	for _, r := range named {
		known[r.id] = true
	}
	ids, err := s.db.runIDs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if known[id] {
			continue
		}
		if err := s.db.deleteRun(id); err != nil {
			return fmt.Errorf("delete orphan run %d: %w", id, err)
		}
		s.orphans.Add(1)
		s.host.metrics.orphanRuns.Inc()
		s.log.Warn("removed orphan run", "dir", s.dir, "run", id)
	}
	return nil
}
