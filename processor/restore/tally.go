package restore

import (
	"context"
	"sync"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
	"oncebus/state"
)

// tally has the counts of all rows of a store. The first checkpoint of a new generation of partitions has no
// counts, so a restore would have to read the whole store to count the rows. Instead, the standby of such a task
// counts them while it follows the changelog, before the act of the move, and the restore takes over the
// standby's tally.
type tally struct{ counts app.Counts }

// newTally counts the rows of a store.
func newTally(ctx context.Context, a *app.App, store *state.Store) (*tally, error) {
	t := &tally{app.NewCounts(a)}
	return t, eachRow(ctx, store, func(context.Context) {}, func(row *dedup.Row) error { return t.replace(row, nil) })
}

// replace counts a row in place of the stored row; replaced is nil if no row was stored.
func (t *tally) replace(row, replaced *dedup.Row) error {
	t.counts.Replace(row, replaced)
	if replaced != nil {
		if err := t.addWaiting(replaced, -1); err != nil {
			return err
		}
	}
	return t.addWaiting(row, 1)
}

// addWaiting adds the requests that wait for the outcome of a row's claim, times sign. It ignores rows that the
// counts leave out, because the requests of such a row have no outcome to wait for.
func (t *tally) addWaiting(row *dedup.Row, sign int) error {
	if t.counts.Of(row.NamespaceID, row.Status) == nil {
		return nil
	}
	waiting, err := waitingIn(row)
	t.counts.AddWaiting(row, sign*waiting)
	return err
}

// waitingIn returns how many requests wait for the outcome of a row's claim.
func waitingIn(row *dedup.Row) (int, error) {
	claim, err := dedup.DecodeClaim(row.Result)
	return len(claim.Requests), err
}

// put puts a row into the store, and counts the row if there is a tally.
func (r *Restore) put(row *dedup.Row) error {
	if r.tally != nil {
		stored, found, err := r.Store.Get(row.Digest)
		if err != nil {
			return err
		}
		replaced := &stored
		if !found {
			replaced = nil
		}
		if err := r.tally.replace(row, replaced); err != nil {
			return err
		}
	}
	r.Store.Put(*row)
	return nil
}

// into adds the rows of some namespaces to the counts of a first checkpoint. If a window has changed since the
// tally was made, into changes nothing and returns false.
func (t *tally) into(all *app.Counts, namespaces map[uint8]bool, c *wire.Checkpoint) bool {
	if t == nil || c.Sequence != 0 {
		return false
	}
	return all.TakeRows(&t.counts, namespaces, c)
}

// tallies has the tallies of stores that standbys have closed.
type tallies struct {
	mu  sync.Mutex
	all map[app.TaskID]keptTally
}

type keptTally struct {
	position int64 // of the store
	*tally
}

// keep keeps the tally of a closed store for the next owner that opens the store.
func (s *tallies) keep(id app.TaskID, position int64, t *tally) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[app.TaskID]keptTally{}
	}
	if t != nil {
		s.all[id] = keptTally{position, t}
	}
}

// take returns the tally of a store that was opened at a position; nil if no standby has left one for
// this position.
func (s *tallies) take(id app.TaskID, position int64) *tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.all[id]
	delete(s.all, id)
	if kept.position != position {
		return nil
	}
	return kept.tally
}
