package state

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"oncebus/dedup"
)

var errInjected = errors.New("injected failure")

// scenario applies transactions that make flushes, merges and an expiry.
func scenario(s *Store, m *model, rested <-chan struct{}) error {
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
		s.wake()
		select {
		case <-rested:
		case <-s.failed:
			return s.Err()
		}
	}
	m.before[0] = m.position() / 2
	s.Expire(m.before)
	select {
	case <-rested:
	case <-s.failed:
		return s.Err()
	}
	return s.Close()
}

// TestFailureAtEveryWrite fails the first, second, ... write of a run through
// flushes, merges, deletions and expiry. The store reports it, gives its
// directory free, and the files hold what is below their position; so do the
// files as a kill would have left them at that write.
func TestFailureAtEveryWrite(t *testing.T) {
	t.Parallel()
	cfg := smallConfig()
	cfg.FlushRows = 80
	failures := 0
	for n := 1; ; n++ {
		h, err := openHost(cfg)
		must(t, err)
		base := t.TempDir()
		dir, killed := filepath.Join(base, "store"), filepath.Join(base, "killed")
		writes := 0
		h.beforeWrite = func(string) error {
			if writes++; writes != n {
				return nil
			}
			if err := snapshot(dir, killed); err != nil {
				return err
			}
			return errInjected
		}
		rested := rests(h)
		var m model
		s, err := h.Open(dir, testIdentity)
		if err == nil {
			err = scenario(s, &m, rested)
		}
		if err != nil && !errors.Is(err, errInjected) {
			t.Fatalf("write %d failed: %v", n, err)
		}
		if err != nil && s != nil {
			failures++
			if err := s.Close(); err != nil && !errors.Is(err, errInjected) {
				t.Fatalf("write %d failed: close: %v", n, err)
			}
		}
		h.beforeWrite = nil
		for _, dir := range []string{dir, killed} {
			if _, statErr := os.Stat(dir); statErr != nil && err == nil {
				continue // no write was left to fail
			}
			reopenAndReplay(t, h, dir, &m, n)
		}
		must(t, h.Close())
		if err == nil {
			break
		}
	}
	if failures < 20 {
		t.Fatalf("only %d writes were failed", failures)
	}
	t.Logf("failed each of %d writes", failures)
}

// reopenAndReplay opens what is left and brings it up to date from the changelog.
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
	// Ids are never used twice, so nothing of the failed attempt is left.
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

const killExpireAfter = 150_000 // in units of First

func killBefore(i int) (before [256]int64) {
	before[0] = int64(i)*100 - killExpireAfter
	return before
}

// childLoad goes on with the kill test's changelog where the store stands and
// prints each transaction's number and the durable position, until killed.
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
			s.Expire(killBefore(i))
		}
		if _, err := fmt.Println(i, s.DurablePosition()); err != nil {
			os.Exit(1) // the test is gone
		}
	}
}

// TestKill kills a process that writes, at some transaction, and opens what it
// left: exactly the rows below a position that is not behind what the process
// had called durable.
func TestKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := newHost(t, smallConfig())
	r := rand.New(rand.NewPCG(11, 12))
	var m model
	orphans := uint64(0)
	for round := range 8 {
		last, durable := killAfter(t, dir, 20+r.IntN(400))
		s := mustOpen(t, h, dir)
		// The process may have gone on behind the line that was read last.
		for i := len(m.txns); i <= last || m.position() < s.DurablePosition(); i++ {
			killTxn(&m, i)
		}
		m.before = killBefore(len(m.txns))
		if s.DurablePosition() < durable {
			t.Fatalf("round %d: position %d, was durable to %d", round, s.DurablePosition(), durable)
		}
		if err := m.check(s, s.DurablePosition()); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		orphans += s.Stats().OrphansRemoved
		must(t, s.Abandon())
	}
	t.Logf("%d transactions, %d orphan runs", len(m.txns), orphans)
}

// killAfter lets a child load dir until it has printed some lines, kills it,
// and returns what the last line said.
func killAfter(t *testing.T, dir string, lines int) (last int, durable int64) {
	cmd := exec.Command(os.Args[0], dir)
	cmd.Env = append(os.Environ(), childEnv+"=load")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	in := bufio.NewScanner(out)
	for n := 0; n < lines && in.Scan(); n++ {
		if _, err := fmt.Sscan(in.Text(), &last, &durable); err != nil {
			t.Fatalf("child says %q: %v", in.Text(), err)
		}
	}
	must(t, cmd.Process.Kill())
	for in.Scan() { // whatever it still said before it died
		if _, err := fmt.Sscan(in.Text(), &last, &durable); err != nil {
			break // a line cut short
		}
	}
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err == nil {
		t.Fatal("child ended by itself")
	}
	return last, durable
}
