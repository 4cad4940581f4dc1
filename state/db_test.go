package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"oncebus/dedup"
)

var errInjected = errors.New("injected failure")

// runLifecycle applies transactions that cause flushes, merges and an eviction.
func runLifecycle(s *Store, m *model, idle <-chan struct{}) error {
	ctx := context.Background()
	for range 14 {
		var rows []dedup.Row
		for i := range 40 {
			r := rowOf(uint64(m.position()*7+int64(i)*13) % 200)
			r.First = m.position()
			if i == 0 {
				r.HasResult, r.Result = true, make([]byte, 6000)
			}
			rows = append(rows, r)
		}
		if err := apply(s, m.commit(rows)); err != nil {
			return err
		}
		if err := s.Flush(ctx); err != nil {
			return err
		}
		s.Discard()
		s.wakeBackground()
		if err := awaitRound(s, idle); err != nil {
			return err
		}
	}
	m.before[0] = m.position() / 2
	s.EvictBefore(m.before)
	if err := awaitRound(s, idle); err != nil {
		return err
	}
	return s.Close()
}

// lifecycle is one run of runLifecycle on a store that fails at one write.
type lifecycle struct {
	h      *Host
	m      model
	dir    string // the store
	killed string // its files as a kill at that write would have left them
	err    error  // of the store; nil if it made fewer writes
}

// failAtWrite runs a lifecycle that fails at its n-th write.
func failAtWrite(t *testing.T, n int) *lifecycle {
	t.Helper()
	cfg := smallConfig()
	cfg.FlushRows = 80
	h, err := openHost(cfg)
	must(t, err)
	base := t.TempDir()
	l := &lifecycle{h: h, dir: filepath.Join(base, "store"), killed: filepath.Join(base, "killed")}
	writes := 0
	h.beforeWrite = func(string) error {
		if writes++; writes != n {
			return nil
		}
		if err := snapshot(l.dir, l.killed); err != nil {
			return err
		}
		return errInjected
	}
	idle := watchIdle(h)
	s, err := h.Open(l.dir, testIdentity)
	if err == nil {
		err = runLifecycle(s, &l.m, idle)
	}
	l.err = err
	if s != nil && err != nil {
		err = errors.Join(err, s.Close())
	}
	if err != nil && !errors.Is(err, errInjected) {
		t.Fatalf("write %d failed: %v", n, err)
	}
	h.beforeWrite = nil
	return l
}

// TestFailureAtEveryWrite fails the first, second, ... write of a lifecycle. The store must return the error and
// release its directory. Its files, and the files that a kill would have left at that write, must have every row
// below their position.
func TestFailureAtEveryWrite(t *testing.T) {
	t.Parallel()
	failures := 0
	for n := 1; ; n++ {
		l := failAtWrite(t, n)
		reopenAndReplay(t, l.h, l.dir, &l.m, n)
		if l.err != nil {
			reopenAndReplay(t, l.h, l.killed, &l.m, n)
		}
		must(t, l.h.Close())
		if l.err == nil {
			break
		}
		failures++
	}
	if failures < 20 {
		t.Fatalf("the lifecycle made only %d writes", failures)
	}
	t.Logf("failed each of %d writes", failures)
}

// reopenAndReplay opens the files and applies the transactions that they lack.
func reopenAndReplay(t *testing.T, h *Host, dir string, m *model, n int) {
	t.Helper()
	s := mustOpen(t, h, dir)
	if err := m.check(s, s.DurablePosition()); err != nil {
		t.Fatalf("write %d failed, %s at its position: %v", n, filepath.Base(dir), err)
	}
	must(t, m.replay(s))
	if err := m.check(s, m.position()); err != nil {
		t.Fatalf("write %d failed, %s after replay: %v", n, filepath.Base(dir), err)
	}
	must(t, s.Close())
	// Ids are never reused, so no block of the failed write may remain.
	s = mustOpen(t, h, dir)
	if st := s.Stats(); st.OrphansRemoved != 0 {
		t.Fatalf("write %d failed, %s: %d orphans after a clean close", n, filepath.Base(dir), st.OrphansRemoved)
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}

// killTxn is transaction i of the endless changelog of the kill test.
func killTxn(m *model, i int) txn {
	r := rand.New(rand.NewPCG(uint64(i), 7))
	var rows []dedup.Row
	for range 1 + r.IntN(60) {
		row := rowOf(r.Uint64N(3000))
		row.First = int64(i) * 100
		row.Attempt = uint32(i)
		if r.IntN(20) == 0 {
			row.HasResult, row.Result = true, make([]byte, r.IntN(3000))
		}
		rows = append(rows, row)
	}
	return m.commit(rows)
}

const killWindow = 150_000 // in units of First

func killBefore(i int) (before [256]int64) {
	before[0] = int64(i)*100 - killWindow
	return before
}

// childLoad applies the kill test's changelog from the store's position on. Until it is killed, it prints each
// transaction's number and the durable position.
func childLoad() {
	cfg := smallConfig()
	cfg.FlushRows = 500
	h, err := openHost(cfg)
	if err != nil {
		panic(err)
	}
	s, err := h.Open(os.Args[len(os.Args)-1], testIdentity)
	if err != nil {
		panic(err)
	}
	var m model
	for i := 0; ; i++ {
		t := killTxn(&m, i)
		if t.position <= s.DurablePosition() {
			continue
		}
		if err := apply(s, t); err != nil {
			panic(err)
		}
		if i%50 == 0 {
			s.EvictBefore(killBefore(i))
		}
		if _, err := fmt.Println(i, s.DurablePosition()); err != nil {
			os.Exit(1) // the test has ended
		}
	}
}

// TestKill kills a process at some transaction and opens its files. They must have exactly the rows below their
// position, which is at least the durable position that the process printed last.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, smallConfig())
	r := rand.New(rand.NewPCG(11, 12))
	var m model
	orphans := uint64(0)
	for round := range 8 {
		last, durable := killAfter(t, dir, 20+r.IntN(400))
		s := mustOpen(t, h, dir)
		// The process may have applied more transactions than it printed.
		for i := len(m.txns); i <= last || m.position() < s.DurablePosition(); i++ {
			killTxn(&m, i)
		}
		m.before = killBefore(len(m.txns))
		if s.DurablePosition() < durable {
			t.Fatalf("round %d: position %d, before the kill %d", round, s.DurablePosition(), durable)
		}
		if err := m.check(s, s.DurablePosition()); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		orphans += s.Stats().OrphansRemoved
		must(t, s.Abandon())
	}
	t.Logf("%d transactions, %d orphan runs", len(m.txns), orphans)
}

// killAfter runs childLoad on dir, kills it after it has printed some lines, and returns the values of its last line.
func killAfter(t *testing.T, dir string, lines int) (last int, durable int64) {
	cmd, in := startChild(t, "load", dir, os.Stderr)
	for n := 0; n < lines && in.Scan(); n++ {
		if _, err := fmt.Sscan(in.Text(), &last, &durable); err != nil {
			t.Fatalf("child printed %q: %v", in.Text(), err)
		}
	}
	must(t, cmd.Process.Kill())
	for in.Scan() { // lines printed before the kill
		if _, err := fmt.Sscan(in.Text(), &last, &durable); err != nil {
			break // truncated line
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("child ended without an error")
	}
	return last, durable
}

// snapshot copies a store's directory as a kill would leave it. The caller is in a write of the store, so only
// Badger's flushes and compactions change files. If files changed during a copy, snapshot repeats the copy.
func snapshot(from, to string) error {
	for range 100 {
		before, err := listing(from)
		if err != nil {
			return err
		}
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		if err := copyFiles(from, to, before); err != nil {
			if os.IsNotExist(err) {
				continue
			}
			return err
		}
		after, err := listing(from)
		if err != nil {
			return err
		}
		if maps.Equal(before, after) {
			return nil
		}
	}
	return fmt.Errorf("files of %s changed during each of 100 copies", from)
}

func listing(dir string) (map[string]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	sizes := make(map[string]int64)
	for _, e := range entries {
		info, err := e.Info()
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		sizes[e.Name()] = info.Size()
	}
	return sizes, nil
}

func copyFiles(from, to string, names map[string]int64) error {
	if err := os.MkdirAll(to, 0o750); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := copySparse(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// copySparse copies a file and leaves holes where the file has zeros.
func copySparse(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(int64(len(data))); err != nil {
		return err
	}
	zero := make([]byte, 4096)
	for at := 0; at < len(data); at += len(zero) {
		piece := data[at:min(at+len(zero), len(data))]
		if !bytes.Equal(piece, zero[:len(piece)]) {
			if _, err := f.WriteAt(piece, int64(at)); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestMissingPageIsCorrupt deletes one page of an open store. Look-ups in that page must return ErrCorrupt, others
// succeed, and Close releases the directory.
func TestMissingPageIsCorrupt(t *testing.T) {
	h, dir, s := newStore(t)
	var m model
	applyRows(t, s, &m, 0, 60, nil)
	flush(t, s)
	r := s.ownerView.runs[0]
	txn := s.db.NewTransactionAt(math.MaxUint64, true)
	must(t, txn.Delete(appendBlockKey(nil, r.id, kindPage, 1, 0)))
	must(t, s.db.commit(txn))
	failures := 0
	for n := range uint64(60) {
		d := digestOf(n)
		_, found, err := s.Get(d)
		switch onPage := pageOf(prefix(&d), r.pages) == 1; {
		case onPage && !errors.Is(err, ErrCorrupt):
			t.Fatalf("row %d: %v %v", n, found, err)
		case onPage:
			failures++
		case err != nil || !found:
			t.Fatalf("row %d: %v %v", n, found, err)
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

// TestBadgerPanicsAreCorrupt requires ErrCorrupt after a panic in a read of Badger.
func TestBadgerPanicsAreCorrupt(t *testing.T) {
	d := &database{readTxn: &badger.Txn{}} // has no database: Get panics
	if err := d.read([]byte("x"), nil); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("read: %v", err)
	}
}
