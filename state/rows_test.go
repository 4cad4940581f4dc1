package state

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"

	"oncebus/dedup"
)

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
		a.Earlier == b.Earlier && a.Again == b.Again && a.Link == b.Link && a.Before == b.Before &&
		a.NamespaceID == b.NamespaceID && a.Status == b.Status && a.Attempt == b.Attempt && a.HasResult == b.HasResult &&
		(a.Result == nil) == (b.Result == nil) && bytes.Equal(a.Result, b.Result)
}

// model is a changelog. The tests compute the expected rows of a store from it.
type model struct {
	txns   []txn
	before [256]int64 // the greatest bounds passed to EvictBefore
}

// txn is a committed transaction: its rows, and the position and the checkpoint of the store after it.
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

// commit adds a transaction. Positions have gaps, as in a changelog.
func (m *model) commit(rows []dedup.Row) txn {
	next := m.position() + int64(len(rows)) + 1
	m.txns = append(m.txns, txn{rows, next, fmt.Appendf(nil, "at %d", next)})
	return m.txns[len(m.txns)-1]
}

// at returns the rows below a position, and the checkpoint at the position, which must be the end of a transaction.
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

func (m *model) evictable(r dedup.Row) bool { return r.First < m.before[r.NamespaceID] }

// check compares the position, the checkpoint and the rows of a store with the model.
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
	all := s.Rows()
	if len(m.txns)%2 == 0 {
		all = inChunks(s, 1+len(m.txns)%40)
	}
	for r, err := range all {
		if err != nil {
			return err
		}
		if bytes.Compare(r.Digest[:], last[:]) <= 0 {
			return fmt.Errorf("digest %v after %v", r.Digest, last)
		}
		last = r.Digest
		w, found := want[r.Digest]
		if !found {
			return fmt.Errorf("row %+v is unexpected", r)
		}
		// An older expired row is also valid once the newest row was evicted.
		if !sameRow(r, w) && !(m.evictable(w) && m.evictable(r)) {
			return fmt.Errorf("row %+v, want %+v", r, w)
		}
		delete(want, r.Digest)
	}
	for _, w := range want {
		if !m.evictable(w) {
			return fmt.Errorf("row %+v is missing", w)
		}
	}
	return nil
}

// inChunks iterates over all rows, n at a time.
func inChunks(s *Store, n int) iter.Seq2[dedup.Row, error] {
	return func(yield func(dedup.Row, error) bool) {
		var next dedup.Digest
		for read, more := 0, true; more; read = 0 {
			more = false
			for r, err := range s.RowsFrom(next) {
				if read == n && err == nil {
					next, more = r.Digest, true
					break
				}
				if !yield(r, err) {
					return
				}
				read++
			}
		}
	}
}

// checkGets compares Get of every digest with the model.
func (m *model) checkGets(s *Store) error {
	want, _, err := m.at(s.Position())
	if err != nil {
		return err
	}
	for d, w := range want {
		r, found, err := s.Get(d)
		if err != nil {
			return err
		}
		if found && !sameRow(r, w) && !(m.evictable(w) && m.evictable(r)) || !found && !m.evictable(w) {
			return fmt.Errorf("get: %+v %v, want %+v", r, found, w)
		}
		for i := range d {
			d[i] ^= 0x55
		}
		if _, found, err := s.Get(d); found || err != nil {
			return fmt.Errorf("get of an absent digest: %v, %w", found, err)
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

// replay applies the transactions that a store lacks.
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

// flush is Flush without a deadline.
func flush(t failer, s *Store) {
	t.Helper()
	must(t, s.Flush(context.Background()))
}

// applyRows applies rows [from, to) in transactions of up to 20 rows.
func applyRows(t failer, s *Store, m *model, from, to uint64, change func(*dedup.Row)) {
	t.Helper()
	for ; from < to; from += 20 {
		applyAtOnce(t, s, m, from, min(from+20, to), change)
	}
}

// applyAtOnce applies rows [from, to) in one transaction.
func applyAtOnce(t failer, s *Store, m *model, from, to uint64, change func(*dedup.Row)) {
	t.Helper()
	var rows []dedup.Row
	for ; from < to; from++ {
		r := rowOf(from)
		if change != nil {
			change(&r)
		}
		rows = append(rows, r)
	}
	must(t, apply(s, m.commit(rows)))
}
