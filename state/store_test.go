package state

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"oncebus/dedup"
)

// load applies rows [from, to), each of its own transaction of up to 20.
func load(t failer, s *Store, m *model, from, to uint64, change func(*dedup.Row)) {
	t.Helper()
	for from < to {
		var rows []dedup.Row
		for ; from < to && len(rows) < 20; from++ {
			r := rowOf(from)
			if change != nil {
				change(&r)
			}
			rows = append(rows, r)
		}
		must(t, apply(s, m.commit(rows)))
	}
}

func TestPositionNeverGoesBack(t *testing.T) {
	h := newHost(t, smallConfig())
	s := mustOpen(t, h, t.TempDir())
	must(t, s.Apply(10, nil))
	must(t, s.Apply(10, nil))
	if err := s.Apply(9, nil); err == nil || !strings.Contains(err.Error(), "already holds all below 10") {
		t.Fatalf("apply at 9 after 10: %v", err)
	}
	must(t, s.Apply(11, nil)) // a refused apply is no failure of the store
	must(t, s.Close())
	must(t, s.Close())
}

func TestCheckpointIsOfThePosition(t *testing.T) {
	h := newHost(t, smallConfig())
	dir := t.TempDir()
	s := mustOpen(t, h, dir)
	if c := s.Checkpoint(); c != nil {
		t.Fatalf("checkpoint %q of a new store", c)
	}
	must(t, s.Apply(5, []byte("five")))
	flush(t, s)
	must(t, s.Apply(7, []byte("seven")))
	must(t, s.Abandon())
	s = mustOpen(t, h, dir)
	if c, p := string(s.Checkpoint()), s.Position(); c != "five" || p != 5 {
		t.Fatalf("checkpoint %q at %d, want five at 5", c, p)
	}
	if err := s.Apply(6, make([]byte, maxCheckpointBytes+1)); err == nil {
		t.Fatal("a checkpoint beyond the bound was taken")
	}
	must(t, s.Close())
}

func TestForeignDirectory(t *testing.T) {
	h := newHost(t, smallConfig())
	dir := t.TempDir()
	must(t, mustOpen(t, h, dir).Close())
	for range 2 { // it is left as it is, and unlocked
		if _, err := h.Open(dir, []byte("another")); !errors.Is(err, ErrForeign) || errors.Is(err, ErrCorrupt) {
			t.Fatalf("open with another identity: %v", err)
		}
	}
	must(t, mustOpen(t, h, dir).Close())
}

func TestLockedDirectoryIsNotCorrupt(t *testing.T) {
	h := newHost(t, smallConfig())
	dir := t.TempDir()
	s := mustOpen(t, h, dir)
	if _, err := h.Open(dir, testIdentity); err == nil || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrForeign) {
		t.Fatalf("second open: %v", err)
	}
	must(t, s.Close())
}

func TestHostCloseWithOpenStore(t *testing.T) {
	h := newHost(t, smallConfig())
	s := mustOpen(t, h, t.TempDir())
	if err := h.Close(); err == nil {
		t.Fatal("host closed under an open store")
	}
	must(t, s.Close())
}

// TestOrphansAreRemoved puts blocks of runs that no manifest names into the
// files: after the next run's id, as a crash leaves them, and before it, as
// Badger's collection brings them back.
func TestOrphansAreRemoved(t *testing.T) {
	h := newHost(t, smallConfig())
	dir := t.TempDir()
	s := mustOpen(t, h, dir)
	var m model
	load(t, s, &m, 0, 300, nil)
	must(t, s.Close())

	db, err := openBadger(dir, h.valueLogBytes, quiet())
	must(t, err)
	d := newDatabase(db)
	man, err := d.manifest()
	must(t, err)
	live := make(map[uint64]bool)
	for _, r := range man.runs {
		live[r.id] = true
	}
	gone := uint64(1)
	for live[gone] {
		gone++
	}
	var work scratch
	table := newTable(h.seed)
	r := rowOf(999)
	table.put(h.seed.hash(&r.Digest), slotOf(&r), extra{})
	for _, id := range []uint64{gone, man.nextRun + 3} {
		_, err := work.writeTable(d, table, id, 512)
		must(t, err)
	}
	must(t, d.close())

	s = mustOpen(t, h, dir)
	if n := s.Stats().OrphansRemoved; n != 2 {
		t.Fatalf("%d orphans removed, want 2", n)
	}
	if got := testutil.ToFloat64(h.metrics.orphans); got != 2 {
		t.Fatalf("metric says %v orphans", got)
	}
	must(t, m.check(s, m.position()))
	if s.manifest.nextRun <= man.nextRun+3 {
		t.Fatalf("next run %d does not pass the orphan %d", s.manifest.nextRun, man.nextRun+3)
	}
	ids, err := s.db.runIDs()
	must(t, err)
	if len(ids) != len(man.runs) {
		t.Fatalf("runs %v are left, want %d", ids, len(man.runs))
	}
	must(t, s.Close())
}

func TestMissingManifestIsCorrupt(t *testing.T) {
	h := newHost(t, smallConfig())
	dir := t.TempDir()
	s := mustOpen(t, h, dir)
	var m model
	load(t, s, &m, 0, 100, nil)
	must(t, s.Close())
	db, err := openBadger(dir, h.valueLogBytes, quiet())
	must(t, err)
	d := newDatabase(db)
	txn := d.NewTransactionAt(math.MaxUint64, true)
	must(t, txn.Delete(manifestKey))
	must(t, d.commit(txn))
	must(t, d.close())
	if _, err := h.Open(dir, testIdentity); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("open without a manifest: %v", err)
	}
	if got := testutil.ToFloat64(h.metrics.corrupt); got != 1 {
		t.Fatalf("metric says %v corrupt stores", got)
	}
}

// TestMissingPageIsCorrupt deletes one page under an open store: the look-up
// that needs it says so, the others go on, and Close frees the directory.
func TestMissingPageIsCorrupt(t *testing.T) {
	h := newHost(t, smallConfig())
	dir := t.TempDir()
	s := mustOpen(t, h, dir)
	var m model
	load(t, s, &m, 0, 60, nil)
	flush(t, s)
	r := s.mine.runs[0]
	txn := s.db.NewTransactionAt(math.MaxUint64, true)
	must(t, txn.Delete(appendBlockKey(nil, r.id, kindPage, 1, 0)))
	must(t, s.db.commit(txn))
	failures := 0
	for n := range uint64(60) {
		d := digestOf(n)
		_, held, err := s.Get(d)
		switch onPage := pageOf(prefix(&d), r.pages) == 1; {
		case onPage && !errors.Is(err, ErrCorrupt):
			t.Fatalf("row %d: %v %v", n, held, err)
		case onPage:
			failures++
		case err != nil || !held:
			t.Fatalf("row %d: %v %v", n, held, err)
		}
	}
	if failures == 0 {
		t.Fatal("no row was on the page")
	}
	if err := s.Apply(m.position()+1, nil); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("apply after a corrupt page: %v", err)
	}
	if err := s.Close(); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("close: %v", err)
	}
	moved, err := Quarantine(dir, time.Unix(0, 0))
	must(t, err)
	if _, err := os.Stat(moved); err != nil {
		t.Fatal(err)
	}
	must(t, mustOpen(t, h, dir).Close())
}

func TestHugeResults(t *testing.T) {
	h := newHost(t, smallConfig())
	h.valueLogBytes = 1 << 20
	dir := t.TempDir()
	s := mustOpen(t, h, dir)
	var m model
	load(t, s, &m, 0, 6, func(r *dedup.Row) {
		r.Status, r.HasResult = dedup.Completed, true
		r.Result = make([]byte, 3<<20)
		for i := range r.Result {
			r.Result[i] = byte(i>>8) ^ byte(r.At.Offset)
		}
	})
	flush(t, s)
	must(t, m.checkGets(s))
	must(t, m.check(s, m.position()))
	must(t, s.Close())
	s = mustOpen(t, h, dir)
	must(t, m.checkGets(s))
	must(t, s.Close())
}

// TestFilesUnfinishedByAKill: empty log files and short statistics do not keep
// a store from opening.
func TestFilesUnfinishedByAKill(t *testing.T) {
	h := newHost(t, smallConfig())
	dir := t.TempDir()
	s := mustOpen(t, h, dir)
	var m model
	load(t, s, &m, 0, 100, nil)
	must(t, s.Close())
	for _, name := range []string{"00077.mem", "000077.vlog"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	must(t, os.Truncate(filepath.Join(dir, "DISCARD"), 100))
	s = mustOpen(t, h, dir)
	must(t, m.check(s, m.position()))
	must(t, s.Close())
	must(t, os.WriteFile(filepath.Join(dir, "00078.mem"), make([]byte, 2*memTableBytes+1), 0o600))
	if _, err := h.Open(dir, testIdentity); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("open with a write-ahead log of another size: %v", err)
	}
}

func TestQuarantineKeepsTwo(t *testing.T) {
	root := t.TempDir()
	dir, other := filepath.Join(root, "7"), filepath.Join(root, "77")
	must(t, os.Mkdir(other, 0o750))
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	var names []string
	for i := range 4 {
		must(t, os.Mkdir(dir, 0o750))
		must(t, os.WriteFile(filepath.Join(dir, "x"), []byte(fmt.Sprint(i)), 0o600))
		name, err := Quarantine(dir+"/", at.Add(time.Duration(i)*time.Second))
		must(t, err)
		names = append(names, name)
	}
	for i, name := range names {
		_, err := os.Stat(name)
		if gone := os.IsNotExist(err); gone != (i < 2) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Quarantine(dir, at); err == nil {
		t.Error("a directory that is not there was quarantined")
	}
	must(t, os.Mkdir(dir, 0o750))
	if _, err := Quarantine(dir, at.Add(3*time.Second)); err == nil {
		t.Error("an earlier quarantine was replaced")
	}
}

func TestConfigReportsAllMistakes(t *testing.T) {
	must(t, DefaultConfig().Validate())
	err := Config{FlushRows: -1, MergeFanIn: 99}.Validate()
	for _, name := range []string{"FLUSH_ROWS", "FLUSH_AGE", "MEMORY_ROWS", "PAGE_BYTES", "MERGE_FAN_IN", "BACKGROUND_JOBS"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
	if _, err := NewHost(Config{}, prometheus.NewRegistry(), quiet()); err == nil {
		t.Error("a host with an invalid config")
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	h, err := NewHost(smallConfig(), reg, quiet())
	must(t, err)
	if _, err := NewHost(smallConfig(), reg, quiet()); err == nil {
		t.Fatal("two hosts on one registry")
	}
	s := mustOpen(t, h, t.TempDir())
	s.Put(rowOf(1))
	for n := range uint64(3) {
		_, _, err := s.Get(digestOf(n)) // one in the overlay
		must(t, err)
	}
	must(t, s.Apply(1, nil))
	_, _, err = s.Get(digestOf(1)) // recent
	must(t, err)
	flush(t, s)
	_, _, err = s.Get(digestOf(1)) // page
	must(t, err)
	s.Discard()
	want := `
# HELP oncebus_state_lookups_total Look-ups by where they were answered: overlay (rows of the open transaction), recent (rows in memory), page (read from a run), filter (absent, no read), false_hit (absent, but a page was read).
# TYPE oncebus_state_lookups_total counter
oncebus_state_lookups_total{answer="false_hit"} 0
oncebus_state_lookups_total{answer="filter"} 2
oncebus_state_lookups_total{answer="overlay"} 1
oncebus_state_lookups_total{answer="page"} 1
oncebus_state_lookups_total{answer="recent"} 1
# HELP oncebus_state_recent_rows Rows in memory only. After a kill they are read from the changelog.
# TYPE oncebus_state_recent_rows gauge
oncebus_state_recent_rows 0
# HELP oncebus_state_rows Rows held, in memory and in runs; an overwritten row counts until its run is merged.
# TYPE oncebus_state_rows gauge
oncebus_state_rows 1
# HELP oncebus_state_runs Runs of all open stores.
# TYPE oncebus_state_runs gauge
oncebus_state_runs 1
`
	must(t, testutil.GatherAndCompare(reg, strings.NewReader(want),
		"oncebus_state_lookups_total", "oncebus_state_rows", "oncebus_state_recent_rows", "oncebus_state_runs"))
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	must(t, s.Close())
	must(t, h.Close())
	if n, err := testutil.GatherAndCount(reg); n != 0 || err != nil {
		t.Fatalf("%d series after Close, %v", n, err)
	}
}

// TestBadgerPanicsAreCorrupt: a panic inside Badger's read becomes an error.
func TestBadgerPanicsAreCorrupt(t *testing.T) {
	d := &database{view: &badger.Txn{}} // has no database: Get panics
	if err := d.read([]byte("x"), nil); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("read: %v", err)
	}
}
