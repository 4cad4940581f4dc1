package oracle

// A ledgerTask is what a ledger knows about a task from the checkpoints in the task's changelog.
type ledgerTask struct {
	next  int64
	set   int64
	known []knownSince
	// repeats has rows of the transaction whose checkpoint was not read yet. Only the checkpoint says with
	// which route set the rows were judged.
	repeats []repeat
}

// A repeat is a new row of a key that already had a row, if the earlier row was first seen within the longest
// window before it.
type repeat struct {
	row    LedgerRow
	before int64 // when the previous row was first seen
}

// take stores what the next checkpoint of the task says.
func (t *ledgerTask) take(item *ChangelogItem) {
	t.next = item.Next
	if item.whole {
		t.set, t.known = item.set, item.known
	}
}

// since returns the first seen time from which on the task knows all rows of a namespace; false if it knows all
// rows that its window needs.
func (t *ledgerTask) since(space uint8) (int64, bool) {
	for _, k := range t.known {
		if k.namespaceID == space {
			return k.since, true
		}
	}
	return 0, false
}

// decideRepeats decides on the repeats of a transaction (K1). A repeat is a violation, unless the window, or a
// change of the window, makes the earlier row absent.
func (l *Ledger) decideRepeats(task *ledgerTask) {
	for i := range task.repeats {
		row, before := &task.repeats[i].row, task.repeats[i].before
		if !covers(before, row.First, l.windowAt(task.set, row.Space)) {
			continue
		}
		if since, changed := task.since(row.Space); changed && before < since {
			continue
		}
		l.find("K1", -1, row.Where, "digest %x was stored again as first seen at %s, %d ms after its first event and within its window: a duplicate was judged unique",
			row.Digest, l.text(row.At), row.First-before)
	}
	task.repeats = task.repeats[:0]
}

// windowAt returns the window of a namespace as of a route set. If several are possible, it returns the
// shortest.
func (l *Ledger) windowAt(set int64, space uint8) int64 {
	for _, s := range l.cfg.Sets {
		for _, w := range s.Windows {
			if s.Number == set && w.NamespaceID == space {
				return w.Window
			}
		}
	}
	return l.spaces[space].shortest
}
