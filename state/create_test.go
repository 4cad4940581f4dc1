package state

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"oncebus/dedup"
)

// unopened returns a store whose directory does not exist yet.
func unopened(t *testing.T) (h *Host, dir string, s *Store) {
	t.Helper()
	h, dir = newHost(t, smallConfig()), filepath.Join(t.TempDir(), "store")
	return h, dir, mustOpen(t, h, dir)
}

func checkNoDir(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s exists: %v", dir, err)
	}
}

func putRow(t *testing.T, s *Store, key byte, position int64) {
	t.Helper()
	s.Put(dedup.Row{Digest: dedup.Digest{key}, First: 7})
	must(t, s.Apply(position, []byte{key}))
}

func checkRow(t *testing.T, s *Store, key byte, want bool) {
	t.Helper()
	if _, found, err := s.Get(dedup.Digest{key}); found != want || err != nil {
		t.Errorf("row %d found: %v, %v; want %v", key, found, err, want)
	}
}

// TestStoreHasNoFilesBeforeItsFirstFlush protects that a store without rows costs no file, and that the first flush
// writes all rows that were applied before it.
func TestStoreHasNoFilesBeforeItsFirstFlush(t *testing.T) {
	h, dir, s := unopened(t)
	must(t, s.Flush(t.Context()))
	must(t, s.Close())
	checkNoDir(t, dir)
	s = mustOpen(t, h, dir)
	putRow(t, s, 1, 5)
	s.Put(dedup.Row{Digest: dedup.Digest{9}})
	s.Discard()
	putRow(t, s, 2, 6)
	checkNoDir(t, dir)
	checkRow(t, s, 1, true)
	checkRow(t, s, 9, false)
	if st := s.Stats(); st.DurablePosition != 0 || st.Position != 6 || st.Rows != 2 || st.DiskBytes != 0 {
		t.Errorf("before the flush: %+v", st)
	}
	must(t, s.Flush(t.Context()))
	if s.DurablePosition() != 6 {
		t.Errorf("durable up to %d, want 6", s.DurablePosition())
	}
	checkRow(t, s, 1, true)
	putRow(t, s, 3, 7)
	must(t, s.Close())
	s = mustOpen(t, h, dir)
	defer func() { must(t, s.Close()) }()
	if string(s.Checkpoint()) != "\x03" || s.Position() != 7 {
		t.Errorf("reopened at %d with checkpoint %x", s.Position(), s.Checkpoint())
	}
	for key := range byte(3) {
		checkRow(t, s, key+1, true)
	}
}

// TestKillBeforeTheFirstFlush covers rows that no flush has written, and that are only in the changelog. The next
// store must say that it lacks them.
func TestKillBeforeTheFirstFlush(t *testing.T) {
	h, dir, s := unopened(t)
	putRow(t, s, 1, 5)
	must(t, s.Abandon())
	checkNoDir(t, dir)
	s = mustOpen(t, h, dir)
	defer func() { must(t, s.Close()) }()
	checkRow(t, s, 1, false)
	if s.Position() != 0 || s.Checkpoint() != nil {
		t.Errorf("opened at %d with checkpoint %x, want nothing", s.Position(), s.Checkpoint())
	}
}

// TestStoreFailsIfItsFilesCannotBeCreated protects that a flush which cannot create the files fails the store, and
// that the store does not open again while the cause lasts. Otherwise it would collect rows in memory that no flush
// can write.
func TestStoreFailsIfItsFilesCannotBeCreated(t *testing.T) {
	h, dir, s := unopened(t)
	putRow(t, s, 1, 5)
	must(t, os.WriteFile(dir, nil, 0o600))
	err := s.Flush(t.Context())
	if err == nil || errors.Is(err, ErrCorrupt) || s.Err() == nil {
		t.Fatalf("flush into a file: %v, the store has %v", err, s.Err())
	}
	if err := s.Close(); err == nil {
		t.Error("the failed store closes without an error")
	}
	if _, err := h.Open(dir, testIdentity); err == nil {
		t.Fatal("the store opens while its files cannot be created")
	}
	must(t, os.Remove(dir))
	s = mustOpen(t, h, dir)
	defer func() { must(t, s.Close()) }()
	if _, err := os.Lstat(filepath.Join(dir, statusName)); err != nil {
		t.Errorf("opened without files after a failed creation: %v", err)
	}
}

// TestFilesOfAnotherOpeningAreRefused covers files that appear while a store has none. All rows of such a store are
// in memory, so the files cannot be older rows of this store.
func TestFilesOfAnotherOpeningAreRefused(t *testing.T) {
	h, dir, s := unopened(t)
	putRow(t, s, 1, 5)
	other := mustOpen(t, h, dir)
	putRow(t, other, 2, 9)
	must(t, other.Close())
	if err := s.Flush(t.Context()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("flush into another's files: %v", err)
	}
	if err := s.Close(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("close: %v", err)
	}
}

// TestStoreOpensInItsTurn protects that a store waits while the largest allowed number of other stores open.
// Meanwhile its restore can be stopped, and a store that waits to create its files can be closed.
func TestStoreOpensInItsTurn(t *testing.T) {
	h, dir, s := unopened(t)
	h.LimitOpenings(1)
	<-h.openings
	putRow(t, s, 1, 5)
	<-s.freezeToken
	s.freezeTable()
	must(t, s.Abandon())
	checkNoDir(t, dir)
	must(t, os.Mkdir(dir, 0o700))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.OpenUntil(ctx, dir, testIdentity); !errors.Is(err, context.Canceled) {
		t.Errorf("without a turn the store opens: %v", err)
	}
	h.openings <- struct{}{}
	for range 2 { // the turn comes back
		must(t, mustOpen(t, h, dir).Close())
	}
}

// TestManyStoresCloseWithoutFiles protects that a stop of many tasks that never had a flush creates no files, because
// the stop would otherwise take longer than it may. A store that had a flush writes the rest of its rows.
func TestManyStoresCloseWithoutFiles(t *testing.T) {
	h, dir, s := unopened(t)
	h.openStores.Add(createdAtClose)
	putRow(t, s, 1, 5)
	must(t, s.Close())
	checkNoDir(t, dir)
	s = mustOpen(t, h, dir)
	putRow(t, s, 1, 5)
	must(t, s.Flush(t.Context()))
	putRow(t, s, 2, 6)
	must(t, s.Close())
	h.openStores.Add(-createdAtClose)
	s = mustOpen(t, h, dir)
	defer func() { must(t, s.Close()) }()
	if s.Position() != 6 {
		t.Errorf("opened at %d, want 6", s.Position())
	}
	checkRow(t, s, 2, true)
}
