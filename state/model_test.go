package state

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"oncebus/dedup"
)

// TestStoreAgainstModel drives a store through transactions, flushes, merges,
// expiry, reopening, abandoning and crashes, and compares it with a plain
// changelog (invariants 1 and 11 of the design).
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
		m := &machine{h: h, base: base, dir: filepath.Join(base, "store")}
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

// machine is a store beside its model.
type machine struct {
	model
	h    *Host
	base string
	dir  string
	s    *Store
	ops  int
	copy chan string // takes the place where the next write shall copy the directory to
}

// Three namespaces with windows of very different length.
var classSteps = [3]int64{1, 10, 1000}

func (m *machine) drawRow(t *rapid.T) dedup.Row {
	n := rapid.Uint64Range(0, 300).Draw(t, "key")
	r := rowOf(n)
	r.Class = uint8(n % 3)
	// Time goes on with the changelog, with late rows among it.
	r.First = (m.position() - rapid.Int64Range(0, 300).Draw(t, "late")) * classSteps[r.Class]
	r.At.Offset = m.position()
	r.Status = dedup.Status(rapid.IntRange(0, 4).Draw(t, "status"))
	r.Attempt = rapid.Uint32Range(0, 3).Draw(t, "attempt")
	r.Fingerprint = rapid.Uint64Range(0, 2).Draw(t, "fingerprint")
	r.Shift = rapid.Int64Range(-1, 1).Draw(t, "shift")
	switch rapid.IntRange(0, 9).Draw(t, "result") {
	case 0:
		r.HasResult = true
	case 1:
		r.HasResult, r.Result = true, make([]byte, rapid.SampledFrom([]int{0, 1, 900, 5000}).Draw(t, "resultBytes"))
	}
	return r
}

func (m *machine) transact(t *rapid.T, rows int) {
	var put []dedup.Row
	for range rows {
		put = append(put, m.drawRow(t))
	}
	must(t, apply(m.s, m.commit(put)))
}

func (m *machine) apply(t *rapid.T) { m.transact(t, rapid.IntRange(0, 20).Draw(t, "rows")) }

// burst applies enough for flushes and merges without drawing every row.
func (m *machine) burst(t *rapid.T) {
	for range rapid.IntRange(1, 15).Draw(t, "transactions") {
		var put []dedup.Row
		for range 20 {
			r := rowOf(uint64(m.position()*31+int64(len(put))*17) % 300)
			r.Class = uint8((uint64(m.position()*31+int64(len(put))*17) % 300) % 3)
			r.First = m.position() * classSteps[r.Class]
			put = append(put, r)
		}
		must(t, apply(m.s, m.commit(put)))
	}
}

func (m *machine) discard(t *rapid.T) {
	for range rapid.IntRange(0, 5).Draw(t, "rows") {
		r := m.drawRow(t)
		m.s.Put(r)
		got, held, err := m.s.Get(r.Digest)
		must(t, err)
		if !held || !sameRow(got, r) {
			t.Fatalf("overlay: %+v %v, want %+v", got, held, r)
		}
	}
	m.s.Discard()
}

func (m *machine) get(t *rapid.T) {
	rows, _, err := m.at(m.position())
	must(t, err)
	for range 20 {
		d := digestOf(rapid.Uint64Range(0, 400).Draw(t, "key"))
		want, held := rows[d]
		got, gotHeld, err := m.s.Get(d)
		must(t, err)
		if held && m.expired(want) && (!gotHeld || m.expired(got)) {
			continue
		}
		if gotHeld != held || held && !sameRow(got, want) {
			t.Fatalf("get: %+v %v, want %+v %v", got, gotHeld, want, held)
		}
	}
}

func (m *machine) expire(t *rapid.T) {
	for c, step := range classSteps {
		bound := (m.position() - rapid.Int64Range(0, 300).Draw(t, "behind")) * step
		m.before[c] = max(m.before[c], bound)
	}
	m.s.Expire(m.before)
}

func (m *machine) reopen(t *rapid.T) {
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

func (m *machine) abandon(t *rapid.T) {
	must(t, m.s.Abandon())
	m.s = mustOpen(t, m.h, m.dir)
	must(t, m.check(m.s, m.s.DurablePosition()))
	must(t, m.replay(m.s))
	must(t, m.check(m.s, m.position()))
}

// beforeWrite copies the directory when a crash has been asked for.
func (m *machine) beforeWrite(dir string) error {
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

// crash takes the directory as it is at one of the next writes and opens the
// copy: it holds exactly what is below its durable position, and the
// changelog from there on makes it whole.
func (m *machine) crash(t *rapid.T) {
	to := filepath.Join(m.base, "crash")
	// The keeper must not look at the channel while it is replaced.
	must(t, m.s.Close())
	m.copy = make(chan string, 1)
	m.s = mustOpen(t, m.h, m.dir)
	m.copy <- to
	m.burst(t)
	must(t, m.s.Flush(context.Background()))
	if len(m.copy) > 0 {
		<-m.copy // nothing was written
		return
	}
	// The snapshot is complete: the write that made it has been waited for
	// by Flush or, if the keeper is in another one by now, by Close.
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

func (m *machine) checkSometimes(t *rapid.T) {
	if m.ops++; m.ops%8 == 0 {
		must(t, m.check(m.s, m.position()))
	}
}
