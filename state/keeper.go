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

// errStopped ends background work when the store is closed under it.
var errStopped = errors.New("store is closing")

// keep is the keeper goroutine: the only one that writes to Badger. A flush
// comes before everything else, also from within a merge.
func (s *Store) keep() {
	defer close(s.kept)
	for {
		var err error
		select {
		case f := <-s.frozen:
			err = s.flush(f)
		case <-s.nudge:
		case <-s.quit:
			return
		}
		if err == nil {
			err = s.maintain()
		}
		if err == nil {
			err = s.survived()
		}
		if err != nil {
			if !errors.Is(err, errStopped) {
				s.fail(err) // the owner meets it at its next Apply
			}
			return
		}
	}
}

// survived notes, once, that nothing in the files has killed the process.
func (s *Store) survived() error {
	if s.alive {
		return nil
	}
	s.alive = true
	return status{state: statusOpen, boot: s.host.boot}.write(s.dir)
}

// maintain does what there is to do besides flushes.
func (s *Store) maintain() error {
	for {
		if err := s.yield(); err != nil {
			return err
		}
		if err := s.expire(); err != nil {
			return err
		}
		if err := s.reclaim(); err != nil {
			return err
		}
		var inputs []*run
		if !s.host.held.Load() {
			inputs = s.pick()
		}
		s.giveRoom(inputs == nil)
		if inputs == nil {
			break
		}
		if err := s.merge(inputs); err != nil {
			return err
		}
	}
	err := s.collect()
	if s.host.rested != nil {
		s.host.rested()
	}
	return err
}

// yield flushes a waiting table and reports whether to stop.
func (s *Store) yield() error {
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
func (s *Store) flush(f *frozen) error {
	began := time.Now()
	next := *s.manifest
	next.position, next.checkpoint = f.position, f.checkpoint
	if f.table.rows > 0 {
		work, err := acquire(s, s.host.flushing)
		if err != nil {
			return err
		}
		r, err := work.writeTable(s.db, f.table, s.newRunID(), s.host.cfg.PageBytes)
		s.host.flushing <- work
		if err != nil {
			return fmt.Errorf("flush %d rows up to changelog offset %d: %w", f.table.rows, f.position, err)
		}
		next.runs = append([]*run{r}, s.manifest.runs...)
	}
	failpoint.Hit(failpoint.FlushWritten)
	if err := s.commit(&next, true); err != nil {
		return fmt.Errorf("flush up to changelog offset %d: %w", f.position, err)
	}
	failpoint.Hit(failpoint.FlushCommitted)
	s.durable.Store(f.position)
	close(f.done)
	s.host.metrics.flushSeconds.Observe(time.Since(began).Seconds())
	s.owesRoom = true
	s.giveRoom(false)
	return nil
}

// newRunID returns an id that no run of this directory ever had. The next
// manifest carries it on; blocks written under it before a crash show at the
// next open, which moves past them.
func (s *Store) newRunID() uint64 {
	s.manifest.nextRun++
	return s.manifest.nextRun - 1
}

// commit writes the manifest and publishes its runs.
func (s *Store) commit(next *manifest, flushed bool) error {
	next.nextRun = s.manifest.nextRun
	if err := s.db.putManifest(next); err != nil {
		return err
	}
	s.manifest = next
	s.publish(func(old *view) *view {
		v := &view{runs: next.runs}
		if !flushed {
			v.frozen = old.frozen
		}
		return v
	})
	return nil
}

// acquire takes one of the process's places for background work.
func acquire(s *Store, from chan *scratch) (*scratch, error) {
	select {
	case work := <-from:
		return work, nil
	case <-s.quit:
		return nil, errStopped
	}
}

// mergeableFans is how many times the fan a store may have of runs that wait
// for merging before its owner has to wait too.
const mergeableFans = 6

// giveRoom lets the owner freeze again once the flush is done and the merges
// are not too far behind: without the second, a fast writer, whose flushes
// come first, would pile up runs without end. settled says that no merge can
// reduce the runs further.
func (s *Store) giveRoom(settled bool) {
	if s.owesRoom && (settled || s.mergeable() < mergeableFans*s.host.cfg.MergeFanIn) {
		s.owesRoom = false
		s.room <- struct{}{}
	}
}

// expire drops the runs whose rows are all out of time.
//
// A row may only go if no older row of its digest comes to light behind it
// that is not out of time. It is enough that the class's greatest First in
// all older runs is below the class's bound as well.
func (s *Store) expire() error {
	before := s.before.Load()
	if before == nil {
		return nil
	}
	next := *s.manifest
	next.runs = nil
	var rows uint64
	last := lastOfClasses(nil)
	for _, r := range slices.Backward(s.manifest.runs) {
		last.add(r)
		if slices.ContainsFunc(r.classes, func(c classSpan) bool { return last[c.class] >= before[c.class] }) {
			next.runs = append(next.runs, r)
		} else {
			rows += r.rows
		}
	}
	if rows == 0 {
		return nil
	}
	slices.Reverse(next.runs)
	if err := s.commit(&next, false); err != nil {
		return fmt.Errorf("expire runs: %w", err)
	}
	s.countEvicted(rows)
	return nil
}

func (s *Store) countEvicted(rows uint64) {
	s.evicted.Add(rows)
	s.host.metrics.evicted.Add(float64(rows))
}

// classLasts is the greatest First of each class in some runs.
type classLasts [256]int64

func lastOfClasses(runs []*run) *classLasts {
	var l classLasts
	for i := range l {
		l[i] = math.MinInt64
	}
	for _, r := range runs {
		l.add(r)
	}
	return &l
}

func (l *classLasts) add(r *run) {
	for _, c := range r.classes {
		l[c.class] = max(l[c.class], c.last)
	}
}

// reclaim deletes the blocks of runs that nobody can read any more.
func (s *Store) reclaim() error {
	for _, r := range s.takeDead() {
		if err := s.db.deleteRun(r.id); err != nil {
			return fmt.Errorf("delete run %d: %w", r.id, err)
		}
		s.garbage += r.bytes
	}
	return nil
}

// Collection of the value log: a file is rewritten when half of it is
// garbage, as far as Badger has compacted the deletions.
const (
	collectRatio = 0.5
	collectMax   = 8 // files in a row
)

// collect gives space of deleted runs back, one file of the value log at a
// time. Afterwards it looks for blocks that should not be there: Badger's
// collection can bring deleted entries back.
func (s *Store) collect() error {
	if s.garbage < uint64(s.host.valueLogBytes) {
		return nil
	}
	rewritten := 0
	for rewritten < collectMax {
		// Deletions are garbage to the value log once they are compacted.
		if err := s.db.compact(1); err != nil {
			return err
		}
		err := s.db.RunValueLogGC(collectRatio)
		if errors.Is(err, badger.ErrNoRewrite) || errors.Is(err, badger.ErrRejected) {
			break
		}
		if err != nil {
			return fmt.Errorf("collect value log: %w", err)
		}
		rewritten++
		s.garbage -= min(s.garbage, uint64(s.host.valueLogBytes))
		if err := s.yield(); err != nil {
			return err
		}
	}
	if rewritten == 0 {
		return nil
	}
	s.host.metrics.collections.Add(float64(rewritten))
	return s.sweep()
}

// sweep deletes the blocks of runs that no manifest and no view names.
func (s *Store) sweep() error {
	known := make(map[uint64]bool)
	for _, r := range s.manifest.runs {
		known[r.id] = true
	}
	s.mu.Lock()
	for _, v := range []*view{s.current, s.mine} {
		if v != nil {
			for _, r := range v.runs {
				known[r.id] = true
			}
		}
	}
	for _, r := range s.dead {
		known[r.id] = true
	}
	s.mu.Unlock()

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
		s.host.metrics.orphans.Inc()
		s.log.Warn("removed orphan run", "dir", s.dir, "run", id)
	}
	return nil
}
