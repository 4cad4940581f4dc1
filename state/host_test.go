package state

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"oncebus/dedup"
)

// childEnv selects the child program that the test binary runs.
const childEnv = "ONCEBUS_STATE_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "load":
		childLoad()
	case "damage":
		childDamage()
	case "permissions":
		childPermissions()
	default:
		// Every check opens a dozen databases, so the number is small. The command line can ask for more:
		// -rapid.checks 1000.
		if err := flag.Set("rapid.checks", "25"); err != nil {
			panic(err)
		}
		goleak.VerifyTestMain(m)
	}
}

// startChild starts the test binary as a child program on a directory, and returns the lines that it prints. A test
// that starts children must not run in parallel: until a new child runs its program, it has the locks of all open
// stores, including stores that are closed meanwhile.
func startChild(t *testing.T, program, dir string, stderr io.Writer) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0], dir)
	cmd.Env = append(os.Environ(), childEnv+"="+program)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	return cmd, bufio.NewScanner(out)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// smallConfig returns a config with few rows in runs, pages and merges.
func smallConfig() Config {
	cfg := DefaultConfig()
	cfg.FlushRows, cfg.PageBytes, cfg.MergeFanIn = 64, 512, 3
	return cfg
}

// openHost returns a host with small files, which the caller closes.
func openHost(cfg Config) (*Host, error) {
	h, err := NewHost(cfg, prometheus.NewRegistry(), quiet())
	if err == nil {
		h.valueLogBytes = 1 << 20
	}
	return h, err
}

func newHost(tb testing.TB, cfg Config) *Host {
	tb.Helper()
	h, err := openHost(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := h.Close(); err != nil {
			tb.Error(err)
		}
	})
	return h
}

var testIdentity = []byte("cluster/changelog/3")

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func mustOpen(t failer, h *Host, dir string) *Store {
	t.Helper()
	s, err := h.Open(dir, testIdentity)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

// newStore returns a new store with smallConfig, its host and its directory.
func newStore(t *testing.T) (h *Host, dir string, s *Store) {
	t.Helper()
	h, dir = newHost(t, smallConfig()), t.TempDir()
	return h, dir, mustOpen(t, h, dir)
}

// openClosed opens the database of a closed store. The caller closes it.
func openClosed(t *testing.T, h *Host, dir string) *database {
	t.Helper()
	db, err := openBadger(dir, h.valueLogBytes, quiet())
	must(t, err)
	opened := newDatabase()
	opened.attach(db)
	return opened
}

func must(t failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// watchIdle returns a channel that receives a value after each round of background work. A test calls it before it
// opens the host's only store.
func watchIdle(h *Host) <-chan struct{} {
	idle := make(chan struct{}, 1)
	h.onIdle = func() {
		select {
		case idle <- struct{}{}:
		default:
		}
	}
	return idle
}

// awaitRound waits for the end of a round of background work, or returns the error of a store that has failed.
func awaitRound(s *Store, idle <-chan struct{}) error {
	select {
	case <-idle:
		return nil
	case <-s.failed:
		return s.Err()
	}
}

// awaitIdle returns after the background work that is due at the call. It waits for two reports: the first may be of
// an earlier round, the second is not.
func awaitIdle(t failer, s *Store, idle <-chan struct{}) {
	t.Helper()
	s.Discard() // moves to the newest view, which releases old runs
	select {
	case <-idle:
	default:
	}
	for range 2 {
		s.wakeBackground()
		must(t, awaitRound(s, idle))
	}
	s.Discard()
}

// TestPauseMerges flushes runs during a pause. The store merges them afterwards.
func TestPauseMerges(t *testing.T) {
	h := newHost(t, smallConfig())
	idle := watchIdle(h)
	h.PauseMerges(true)
	m := damageModel()
	s := mustOpen(t, h, t.TempDir())
	for _, txn := range m.txns {
		must(t, apply(s, txn))
		flush(t, s)
	}
	awaitIdle(t, s, idle)
	paused := s.Stats().Runs
	if paused != len(m.txns) {
		t.Errorf("%d runs while merges are paused, want one for each of %d flushes", paused, len(m.txns))
	}
	must(t, m.checkGets(s))
	h.PauseMerges(true)
	h.PauseMerges(false)
	awaitIdle(t, s, idle)
	if runs := s.Stats().Runs; runs >= paused/2 {
		t.Errorf("%d runs after merges resumed, %d before", runs, paused)
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}

func TestForeignDirectory(t *testing.T) {
	h := newHost(t, smallConfig())
	dir := t.TempDir()
	must(t, mustOpen(t, h, dir).Close())
	for range 2 { // the first Open changed and locked no file
		if _, err := h.Open(dir, []byte("another")); !errors.Is(err, ErrForeign) || errors.Is(err, ErrCorrupt) {
			t.Fatalf("open with another identity: %v", err)
		}
	}
	must(t, mustOpen(t, h, dir).Close())
}

func TestLockedDirectoryIsNotCorrupt(t *testing.T) {
	h, dir, s := newStore(t)
	if _, err := h.Open(dir, testIdentity); err == nil || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrForeign) {
		t.Fatalf("second open: %v", err)
	}
	must(t, s.Close())
}

func TestHostCloseWithOpenStore(t *testing.T) {
	h, _, s := newStore(t)
	if err := h.Close(); err == nil {
		t.Fatal("Close of a host with an open store returned no error")
	}
	must(t, s.Close())
}

// TestOrphansAreRemoved writes blocks of runs that the manifest does not name: with an id above the next run's, as a
// crash leaves them, and with a lower id, as Badger's collection restores them. Both must be removed.
func TestOrphansAreRemoved(t *testing.T) {
	h, dir, s := newStore(t)
	var m model
	applyRows(t, s, &m, 0, 300, nil)
	must(t, s.Close())

	d := openClosed(t, h, dir)
	man, err := d.manifest()
	must(t, err)
	live := make(map[uint64]bool)
	for _, r := range man.runs {
		live[r.id] = true
	}
	deleted := uint64(1)
	for live[deleted] {
		deleted++
	}
	var work scratch
	table := newTable(h.seed)
	r := rowOf(999)
	table.put(h.seed.hash(&r.Digest), slotOf(&r), extra{})
	for _, id := range []uint64{deleted, man.nextRun + 3} {
		_, err := work.writeTable(d, table, id, 512)
		must(t, err)
	}
	must(t, d.close())

	s = mustOpen(t, h, dir)
	if n := s.Stats().OrphansRemoved; n != 2 {
		t.Fatalf("%d orphans removed, want 2", n)
	}
	if got := testutil.ToFloat64(h.metrics.orphanRuns); got != 2 {
		t.Fatalf("metric is %v orphans", got)
	}
	must(t, m.check(s, m.position()))
	if s.manifest.nextRun <= man.nextRun+3 {
		t.Fatalf("next run %d is not above the orphan %d", s.manifest.nextRun, man.nextRun+3)
	}
	ids, err := s.db.runIDs()
	must(t, err)
	if len(ids) != len(man.runs) {
		t.Fatalf("runs %v remain, want %d", ids, len(man.runs))
	}
	must(t, s.Close())
}

func TestMissingManifestIsCorrupt(t *testing.T) {
	h, dir, s := newStore(t)
	var m model
	applyRows(t, s, &m, 0, 100, nil)
	must(t, s.Close())
	d := openClosed(t, h, dir)
	txn := d.NewTransactionAt(math.MaxUint64, true)
	must(t, txn.Delete(manifestKey))
	must(t, d.commit(txn))
	must(t, d.close())
	if _, err := h.Open(dir, testIdentity); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("open without a manifest: %v", err)
	}
	if got := testutil.ToFloat64(h.metrics.corruptStores); got != 1 {
		t.Fatalf("metric is %v corrupt stores", got)
	}
}

func TestMemoryIsShared(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MemoryRows = 100_000
	h := newHost(t, cfg)
	for stores, want := range map[int64]int{1: 50_000, 2: 25_000, 5: 10_000, 50: minStoreRows} {
		h.openStores.Store(stores)
		if got := h.rowsPerStore(); got != want {
			t.Errorf("%d stores: share %d, want %d", stores, got, want)
		}
	}
	h.openStores.Store(0)
}

// benchHost returns a host with the defaults and the real sizes of files.
func benchHost(b *testing.B) *Host {
	h := newHost(b, DefaultConfig())
	h.valueLogBytes = valueLogBytes
	return h
}

// loadedStore returns a store of 1.2 M rows that the benchmarks of look-ups share.
func loadedStore(b *testing.B) *Store {
	s := mustOpen(b, benchHost(b), b.TempDir())
	b.Cleanup(func() { must(b, s.Abandon()) })
	for n := range uint64(benchRows) {
		s.Put(rowOf(n))
		if n%4000 == 3999 {
			must(b, s.Apply(int64(n+1), nil))
		}
	}
	flush(b, s)
	for n := range uint64(1000) { // these are recent
		s.Put(rowOf(benchRows + n))
	}
	must(b, s.Apply(benchRows+1000, nil))
	return s
}

const benchRows = 1_200_000

func BenchmarkGet(b *testing.B) {
	s := loadedStore(b)
	for _, c := range []struct {
		name  string
		key   func(i uint64) uint64
		found bool
	}{
		{"absent", func(i uint64) uint64 { return 1<<40 + i }, false},
		{"recent", func(i uint64) uint64 { return benchRows + i%1000 }, true},
		{"page", func(i uint64) uint64 { return i * 7919 % benchRows }, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			digests := make([]dedup.Digest, 1<<16)
			for i := range digests {
				digests[i] = digestOf(c.key(uint64(i)))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, found, err := s.Get(digests[i%len(digests)]); found != c.found || err != nil {
					b.Fatal(found, err)
				}
			}
		})
	}
}

// BenchmarkApply measures Get, Put and Apply of a row. The background work
// counts only while it blocks the owner.
func BenchmarkApply(b *testing.B) {
	s := mustOpen(b, benchHost(b), b.TempDir())
	defer func() { must(b, s.Close()) }()
	b.ReportAllocs()
	for n := uint64(0); b.Loop(); n++ {
		row := rowOf(n)
		if _, found, err := s.Get(row.Digest); found || err != nil {
			b.Fatal(found, err)
		}
		s.Put(row)
		if n%4000 == 3999 {
			must(b, s.Apply(int64(n+1), nil))
		}
	}
}

// BenchmarkOpen measures the opening of stores with a few small runs after kill -9, eight at a time. All stores stay
// open. Run it with -benchtime 1000x.
func BenchmarkOpen(b *testing.B) {
	const most = 1000
	if b.N > most {
		b.Fatalf("there are %d stores: use -benchtime %dx", most, most)
	}
	h, from := benchHost(b), filepath.Join(b.TempDir(), "store")
	s := mustOpen(b, h, from)
	for n := range uint64(900) {
		s.Put(rowOf(n))
		if n%300 == 299 {
			must(b, s.Apply(int64(n+1), nil))
			flush(b, s)
		}
	}
	killed := b.TempDir()
	for i := range most {
		to := filepath.Join(killed, fmt.Sprint(i))
		must(b, exec.Command("cp", "-a", "--sparse=always", from, to).Run()) // logs are mapped beyond what is written
	}
	opened := make([]*Store, most+1)
	opened[most] = s
	b.Cleanup(func() {
		for _, s := range opened {
			if s != nil {
				must(b, s.Abandon())
			}
		}
	})
	var next atomic.Int64
	b.SetParallelism(openingsUsual / runtime.GOMAXPROCS(0))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := int(next.Add(1)) - 1
			var err error
			if opened[i], err = h.Open(filepath.Join(killed, fmt.Sprint(i)), testIdentity); err != nil {
				b.Error(err) // Fatal is for the benchmark's own goroutine
				return
			}
		}
	})
}

// BenchmarkRows measures Get, Put, flushes and merges of 10 million rows in 8 stores. Run it with -benchtime 1x and a
// CPU profile.
func BenchmarkRows(b *testing.B) {
	const tasks, perTask, txn = 8, 1_250_000, 4000
	for b.Loop() {
		h := benchHost(b)
		var stores []*Store
		for range tasks {
			stores = append(stores, mustOpen(b, h, b.TempDir()))
		}
		for from := 0; from < perTask; from += txn {
			for i, s := range stores {
				for n := from; n < min(from+txn, perTask); n++ {
					row := rowOf(uint64(i)<<40 | uint64(n))
					if _, found, err := s.Get(row.Digest); found || err != nil {
						b.Fatal(found, err)
					}
					s.Put(row)
				}
				must(b, s.Apply(int64(from+txn), nil))
			}
		}
		var wg sync.WaitGroup
		for _, s := range stores {
			wg.Go(func() { must(b, s.Close()) })
		}
		wg.Wait()
	}
}
