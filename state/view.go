package state

// frozen is a table of recent rows that waits for its flush.
type frozen struct {
	table *table
	// position and checkpoint are those of the store when it was frozen.
	position   int64
	checkpoint []byte
	// done is closed when the rows are durable.
	done chan struct{}
	// refs counts the views that hold the table; guarded by Store.mu.
	refs int
}

// view is what a look-up sees below the recent rows: immutable, and held by
// count. The owner keeps the view it works with from one Apply or Discard to
// the next, so that its look-ups take no lock and nothing it may read is
// deleted or reused under it.
type view struct {
	frozen *frozen // nil if none
	runs   []*run  // from newest to oldest
	refs   int     // guarded by Store.mu
}

// publish makes a new view the current one. Runs that no view holds any more
// are queued for deletion, a table without a view is reused.
func (s *Store) publish(next func(old *view) *view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := next(s.current)
	v.refs = 1
	for _, r := range v.runs {
		r.refs++
	}
	if v.frozen != nil {
		v.frozen.refs++
	}
	s.release(s.current)
	s.current = v
}

// refresh moves the owner to the current view.
func (s *Store) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mine == s.current {
		return
	}
	s.current.refs++
	s.release(s.mine)
	s.mine = s.current
}

// release gives up one hold of v. s.mu is held.
func (s *Store) release(v *view) {
	if v == nil {
		return
	}
	if v.refs--; v.refs > 0 {
		return
	}
	for _, r := range v.runs {
		if r.refs--; r.refs == 0 {
			s.dead = append(s.dead, r)
		}
	}
	if f := v.frozen; f != nil {
		if f.refs--; f.refs == 0 {
			s.host.putTable(f.table)
			f.table = nil
		}
	}
	if len(s.dead) > 0 {
		s.wake()
	}
}

// wake tells the keeper that there may be something to do.
func (s *Store) wake() {
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// takeDead returns the runs to delete.
func (s *Store) takeDead() []*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	dead := s.dead
	s.dead = nil
	return dead
}
