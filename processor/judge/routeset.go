package judge

// joinSet moves the task to the route set of its process, at the beginning of the open
// transaction. The checkpoint names the set, so no process with an older set judges after it.
// Where the window of a namespace changes, it notes what is known of the rows. Nothing that is
// stored but not known decides an event: another copy of the store may not have it any more.
func (t *State) joinSet() {
	before, set := t.Open.Set, t.App.Set
	if set <= before {
		return
	}
	t.App.GoOver(&t.Open)
	for _, route := range t.App.Routes {
		t.OpenCounts.Advance(route.NamespaceID, t.streamTime(route.NamespaceID)) // a shorter window ends keys
	}
	if before > 0 { // else a task without a transaction, or of an app that was at level 1
		t.Log.Info("task judges by a newer route set", "set", set, "before", before)
	}
}

// Ahead reports whether the task's checkpoint names a newer route set than the process has. The
// process must not judge, nor write any row.
func (t *State) Ahead() bool { return t.Committed.Set > t.App.Set }
