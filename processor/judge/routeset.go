package judge

// joinSet makes the task use the route set of its process, at the beginning of the open transaction. The
// checkpoint then names the set, so that no process with an older set judges after this transaction. If the
// window of a namespace changes, the checkpoint also gets the time from which the namespace's rows are known to
// be complete. A row from before that time decides no event, even if it is still stored: another copy of the
// store may have lost the row.
func (t *State) joinSet() {
	before, set := t.Open.Set, t.App.Set
	if set <= before {
		return
	}
	t.App.GoOver(&t.Open)
	for _, route := range t.App.Routes {
		t.OpenCounts.Advance(route.NamespaceID, t.streamTime(route.NamespaceID)) // a shorter window ends keys
	}
	if before > 0 { // 0: a task without a transaction yet, or of an app that was at level 1
		t.Log.Info("task judges by a newer route set", "set", set, "before", before)
	}
}

// Ahead reports whether the task's checkpoint names a newer route set than the process has read. The
// process must then neither judge nor write rows.
func (t *State) Ahead() bool { return t.Committed.Set > t.App.Set }
