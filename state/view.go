package state

// frozenTable is a table of recent rows that the background goroutine is going to write as a run.
type frozenTable struct {
	table *table
	// position and checkpoint are the position and the checkpoint of the store at the time of the freeze.
	position   int64
	checkpoint []byte
	// done is closed when the rows are durable.
	done chan struct{}
	// refs counts the views that refer to the table; guarded by Store.mu.
	refs int
}

// view is an immutable, reference-counted list of the frozen table and the runs, which a look-up reads after
// the active table. The owner holds a reference from one Apply or Discard to the next. So the owner's look-ups
// take no lock, and the background goroutine cannot delete or reuse a run or table while the owner reads it.
type view struct {
	frozen *frozenTable // nil if none
	runs   []*run       // from newest to oldest
	refs   int          // guarded by Store.mu
}

// publishView makes a new view the current one. It queues runs that no view has any more for deletion, and
// reuses a table that no view has any more.
func (s *Store) publishView(next func(old *view) *view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := next(s.currentView)
	v.refs = 1
	for _, r := range v.runs {
		r.refs++
	}
	if v.frozen != nil {
		v.frozen.refs++
	}
	s.releaseView(s.currentView)
	s.currentView = v
}

// refreshView makes the owner use the current view from now on.
func (s *Store) refreshView() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ownerView == s.currentView {
		return
	}
	s.currentView.refs++
	s.releaseView(s.ownerView)
	s.ownerView = s.currentView
}

// releaseView releases one reference to v. The caller has locked s.mu.
func (s *Store) releaseView(v *view) {
	if v == nil {
		return
	}
	if v.refs--; v.refs > 0 {
		return
	}
	for _, r := range v.runs {
		if r.refs--; r.refs == 0 {
			s.deadRuns = append(s.deadRuns, r)
		}
	}
	if f := v.frozen; f != nil {
		if f.refs--; f.refs == 0 {
			s.host.putTable(f.table)
			f.table = nil
		}
	}
	if len(s.deadRuns) > 0 {
		s.wakeBackground()
	}
}

// wakeBackground starts a round of background work, unless one is due already.
func (s *Store) wakeBackground() {
	select {
	case s.wakeUps <- struct{}{}:
	default:
	}
}

// takeDeadRuns returns the runs that no view has any more, and empties their queue.
func (s *Store) takeDeadRuns() []*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	dead := s.deadRuns
	s.deadRuns = nil
	return dead
}
