package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"oncebus/dedup"
)

// TestResultsCountForMemory protects that results count towards the size of a table: the result of one row fills the
// table.
func TestResultsCountForMemory(t *testing.T) {
	_, _, s := newStore(t) // 64 rows
	var m model
	applyRows(t, s, &m, 0, 1, func(r *dedup.Row) { r.HasResult, r.Result = true, make([]byte, 64*resultBytesPerRow) })
	if s.active.rows != 0 {
		t.Fatal("one row with the weight of 64 was not frozen")
	}
	must(t, s.Close())
}

// TestEvictedRunIsDroppedWhole has two runs of two namespaces. A run is evicted when all rows of its namespaces have
// expired, and none of its blocks may remain.
func TestEvictedRunIsDroppedWhole(t *testing.T) {
	h := newHost(t, smallConfig())
	var log bytes.Buffer // of the background goroutine, which is idle when it is read
	h.log = slog.New(slog.NewTextHandler(&log, nil))
	idle := watchIdle(h)
	s := mustOpen(t, h, t.TempDir())
	var m model
	applyRows(t, s, &m, 0, 50, func(r *dedup.Row) { r.First, r.NamespaceID = r.At.Offset, uint8(r.At.Offset%2) })
	flush(t, s)
	applyRows(t, s, &m, 50, 100, func(r *dedup.Row) { r.First = r.At.Offset })
	flush(t, s)
	expect := func(runs int, evicted uint64) {
		t.Helper()
		s.EvictBefore(m.before)
		awaitIdle(t, s, idle)
		awaitIdle(t, s, idle)
		st := s.Stats()
		if st.Runs != runs || st.EvictedRows != evicted {
			t.Fatalf("%d runs, %d rows evicted; want %d, %d", st.Runs, st.EvictedRows, runs, evicted)
		}
		ids, err := s.db.runIDs()
		must(t, err)
		if len(ids) != runs {
			t.Fatalf("blocks of runs %v remain, want %d runs", ids, runs)
		}
		must(t, m.check(s, m.position()))
	}
	expect(2, 0)
	m.before[1] = 49 // the last row of namespace id 1 is at 49
	expect(2, 0)
	m.before[1] = 50 // half of the run has expired: a merge rewrites it
	expect(2, 25)
	m.before[0] = 49
	expect(1, 50)
	m.before[0] = 100
	expect(0, 100)
	must(t, s.Close())
	if lines := regexp.MustCompile(`msg="expired rows evicted" dir=\S+ rows=(\d+) by=(.*)\n`).FindAllStringSubmatch(log.String(), -1); len(lines) != 3 || lines[0][1] != "25" || lines[0][2] != "merge" ||
		lines[1][1] != "25" || lines[2][1] != "50" || lines[2][2] != `"expired runs"` {
		t.Errorf("one line for each merge and clean-up: %q", lines)
	}
}

// TestOlderRowStaysHidden has keys whose newest row has expired, and whose older row, in an older run, is retained.
// If only the newest row were evicted, Get would return the older one.
func TestOlderRowStaysHidden(t *testing.T) {
	h := newHost(t, smallConfig())
	idle := watchIdle(h)
	s := mustOpen(t, h, t.TempDir())
	var m model
	put := func(rows int, first int64, status dedup.Status) {
		var txn []dedup.Row
		for n := range rows {
			r := rowOf(uint64(n))
			r.First, r.Status = first, status
			txn = append(txn, r)
		}
		must(t, apply(s, m.commit(txn)))
		flush(t, s)
		awaitIdle(t, s, idle)
		for n := range rows {
			r, found, err := s.Get(digestOf(uint64(n)))
			must(t, err)
			if found && r.Status != status {
				t.Fatalf("get returned an older row: %+v", r)
			}
		}
	}
	put(100, 1000, dedup.Freed) // a run of the top tier
	m.before[0] = 950
	s.EvictBefore(m.before)
	merges := testutil.ToFloat64(h.metrics.merges)
	for range smallConfig().MergeFanIn { // the last flush causes a merge
		put(30, 900, dedup.ClaimInProgress)
	}
	if testutil.ToFloat64(h.metrics.merges) != merges+1 || s.Stats().Runs != 2 {
		t.Fatalf("no merge: %+v", s.Stats())
	}
	m.before[0] = 1001
	s.EvictBefore(m.before)
	awaitIdle(t, s, idle)
	if n := s.Stats().Runs; n != 0 {
		t.Fatalf("%d runs, want none", n)
	}
	must(t, s.Close())
}

// TestReadsDuringMerges looks rows up while the background goroutine merges runs and deletes the inputs. The owner
// refreshes its view only sometimes.
func TestReadsDuringMerges(t *testing.T) {
	h, _, s := newStore(t)
	var m model
	for from := uint64(0); from < 6000; from += 100 {
		applyRows(t, s, &m, from, from+100, nil)
		for n := uint64(0); n < from; n += 37 {
			r, found, err := s.Get(digestOf(n))
			if err != nil || !found || r.At.Offset != int64(n) {
				t.Fatalf("row %d of %d: %+v %v %v", n, from, r, found, err)
			}
		}
	}
	if testutil.ToFloat64(h.metrics.merges) == 0 {
		t.Fatal("no run was merged")
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}

// TestOwnerWaitsForBackground blocks the background goroutine in a write. The owner fills one more table and then
// blocks, so that memory stays bounded.
func TestOwnerWaitsForBackground(t *testing.T) {
	h := newHost(t, smallConfig()) // 64 rows a table
	blocked, release := make(chan struct{}), make(chan struct{})
	first := true
	h.beforeWrite = func(string) error {
		if first { // the manifest of the new store
			first = false
			return nil
		}
		select {
		case blocked <- struct{}{}:
		case <-release:
		}
		<-release
		return nil
	}
	s := mustOpen(t, h, t.TempDir())
	var m model
	applyRows(t, s, &m, 0, 80, nil) // fills a table, whose flush begins
	<-blocked
	applyRows(t, s, &m, 80, 120, nil) // fits into the next table
	if n := s.Stats().RecentRows; n != 120 {
		t.Fatalf("%d rows in memory", n)
	}
	done := make(chan struct{})
	go func() { // the owner until done
		defer close(done)
		applyRows(t, s, &m, 120, 1000, nil)
	}()
	select {
	case <-done:
		t.Fatal("the store accepted 1000 rows while the first flush was blocked")
	default:
	}
	close(release)
	<-done
	if testutil.ToFloat64(h.metrics.backpressure) <= 0 {
		t.Fatal("backpressure metric is 0")
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}

// TestFlushByAge runs on fake time. No row may be only in memory for longer than FlushAge, neither while transactions
// continue nor after the last one.
func TestFlushByAge(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, DefaultConfig())
		s := mustOpen(t, h, dir)
		s.earlier = 0
		s.Put(rowOf(1))
		must(t, s.Apply(1, nil))
		time.Sleep(59 * time.Second) //nolint:forbidigo // the fake clock of the synctest bubble
		must(t, s.Apply(2, nil))
		synctest.Wait()
		if p := s.DurablePosition(); p != 0 {
			t.Fatalf("durable to %d after 59 s", p)
		}
		time.Sleep(time.Second) //nolint:forbidigo // the fake clock of the synctest bubble
		must(t, s.Apply(3, nil))
		synctest.Wait() // also for file I/O, which is not durably blocking
		if p := s.DurablePosition(); p != 3 {
			t.Fatalf("durable to %d, want 3", p)
		}
		s.Put(rowOf(2))
		must(t, s.Apply(4, nil))
		for _, wait := range []struct {
			time.Duration
			durable int64
		}{{59 * time.Second, 3}, {time.Second, 4}, {time.Hour, 4}} {
			time.Sleep(wait.Duration) //nolint:forbidigo // the fake clock of the synctest bubble
			s.FlushAged()
			synctest.Wait()
			if p := s.DurablePosition(); p != wait.durable {
				t.Fatalf("durable to %d, want %d", p, wait.durable)
			}
		}
		must(t, s.Close())
		must(t, h.Close())
	})
}

func TestFlushHonoursContext(t *testing.T) {
	h := newHost(t, smallConfig())
	blocked, release := make(chan struct{}), make(chan struct{})
	writes := 0
	h.beforeWrite = func(string) error {
		if writes++; writes == 2 {
			close(blocked)
			<-release
		}
		return nil
	}
	s := mustOpen(t, h, t.TempDir())
	var m model
	applyRows(t, s, &m, 0, 10, nil)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() { result <- s.Flush(ctx) }()
	<-blocked
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("flush: %v", err)
	}
	close(release)
	flush(t, s)
	if s.DurablePosition() != m.position() {
		t.Fatalf("durable to %d, want %d", s.DurablePosition(), m.position())
	}
	must(t, s.Close())
}

// largeRunStore returns a store whose runs have 2,000 rows, its host, and a channel for
// awaitIdle.
func largeRunStore(t *testing.T) (*Host, *Store, <-chan struct{}) {
	t.Helper()
	cfg := smallConfig()
	cfg.FlushRows, cfg.PageBytes = 2000, 8<<10
	h := newHost(t, cfg)
	idle := watchIdle(h)
	return h, mustOpen(t, h, t.TempDir()), idle
}

// TestCollectionFreesSpace writes and evicts rows until most of the value log is garbage, which a collection must
// free.
func TestCollectionFreesSpace(t *testing.T) {
	h, s, idle := largeRunStore(t)
	var m model
	for n := uint64(0); n < 120_000; n += 2000 {
		applyAtOnce(t, s, &m, n, n+2000, func(r *dedup.Row) {
			r.First, r.HasResult, r.Result = r.At.Offset, true, make([]byte, 300)
		})
		m.before[0] = int64(n) - 10_000
		s.EvictBefore(m.before)
		awaitIdle(t, s, idle)
	}
	st := s.Stats()
	if testutil.ToFloat64(h.metrics.collections) == 0 {
		t.Fatalf("no value-log file was collected: %+v", st)
	}
	t.Logf("%d bytes on disk for runs of %d bytes", st.DiskBytes, st.RunBytes)
	if st.DiskBytes > 40<<20 { // the flushes wrote as much, and the merges again
		t.Fatalf("%d bytes on disk for runs of %d bytes", st.DiskBytes, st.RunBytes)
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}

// TestGarbageOfEarlierOpeningsIsCollected covers a store that deletes, in each of its openings, less than a
// collection needs. The store must not grow. It is opened again after every fourth flush, as in rolling restarts.
func TestGarbageOfEarlierOpeningsIsCollected(t *testing.T) {
	cfg := smallConfig()
	cfg.FlushRows, cfg.PageBytes = 2000, 8<<10
	h := newHost(t, cfg)
	h.valueLogBytes = valueLogBytes
	idle := watchIdle(h)
	s := mustOpen(t, h, t.TempDir())
	var m model
	for n := uint64(0); n < 120_000; n += 2000 {
		applyAtOnce(t, s, &m, n, n+2000, func(r *dedup.Row) {
			r.First, r.HasResult, r.Result = r.At.Offset, true, make([]byte, 300)
		})
		m.before[0] = int64(n) - 10_000
		s.EvictBefore(m.before)
		awaitIdle(t, s, idle)
		if n/2000%4 == 3 {
			flush(t, s)
			must(t, s.Close())
			s = mustOpen(t, h, s.dir)
		}
	}
	t.Logf("%d bytes on disk for runs of %d bytes", diskBytes(s.dir), s.Stats().RunBytes)
	if testutil.ToFloat64(h.metrics.collections) == 0 {
		t.Error("no value-log file was collected")
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}

// TestGarbageOfASmallStoreIsCollected covers a store whose tombstones do not fill a memtable, and whose tables are
// all on level zero. Badger counts a deleted block as garbage only once its tombstone is compacted.
func TestGarbageOfASmallStoreIsCollected(t *testing.T) {
	h, s, idle := largeRunStore(t)
	var m model
	large := func(r *dedup.Row) { r.HasResult, r.Result = true, make([]byte, 1000) }
	for n := range uint64(2 * h.cfg.MergeFanIn) {
		applyAtOnce(t, s, &m, 2000*n, 2000*n+2000, large)
		awaitIdle(t, s, idle)
	}
	applyAtOnce(t, s, &m, 0, 1, large) // the view without the merged runs
	for deadline := time.Now().Add(time.Minute); testutil.ToFloat64(h.metrics.collections) == 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("no value-log file was collected: %+v", s.Stats())
		}
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}

// TestStoresFlushAtDifferentTimes fills the stores of one topic at the same rate. Each store is flushed in the last
// quarter of the time to a flush, at a moment of its own.
func TestStoresFlushAtDifferentTimes(t *testing.T) {
	cfg := smallConfig()
	cfg.FlushRows, cfg.FlushAge = 4096, time.Hour
	h := newHost(t, cfg)
	root := t.TempDir()
	flushes := map[int]bool{}
	const stores = 8
	for n := range stores {
		s := mustOpen(t, h, filepath.Join(root, fmt.Sprint("app-repartition-", n)))
		rows := 0
		for ; s.active.weight() >= rows; rows++ {
			s.Put(rowOf(uint64(rows)))
			must(t, s.Apply(int64(rows+1), nil))
		}
		if rows > cfg.FlushRows || rows <= cfg.FlushRows*3/4 {
			t.Errorf("store %d was flushed with %d rows", n, rows)
		}
		flushes[rows] = true
		must(t, s.Close())
	}
	if len(flushes) < stores-1 {
		t.Errorf("%d stores were flushed with %v rows", stores, flushes)
	}
}

// TestFlushesDoNotWaitForMergesOfOtherStores protects that a store whose merge waits for the merges of other stores
// still flushes, also several times. Its merge follows later.
func TestFlushesDoNotWaitForMergesOfOtherStores(t *testing.T) {
	h := newHost(t, smallConfig())
	s := mustOpen(t, h, t.TempDir())
	var m model
	var taken []*scratch
	for range cap(h.mergeScratch) {
		taken = append(taken, <-h.mergeScratch)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const flushes = 6 // MergeFanIn is 3
	for n := range uint64(flushes) {
		applyRows(t, s, &m, 20*n, 20*n+20, nil)
		if err := s.Flush(ctx); err != nil {
			t.Fatalf("flush %d, while other stores merge: %v", n, err)
		}
	}
	if runs := s.Stats().Runs; runs != flushes {
		t.Errorf("%d runs, want %d: a merge did not wait", runs, flushes)
	}
	for _, work := range taken {
		h.mergeScratch <- work
	}
	for s.Stats().Runs == flushes {
		runtime.Gosched()
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}
