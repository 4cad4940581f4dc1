package state

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"oncebus/dedup"
)

// TestResultsCountForMemory shows that results fill a table as rows do.
func TestResultsCountForMemory(t *testing.T) {
	h := newHost(t, smallConfig()) // 64 rows
	s := mustOpen(t, h, t.TempDir())
	var m model
	load(t, s, &m, 0, 1, func(r *dedup.Row) { r.HasResult, r.Result = true, make([]byte, 64*resultBytesPerRow) })
	if s.active.rows != 0 {
		t.Fatal("one row with the weight of 64 was not frozen")
	}
	must(t, s.Close())
}

// TestExpiredRunIsDroppedWhole has two runs of two classes: a run goes when
// every class in it is out of time, and its space is found free.
func TestExpiredRunIsDroppedWhole(t *testing.T) {
	h := newHost(t, smallConfig())
	rested := rests(h)
	s := mustOpen(t, h, t.TempDir())
	var m model
	load(t, s, &m, 0, 50, func(r *dedup.Row) { r.First, r.Class = r.At.Offset, uint8(r.At.Offset%2) })
	flush(t, s)
	load(t, s, &m, 50, 100, func(r *dedup.Row) { r.First = r.At.Offset })
	flush(t, s)
	expect := func(runs int, expired uint64) {
		t.Helper()
		s.Expire(m.before)
		settle(t, s, rested)
		settle(t, s, rested)
		st := s.Stats()
		if st.Runs != runs || st.EvictedRows != expired {
			t.Fatalf("%d runs, %d rows expired; want %d, %d", st.Runs, st.EvictedRows, runs, expired)
		}
		ids, err := s.db.runIDs()
		must(t, err)
		if len(ids) != runs {
			t.Fatalf("blocks of runs %v are left, want %d runs", ids, runs)
		}
		must(t, m.check(s, m.position()))
	}
	expect(2, 0)
	m.before[1] = 49 // the last of class 1 stands at 49
	expect(2, 0)
	m.before[1] = 50 // half of the run is out of time: it is rewritten
	expect(2, 25)
	m.before[0] = 49
	expect(1, 50)
	m.before[0] = 100
	expect(0, 100)
	must(t, s.Close())
}

// TestOlderRowDoesNotComeBack: the newest row of a key is out of time, an older
// one in a run below is not. If expiry or a merge dropped the newest, the older
// would show.
func TestOlderRowDoesNotComeBack(t *testing.T) {
	h := newHost(t, smallConfig())
	rested := rests(h)
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
		settle(t, s, rested)
		for n := range rows {
			r, held, err := s.Get(digestOf(uint64(n)))
			must(t, err)
			if held && r.Status != status {
				t.Fatalf("an older row came to light: %+v", r)
			}
		}
	}
	put(100, 1000, dedup.Freed) // too large a run to be merged
	m.before[0] = 950
	s.Expire(m.before)
	merges := testutil.ToFloat64(h.metrics.merges)
	for range smallConfig().MergeFanIn { // the last makes a merge
		put(30, 900, dedup.ClaimInProgress)
	}
	if testutil.ToFloat64(h.metrics.merges) != merges+1 || s.Stats().Runs != 2 {
		t.Fatalf("no merge: %+v", s.Stats())
	}
	m.before[0] = 1001
	s.Expire(m.before)
	settle(t, s, rested)
	if n := s.Stats().Runs; n != 0 {
		t.Fatalf("%d runs are left", n)
	}
	must(t, s.Close())
}

// TestLateRows: rows far behind the others in event time are held like any.
func TestLateRows(t *testing.T) {
	h := newHost(t, smallConfig())
	s := mustOpen(t, h, t.TempDir())
	var m model
	load(t, s, &m, 0, 500, func(r *dedup.Row) {
		if r.At.Offset%7 == 0 {
			r.First -= 1e11
		}
	})
	must(t, m.check(s, m.position()))
	must(t, m.checkGets(s))
	must(t, s.Close())
}

// TestReadingThroughMerges looks rows up while the keeper merges and deletes
// what was merged, with a view that is renewed only now and then.
func TestReadingThroughMerges(t *testing.T) {
	h := newHost(t, smallConfig())
	s := mustOpen(t, h, t.TempDir())
	var m model
	for from := uint64(0); from < 6000; from += 100 {
		load(t, s, &m, from, from+100, nil)
		for n := uint64(0); n < from; n += 37 {
			r, held, err := s.Get(digestOf(n))
			if err != nil || !held || r.At.Offset != int64(n) {
				t.Fatalf("row %d of %d: %+v %v %v", n, from, r, held, err)
			}
		}
	}
	if testutil.ToFloat64(h.metrics.merges) == 0 {
		t.Fatal("nothing was merged")
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}

// TestMergeKeepsNewest writes the same keys again and again: merges leave one
// row of each.
func TestMergeKeepsNewest(t *testing.T) {
	h := newHost(t, smallConfig())
	rested := rests(h)
	s := mustOpen(t, h, t.TempDir())
	var m model
	for round := range 30 {
		load(t, s, &m, 0, 100, func(r *dedup.Row) { r.Attempt = uint32(round) })
	}
	flush(t, s)
	settle(t, s, rested)
	if st := s.Stats(); st.Rows > 900 || st.Runs > 12 {
		t.Fatalf("%d rows in %d runs of 100 keys", st.Rows, st.Runs)
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}

// TestOwnerWaitsForTheKeeper stops the keeper in a write: the owner goes on
// until its table is full and then waits, and memory stays within its bound.
func TestOwnerWaitsForTheKeeper(t *testing.T) {
	h := newHost(t, smallConfig()) // 64 rows a table
	held, release := make(chan struct{}), make(chan struct{})
	first := true
	h.beforeWrite = func(string) error {
		if first { // the manifest of the new store
			first = false
			return nil
		}
		select {
		case held <- struct{}{}:
		case <-release:
		}
		<-release
		return nil
	}
	s := mustOpen(t, h, t.TempDir())
	var m model
	load(t, s, &m, 0, 80, nil) // fills a table, which the keeper begins to flush
	<-held
	load(t, s, &m, 80, 120, nil) // fits into the next
	if n := s.Stats().RecentRows; n != 120 {
		t.Fatalf("%d rows in memory", n)
	}
	done := make(chan struct{})
	go func() { // the owner, for now
		defer close(done)
		load(t, s, &m, 120, 1000, nil)
	}()
	select {
	case <-done:
		t.Fatal("1000 rows were taken while the first flush stood still")
	default:
	}
	close(release)
	<-done
	if testutil.ToFloat64(h.metrics.backpressure) <= 0 {
		t.Fatal("no wait was counted")
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}

func TestMemoryIsShared(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MemoryRows = 100_000
	h := newHost(t, cfg)
	for stores, want := range map[int64]int{1: 50_000, 2: 25_000, 5: 10_000, 50: minStoreRows} {
		h.open.Store(stores)
		if got := h.share(); got != want {
			t.Errorf("%d stores: share %d, want %d", stores, got, want)
		}
	}
	h.open.Store(0)
}

// TestFlushByAge runs on fake time: rows do not stay in memory longer than
// FlushAge while transactions go on.
func TestFlushByAge(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, DefaultConfig())
		s := mustOpen(t, h, dir)
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
		must(t, s.Close())
		must(t, h.Close())
	})
}

func TestFlushHonoursItsContext(t *testing.T) {
	h := newHost(t, smallConfig())
	held, release := make(chan struct{}), make(chan struct{})
	writes := 0
	h.beforeWrite = func(string) error {
		if writes++; writes == 2 {
			close(held)
			<-release
		}
		return nil
	}
	s := mustOpen(t, h, t.TempDir())
	var m model
	load(t, s, &m, 0, 10, nil)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() { result <- s.Flush(ctx) }()
	<-held
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

// TestCollectionGivesSpaceBack churns until the value log's files are mostly
// garbage.
func TestCollectionGivesSpaceBack(t *testing.T) {
	cfg := smallConfig()
	cfg.FlushRows, cfg.PageBytes = 2000, 8<<10
	h := newHost(t, cfg)
	rested := rests(h)
	s := mustOpen(t, h, t.TempDir())
	var m model
	for n := uint64(0); n < 120_000; n += 2000 {
		var rows []dedup.Row
		for i := n; i < n+2000; i++ {
			r := rowOf(i)
			r.First, r.HasResult, r.Result = int64(i), true, make([]byte, 300)
			rows = append(rows, r)
		}
		must(t, apply(s, m.commit(rows)))
		m.before[0] = int64(n) - 10_000
		s.Expire(m.before)
		settle(t, s, rested)
	}
	st := s.Stats()
	if testutil.ToFloat64(h.metrics.collections) == 0 {
		t.Fatalf("nothing was collected: %+v", st)
	}
	t.Logf("%d bytes on disk for %d of live runs", st.DiskBytes, st.RunBytes)
	if st.DiskBytes > 40<<20 { // that much was flushed, and as much merged
		t.Fatalf("%d bytes on disk for %d of live runs", st.DiskBytes, st.RunBytes)
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}
