package restore

import (
	"math"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// trimInput is everything that decides what a transaction writes.
type trimInput struct {
	committed    *trimFold
	prior        int8 // first seen time of the row in the store; -1 for none
	ev           trimEvent
	number, next int8
	position     int64 // of the store
	end          int64 // of the changelog
}

type trimOutput struct {
	verdict dedup.Verdict
	tx      trimTx
	number  int8
	floor   int8
}

// decide returns what a transaction of the owner writes. It remembers its earlier results.
func (m *trimModel) decide(s *trimState, ev trimEvent) trimOutput {
	store := s.stores[s.owner]
	in := trimInput{m.fold(s, store.from, store.to), -1, ev, s.number, s.next, s.end(store.to), s.end(s.n)}
	for i := store.from; i < store.to; i++ {
		if tx := &s.txs[i]; tx.committed && tx.key == ev.key {
			in.prior = tx.first
		}
	}
	out, known := m.decided[in]
	if !known {
		open := in.committed.newest
		out.tx, out.verdict = m.judge(&in, &open)
		out.number = m.encode(&in, &out.tx, &open)
		out.floor = int8(open.Floor)
		out.tx.committed = true
		if out.tx.end = int8(in.end) + 2; out.tx.key >= 0 {
			out.tx.end++
		}
		m.decided[in] = out
	}
	return out
}

// judge reaches the verdict as package judge does, with a local store that has dropped every row it may drop. For
// both verdicts that emit an event, it returns Unique.
func (m *trimModel) judge(in *trimInput, open *wire.Checkpoint) (trimTx, dedup.Verdict) {
	ev, committed := in.ev, &in.committed.newest
	id := m.keys[ev.key]
	tx := trimTx{key: -1}
	stream := committed.StreamTimes.Of(id)
	open.Next, open.Sequence = int64(in.next)+1, committed.Sequence+1
	verdict, admitted := m.window.Admit(int64(ev.time), stream, m.broker)
	if verdict == dedup.Late {
		m.setFences(in, open)
		return tx, verdict
	}
	prior := dedup.Row{Digest: dedup.Digest{byte(ev.key)}, First: int64(in.prior), NamespaceID: id}
	found := in.prior >= 0 && prior.First >= m.horizons(committed)[id]
	e := dedup.Event{Digest: dedup.Digest{byte(ev.key)}, Time: admitted, NamespaceID: id}
	verdict, row := dedup.Decide(e, prior, found, m.window, stream)
	if verdict == dedup.Unique || verdict == dedup.AfterWindow {
		verdict = dedup.Unique
		tx.key, tx.first = ev.key, int8(row.First)
		open.Rows++
	}
	if verdict != dedup.Late {
		open.StreamTimes.At[id], open.StreamTimes.Has[id] = dedup.NextStreamTime(stream, int64(ev.time), admitted), true
		if open.StreamTimes.At[id] == dedup.NoStreamTime {
			open.StreamTimes.At[id], open.StreamTimes.Has[id] = 0, false
		}
		if admitted > open.StreamTimes.Of(id) && m.mistake != clampedForgot {
			open.Ahead = append([]wire.FirstSeen(nil), open.Ahead...)
			open.SetAhead(id, admitted)
		}
	}
	m.setFences(in, open)
	return tx, verdict
}

// setFences does what judge.State does before it writes a checkpoint.
func (m *trimModel) setFences(in *trimInput, open *wire.Checkpoint) {
	committed := &in.committed.newest
	open.Ahead = append([]wire.FirstSeen(nil), open.Ahead...)
	open.DropAhead()
	horizons := m.horizons(committed)
	open.RaiseFloor(&horizons)
	open.AddFence(in.position, committed, &horizons)
}

func (m *trimModel) horizons(c *wire.Checkpoint) (horizons [256]int64) {
	for id := range horizons {
		horizons[id] = math.MinInt64
	}
	w := m.window
	if m.mistake == retentionShort {
		w.Size = 0
	}
	for _, id := range m.keys {
		horizons[id] = w.Horizon(c.StreamTimes.Of(id))
	}
	return horizons
}

// encode appends the checkpoint of the open transaction, and returns its number.
func (m *trimModel) encode(in *trimInput, tx *trimTx, open *wire.Checkpoint) int8 {
	committed := &in.committed.newest
	whole := in.number < 0 || open.Floor != committed.Floor && m.mistake != floorInPartial
	if m.mistake == restartRelative && committed.Sequence > 0 && in.number < 0 {
		whole = false
	}
	if whole {
		tx.checkpoint = m.intern(0, open.Append(nil))
		return 0
	}
	number := max(in.number, 0) + 1
	value := open.AppendPartial(nil, committed, nil, nil)
	tx.checkpoint = m.intern(uint32(number), value)
	return number
}

// remember returns the verdict of a memory that never drops a row, and the state in which the memory has the event.
// It shares no code with the product.
func (m *trimModel) remember(s *trimState, ev trimEvent) (dedup.Verdict, trimState) {
	to := *s
	at := min(ev.time, int8(m.broker))
	stream, first := &to.stream[ev.key], &to.first[ev.key]
	size, grace := int8(m.window.Size), int8(m.window.Grace)
	verdict := dedup.Unique
	switch {
	case *stream >= 0 && at < *stream-size-grace, *first >= 0 && at < *first-size:
		return dedup.Late, to
	case *first >= 0 && at <= *first+size:
		verdict = dedup.Duplicate
	default:
		*first = at
	}
	for key, id := range m.keys {
		if id == m.keys[ev.key] && at == ev.time {
			to.stream[key] = max(to.stream[key], at)
		}
	}
	return verdict, to
}
