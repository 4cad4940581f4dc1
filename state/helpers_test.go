package state

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"oncebus/dedup"
)

// childEnv makes the test binary one of the programs that tests start.
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
		// Every check opens a dozen databases. The command line can ask for
		// more: -rapid.checks 1000.
		if err := flag.Set("rapid.checks", "25"); err != nil {
			panic(err)
		}
		goleak.VerifyTestMain(m)
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// smallConfig makes runs, pages and merges of few rows.
func smallConfig() Config {
	cfg := DefaultConfig()
	cfg.FlushRows, cfg.PageBytes, cfg.MergeFanIn = 64, 512, 3
	return cfg
}

// openHost returns a host with small files; the caller closes it.
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

func must(t failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// digestOf mixes n into 128 uniform bits, without collisions (splitmix64).
func digestOf(n uint64) (d dedup.Digest) {
	for i := range 2 {
		x := n + uint64(i+1)*0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		binary.BigEndian.PutUint64(d[8*i:], x^x>>31)
	}
	return d
}

func rowOf(n uint64) dedup.Row {
	return dedup.Row{Digest: digestOf(n), First: int64(1e12 + n), At: dedup.Position{Topic: 1, Partition: 3, Offset: int64(n)}}
}

func sameRow(a, b dedup.Row) bool {
	return a.Digest == b.Digest && a.First == b.First && a.At == b.At && a.Fingerprint == b.Fingerprint && a.Shift == b.Shift &&
		a.Class == b.Class && a.Status == b.Status && a.Attempt == b.Attempt && a.HasResult == b.HasResult &&
		(a.Result == nil) == (b.Result == nil) && bytes.Equal(a.Result, b.Result)
}

// model is a changelog and what it says: the truth that a store is held to.
type model struct {
	txns   []txn
	before [256]int64 // the greatest bounds ever given to Expire
}

// txn is a committed transaction: its rows, and the store's position and
// checkpoint after it.
type txn struct {
	rows       []dedup.Row
	position   int64
	checkpoint []byte
}

func (m *model) position() int64 {
	if len(m.txns) == 0 {
		return 0
	}
	return m.txns[len(m.txns)-1].position
}

// commit adds a transaction. Like a changelog's, positions have gaps.
func (m *model) commit(rows []dedup.Row) txn {
	next := m.position() + int64(len(rows)) + 1
	m.txns = append(m.txns, txn{rows, next, fmt.Appendf(nil, "at %d", next)})
	return m.txns[len(m.txns)-1]
}

// at returns the rows below a position, and its checkpoint. The position must
// be one that a transaction ended at.
func (m *model) at(position int64) (rows map[dedup.Digest]dedup.Row, checkpoint []byte, err error) {
	rows = make(map[dedup.Digest]dedup.Row)
	end := int64(0)
	for _, t := range m.txns {
		if t.position > position {
			break
		}
		for _, r := range t.rows {
			rows[r.Digest] = r
		}
		end, checkpoint = t.position, t.checkpoint
	}
	if end != position {
		return nil, nil, fmt.Errorf("position %d is inside a transaction", position)
	}
	return rows, checkpoint, nil
}

func (m *model) expired(r dedup.Row) bool { return r.First < m.before[r.Class] }

// check compares everything a store holds with what it should at position.
func (m *model) check(s *Store, position int64) error {
	if s.Position() != position {
		return fmt.Errorf("position %d, want %d", s.Position(), position)
	}
	want, checkpoint, err := m.at(position)
	if err != nil {
		return err
	}
	if !bytes.Equal(s.Checkpoint(), checkpoint) || (s.Checkpoint() == nil) != (checkpoint == nil) {
		return fmt.Errorf("checkpoint %q, want %q", s.Checkpoint(), checkpoint)
	}
	var last dedup.Digest
	for r, err := range s.Rows() {
		if err != nil {
			return err
		}
		if bytes.Compare(r.Digest[:], last[:]) <= 0 {
			return fmt.Errorf("digest %v after %v", r.Digest, last)
		}
		last = r.Digest
		w, held := want[r.Digest]
		if !held {
			return fmt.Errorf("row %+v should not be there", r)
		}
		// An older row may show once the newest is out of time and gone.
		if !sameRow(r, w) && !(m.expired(w) && m.expired(r)) {
			return fmt.Errorf("row %+v, want %+v", r, w)
		}
		delete(want, r.Digest)
	}
	for _, w := range want {
		if !m.expired(w) {
			return fmt.Errorf("row %+v is missing", w)
		}
	}
	return nil
}

// checkGets looks every digest up, one by one.
func (m *model) checkGets(s *Store) error {
	want, _, err := m.at(s.Position())
	if err != nil {
		return err
	}
	for d, w := range want {
		r, held, err := s.Get(d)
		if err != nil {
			return err
		}
		if held && !sameRow(r, w) && !(m.expired(w) && m.expired(r)) || !held && !m.expired(w) {
			return fmt.Errorf("get: %+v %v, want %+v", r, held, w)
		}
		for i := range d {
			d[i] ^= 0x55
		}
		if _, held, err := s.Get(d); held || err != nil {
			return fmt.Errorf("get of an absent digest: %v, %w", held, err)
		}
	}
	return nil
}

// apply runs a transaction against a store.
func apply(s *Store, t txn) error {
	for _, r := range t.rows {
		s.Put(r)
	}
	return s.Apply(t.position, t.checkpoint)
}

// replay gives a store the transactions that it lacks.
func (m *model) replay(s *Store) error {
	for _, t := range m.txns {
		if t.position > s.Position() {
			if err := apply(s, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// snapshot copies a store's directory as a kill would leave it. It is called
// from within a write of the store, so that only Badger's own flushes and
// compactions can be at work: a copy during which the files changed is
// repeated.
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
	return fmt.Errorf("%s does not come to rest", from)
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

// copySparse copies a file and leaves holes where it is zero.
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

// flush is Flush without a deadline.
func flush(t failer, s *Store) {
	t.Helper()
	must(t, s.Flush(context.Background()))
}

// rests makes a host report when a keeper has nothing left to do. It is called
// before stores are opened, for one store at a time.
func rests(h *Host) <-chan struct{} {
	rested := make(chan struct{}, 1)
	h.rested = func() {
		select {
		case rested <- struct{}{}:
		default:
		}
	}
	return rested
}

// settle returns when the keeper has done all that could be done when it was
// called: the first report may be about what went before, the second is not.
func settle(t failer, s *Store, rested <-chan struct{}) {
	t.Helper()
	s.Discard() // moves to the newest view, so that old runs are given up
	select {
	case <-rested:
	default:
	}
	for range 2 {
		s.wake()
		select {
		case <-rested:
		case <-s.failed:
			t.Fatalf("store failed: %v", s.Err())
		}
	}
	s.Discard()
}
