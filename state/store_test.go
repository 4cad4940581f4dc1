package state

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"oncebus/dedup"
)

// TestLateRows stores rows that have a much earlier event time than the others.
func TestLateRows(t *testing.T) {
	_, _, s := newStore(t)
	var m model
	applyRows(t, s, &m, 0, 500, func(r *dedup.Row) {
		if r.At.Offset%7 == 0 {
			r.First -= 1e11
		}
	})
	must(t, m.check(s, m.position()))
	must(t, m.checkGets(s))
	must(t, s.Close())
}

// TestRowsFromReadsTheOpenTransaction has one key in a run, in the recent rows and in the open transaction. The
// newest row counts, and a discard brings back the row before it.
func TestRowsFromReadsTheOpenTransaction(t *testing.T) {
	_, _, s := newStore(t)
	var m model
	applyRows(t, s, &m, 0, 50, nil)
	flush(t, s)
	applyRows(t, s, &m, 40, 60, func(r *dedup.Row) { r.Attempt = 2 })
	read := func() (attempts map[uint32]int) {
		attempts = map[uint32]int{}
		for r, err := range inChunks(s, 7) {
			must(t, err)
			attempts[r.Attempt]++
		}
		return attempts
	}
	for n := uint64(55); n < 65; n++ {
		r := rowOf(n)
		r.Attempt = 3
		s.Put(r)
	}
	if got := read(); got[0] != 40 || got[2] != 15 || got[3] != 10 {
		t.Errorf("rows by attempt: %v", got)
	}
	s.Discard()
	if got := read(); got[0] != 40 || got[2] != 20 || got[3] != 0 {
		t.Errorf("rows by attempt after the discard: %v", got)
	}
	must(t, s.Close())
}

// TestStoreAgainstModel runs random transactions, flushes, merges, evictions, reopenings, abandonings and crashes on
// a store, and compares the store with a model.
func TestStoreAgainstModel(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	checks := 0
	rapid.Check(t, func(t *rapid.T) {
		checks++
		base := filepath.Join(root, strconv.Itoa(checks))
		must(t, os.Mkdir(base, 0o750))
		defer os.RemoveAll(base)
		cfg := smallConfig()
		cfg.FlushRows = rapid.SampledFrom([]int{8, 40, 200}).Draw(t, "flushRows")
		cfg.PageBytes = rapid.SampledFrom([]int{128, 512, 8 << 10}).Draw(t, "pageBytes")
		h, err := openHost(cfg)
		must(t, err)
		m := &storeMachine{h: h, base: base, dir: filepath.Join(base, "store")}
		h.beforeWrite = m.beforeWrite
		m.s = mustOpen(t, h, m.dir)
		defer func() {
			if err := m.s.Abandon(); err != nil {
				t.Errorf("abandon: %v", err)
			}
			if err := h.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}()
		t.Repeat(map[string]func(*rapid.T){
			"apply":   m.apply,
			"burst":   m.burst,
			"discard": m.discard,
			"get":     m.get,
			"flush":   func(t *rapid.T) { flush(t, m.s) },
			"expire":  m.expire,
			"reopen":  m.reopen,
			"abandon": m.abandon,
			"crash":   m.crash,
			"":        m.checkSometimes,
		})
		must(t, m.model.check(m.s, m.model.position()))
		must(t, m.model.checkGets(m.s))
	})
}

// storeMachine is a store and its model.
type storeMachine struct {
	model
	h    *Host
	base string
	dir  string
	s    *Store
	ops  int
	copy chan string // the target directory of the snapshot at the next write
}

// namespaceSteps has three namespaces whose windows have very different lengths.
var namespaceSteps = [3]int64{1, 10, 1000}

func (m *storeMachine) drawRow(t *rapid.T) dedup.Row {
	n := rapid.Uint64Range(0, 300).Draw(t, "key")
	r := rowOf(n)
	r.NamespaceID = uint8(n % 3)
	// Event time increases with the position, except for late rows.
	r.First = (m.position() - rapid.Int64Range(0, 300).Draw(t, "late")) * namespaceSteps[r.NamespaceID]
	r.At.Offset = m.position()
	r.Status = dedup.Status(rapid.IntRange(0, 4).Draw(t, "status"))
	r.Attempt = rapid.Uint32Range(0, 3).Draw(t, "attempt")
	r.Fingerprint = rapid.Uint64Range(0, 2).Draw(t, "fingerprint")
	r.Shift = rapid.Int64Range(-1, 1).Draw(t, "shift")
	drawLink(t, &r)
	switch rapid.IntRange(0, 9).Draw(t, "result") {
	case 0:
		r.HasResult = true
	case 1:
		r.HasResult, r.Result = true, make([]byte, rapid.SampledFrom([]int{0, 1, 900, 5000}).Draw(t, "resultBytes"))
	}
	return r
}

func (m *storeMachine) transact(t *rapid.T, rows int) {
	var put []dedup.Row
	for range rows {
		put = append(put, m.drawRow(t))
	}
	must(t, apply(m.s, m.commit(put)))
}

func (m *storeMachine) apply(t *rapid.T) { m.transact(t, rapid.IntRange(0, 20).Draw(t, "rows")) }

// burst applies enough rows for flushes and merges without drawing each row.
func (m *storeMachine) burst(t *rapid.T) {
	for range rapid.IntRange(1, 15).Draw(t, "transactions") {
		var put []dedup.Row
		for range 20 {
			r := rowOf(uint64(m.position()*31+int64(len(put))*17) % 300)
			r.NamespaceID = uint8((uint64(m.position()*31+int64(len(put))*17) % 300) % 3)
			r.First = m.position() * namespaceSteps[r.NamespaceID]
			put = append(put, r)
		}
		must(t, apply(m.s, m.commit(put)))
	}
}

func (m *storeMachine) discard(t *rapid.T) {
	for range rapid.IntRange(0, 5).Draw(t, "rows") {
		r := m.drawRow(t)
		m.s.Put(r)
		got, found, err := m.s.Get(r.Digest)
		must(t, err)
		if !found || !sameRow(got, r) {
			t.Fatalf("overlay: %+v %v, want %+v", got, found, r)
		}
	}
	m.s.Discard()
}

func (m *storeMachine) get(t *rapid.T) {
	rows, _, err := m.at(m.position())
	must(t, err)
	for range 20 {
		d := digestOf(rapid.Uint64Range(0, 400).Draw(t, "key"))
		want, found := rows[d]
		got, gotFound, err := m.s.Get(d)
		must(t, err)
		if found && m.evictable(want) && (!gotFound || m.evictable(got)) {
			continue
		}
		if gotFound != found || found && !sameRow(got, want) {
			t.Fatalf("get: %+v %v, want %+v %v", got, gotFound, want, found)
		}
	}
}

func (m *storeMachine) expire(t *rapid.T) {
	for c, step := range namespaceSteps {
		bound := (m.position() - rapid.Int64Range(0, 300).Draw(t, "behind")) * step
		m.before[c] = max(m.before[c], bound)
	}
	m.s.EvictBefore(m.before)
}

func (m *storeMachine) reopen(t *rapid.T) {
	must(t, m.s.Close())
	m.s = mustOpen(t, m.h, m.dir)
	if m.s.DurablePosition() != m.position() {
		t.Fatalf("durable position %d after a clean close at %d", m.s.DurablePosition(), m.position())
	}
	if n := m.s.Stats().OrphansRemoved; n != 0 {
		t.Fatalf("%d orphan runs after a clean close", n)
	}
	must(t, m.check(m.s, m.position()))
}

func (m *storeMachine) abandon(t *rapid.T) {
	must(t, m.s.Abandon())
	m.s = mustOpen(t, m.h, m.dir)
	must(t, m.check(m.s, m.s.DurablePosition()))
	must(t, m.replay(m.s))
	must(t, m.check(m.s, m.position()))
}

// beforeWrite copies the directory if crash has requested it.
func (m *storeMachine) beforeWrite(dir string) error {
	if dir != m.dir || m.copy == nil {
		return nil
	}
	select {
	case to := <-m.copy:
		return snapshot(dir, to)
	default:
		return nil
	}
}

// crash copies the directory during one of the next writes and opens the copy. The copy must have exactly the rows
// below its durable position, and all rows after a replay of the changelog.
func (m *storeMachine) crash(t *rapid.T) {
	to := filepath.Join(m.base, "crash")
	// The store is closed first, because its background goroutine reads m.copy.
	must(t, m.s.Close())
	m.copy = make(chan string, 1)
	m.s = mustOpen(t, m.h, m.dir)
	m.copy <- to
	m.burst(t)
	must(t, m.s.Flush(context.Background()))
	if len(m.copy) > 0 {
		<-m.copy // the store made no write
		return
	}
	// Flush or Close waits for the write that makes the snapshot.
	must(t, m.s.Close())
	m.s = mustOpen(t, m.h, m.dir)

	s := mustOpen(t, m.h, to)
	err := m.check(s, s.DurablePosition())
	if err == nil {
		err = m.replay(s)
	}
	if err == nil {
		err = m.check(s, m.position())
	}
	must(t, s.Abandon())
	must(t, os.RemoveAll(to))
	must(t, err)
}

func (m *storeMachine) checkSometimes(t *rapid.T) {
	if m.ops++; m.ops%8 == 0 {
		must(t, m.check(m.s, m.position()))
	}
}

// TestLookupsDoNotAllocate measures look-ups of absent and of recent rows, and transactions once the tables have
// grown.
func TestLookupsDoNotAllocate(t *testing.T) {
	h := newHost(t, DefaultConfig())
	s := mustOpen(t, h, t.TempDir())
	for n := range uint64(5000) {
		s.Put(rowOf(n))
	}
	must(t, s.Apply(1, nil))
	flush(t, s)
	for n := range uint64(500) {
		s.Put(rowOf(5000 + n))
	}
	must(t, s.Apply(2, nil))
	var absent []dedup.Digest // without false hits, which read a page
	for n := uint64(1 << 40); len(absent) < 64; n++ {
		if d := digestOf(n); !s.ownerView.runs[0].filter.has(&d) {
			absent = append(absent, d)
		}
	}
	recent := digestOf(5003)
	i := 0
	for name, c := range map[string]struct {
		most float64
		op   func()
	}{
		"absent": {0, func() { i++; _, _, _ = s.Get(absent[i%64]) }},
		"recent": {0, func() { _, _, _ = s.Get(recent) }},
		"page":   {25, func() { _, _, _ = s.Get(digestOf(7)) }},
		"transaction": {0, func() {
			for n := range uint64(100) {
				s.Put(rowOf(5000 + n))
			}
			if _, found, _ := s.Get(recent); !found {
				t.Error("recent row not found")
			}
			must(t, s.Apply(s.Position()+1, nil))
		}},
		"discarded": {0, func() { s.Put(rowOf(1)); s.Discard() }},
	} {
		if got := testing.AllocsPerRun(100, c.op); got > c.most {
			t.Errorf("%s: %v allocations, want at most %v", name, got, c.most)
		}
	}
	must(t, s.Close())
}

func TestPositionNeverGoesBack(t *testing.T) {
	_, _, s := newStore(t)
	must(t, s.Apply(10, nil))
	must(t, s.Apply(10, nil))
	if err := s.Apply(9, nil); err == nil || !strings.Contains(err.Error(), "already at offset 10") {
		t.Fatalf("apply at 9 after 10: %v", err)
	}
	must(t, s.Apply(11, nil)) // a rejected Apply does not fail the store
	must(t, s.Close())
	must(t, s.Close())
}

func TestCheckpointMatchesPosition(t *testing.T) {
	h, dir, s := newStore(t)
	if c := s.Checkpoint(); c != nil {
		t.Fatalf("checkpoint %q of a new store", c)
	}
	must(t, s.Apply(5, []byte("five")))
	flush(t, s)
	must(t, s.ApplyMore(6, []byte(" and six")))
	flush(t, s)
	must(t, s.ApplyMore(7, []byte(" and seven")))
	must(t, s.Abandon())
	s = mustOpen(t, h, dir)
	if c, p := string(s.Checkpoint()), s.Position(); c != "five and six" || p != 6 {
		t.Fatalf("checkpoint %q at %d, want five and six at 6", c, p)
	}
	if err := s.ApplyMore(5, nil); err == nil {
		t.Fatal("ApplyMore at a lower position returned no error")
	}
	if err := s.ApplyMore(6, make([]byte, maxCheckpointBytes)); err == nil || string(s.Checkpoint()) != "five and six" {
		t.Fatalf("ApplyMore of an oversized checkpoint returned %v", err)
	}
	if err := s.Apply(6, make([]byte, maxCheckpointBytes+1)); err == nil {
		t.Fatal("Apply of an oversized checkpoint returned no error")
	}
	must(t, s.Close())
}

func TestHugeResults(t *testing.T) {
	h := newHost(t, smallConfig())
	h.valueLogBytes = 1 << 20
	dir := t.TempDir()
	s := mustOpen(t, h, dir)
	var m model
	applyRows(t, s, &m, 0, 6, func(r *dedup.Row) {
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

// TestFreezeLeavesTheOpenTransaction protects that a flush during a transaction writes only the applied rows. The
// rows of the transaction stay until it is applied or discarded.
func TestFreezeLeavesTheOpenTransaction(t *testing.T) {
	for _, applied := range []bool{false, true} {
		h, dir, s := newStore(t)
		var m model
		replaced, added := rowOf(1), rowOf(2)
		must(t, apply(s, m.commit([]dedup.Row{replaced})))
		flushed := m.position()
		replaced.Attempt, replaced.HasResult, replaced.Result = 7, true, []byte("outcome")
		open := []dedup.Row{replaced, added}
		for _, row := range open {
			s.Put(row)
		}
		flush(t, s)
		for _, row := range open {
			if got, found, err := s.Get(row.Digest); err != nil || !found || !sameRow(got, row) {
				t.Fatalf("the open transaction has %v %v (%v), want %v", got, found, err, row)
			}
		}
		must(t, m.check(s, flushed))
		if applied {
			next := m.commit(open)
			must(t, s.Apply(next.position, next.checkpoint))
		} else {
			s.Discard()
		}
		must(t, m.check(s, m.position()))
		must(t, s.Abandon())
		s = mustOpen(t, h, dir)
		must(t, m.check(s, flushed))
		must(t, s.Close())
	}
}
