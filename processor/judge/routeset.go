package judge

// joinSet moves the task to the route set of its process, at the beginning of the open
// transaction. The checkpoint names the set, so no process with an older set judges after it.
func (t *State) joinSet() {
	if t.App.Set > t.Open.Set {
		t.adoptSet(t.Open.Set, t.App.Set)
	}
}

// Ahead reports whether the task's checkpoint names a newer route set than the process has. The
// process must not judge, nor write any row.
func (t *State) Ahead() bool { return t.Committed.Set > t.App.Set }
