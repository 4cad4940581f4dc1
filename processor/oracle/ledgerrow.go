package oracle

import (
	"fmt"
	"math"
	"slices"
)

// A LedgerRow is a row that a task has stored in its changelog.
type LedgerRow struct {
	Digest  [16]byte
	Space   uint8 // namespace id
	Freed   bool
	First   int64
	At      Position
	Attempt uint32
	// Earlier reports that the row belongs to a window before the latest window of its key. Digest is the
	// digest of the key.
	Earlier bool
	// Certain reports that the output of the row's transaction must lie within the range.
	Certain bool
	// Soft reports that the output may lie before the range.
	Soft bool
	// Base reports that the row lies before the range.
	Base  bool
	Where string
}

// readLink reads the fields of a row that are about the other windows of its key, if the flags say that the row
// has such fields (see row.flags). It replaces the digest of a row of an earlier window by the digest of the
// key.
func (r *LedgerRow) readLink(f *fields, flags byte) {
	if flags&32 != 0 {
		f.unsigned(math.MaxUint64)
	}
	if flags&64 != 0 {
		r.Digest, r.Earlier = ofEarlier(r.Digest, row{first: r.First}).digest, true
	}
}

// rowsOfRecord calls each with the rows in a changelog record. It skips rows that a sweep has written again,
// rows that are about the same event as before, and counts of seeds.
func rowsOfRecord(r *Record, each func(*LedgerRow)) error {
	if isCheckpoint(r) || isSeedCounts(r) || len(r.Headers) > 0 && r.Headers[0].Key == headerSweep {
		return nil
	}
	if isPack(r) {
		return eachOfPack(r.Value, each)
	}
	if len(r.Key) != len(digest{}) || len(r.Value) < 5 || r.Value[0] != 1 {
		return fmt.Errorf("neither a row nor a checkpoint, its key has %d bytes: %x", len(r.Key), r.Key)
	}
	flags, f := r.Value[1], fields{rest: r.Value[4:]}
	row := LedgerRow{Digest: digest(r.Key), Space: r.Value[2], Freed: r.Value[3] == 4, First: f.signed()}
	row.At = Position{uint16(f.unsigned(1 << 16)), int32(f.unsigned(1 << 31)), int64(f.unsigned(1 << 63))}
	if flags&1 != 0 {
		f.bytes(8)
	}
	if flags&2 != 0 {
		row.Attempt = uint32(f.unsigned(1 << 32))
	}
	row.readLink(&f, flags&^32) // the rest of the row is not read
	if f.bad {
		return fmt.Errorf("is no row: %x", r.Value)
	}
	if flags&128 == 0 {
		each(&row)
	}
	return nil
}

// eachOfPack calls each with the rows in a pack, see rowsOfPack.
func eachOfPack(value []byte, each func(*LedgerRow)) error {
	f := fields{rest: value}
	version := f.byte()
	var last LedgerRow
	for n := 0; len(f.rest) > 0 && !f.bad; n++ {
		last.Digest = digest(f.bytes(len(digest{})))
		flags := f.byte()
		if flags > 127 || flags&24 == 24 || n == 0 && flags&6 != 6 {
			f.bad = true
		}
		if flags&4 != 0 {
			last.Space = f.byte()
		}
		if flags&2 != 0 {
			last.At.Topic, last.At.Partition = uint16(f.unsigned(1<<16)), int32(f.unsigned(1<<31))
		}
		last.First += f.signed()
		last.At.Offset += f.signed()
		if flags&1 != 0 {
			f.bytes(8)
		}
		row := last
		if row.readLink(&f, flags>>3<<4); !f.bad && flags&64 == 0 {
			each(&row)
		}
	}
	if f.bad || version != 1 {
		return fmt.Errorf("is not a pack of rows: %x", value)
	}
	return nil
}

// A ChangelogItem is the content of a changelog record.
type ChangelogItem struct {
	Rows []LedgerRow
	Task Position // topic and partition of the task
	// Next is the input offset up to which the task has judged, from a checkpoint; -1 if the record is no
	// checkpoint.
	Next  int64
	Where string
	// whole reports a whole checkpoint, which has the route set and the changed windows. With a partial
	// checkpoint both stay as they were.
	whole bool
	set   int64
	known []knownSince
	// Wrong says why the record cannot be read; "" if it can be read.
	Wrong string
}

// ReadChangelog reads a record in the changelog of a task. Pass the result to Ledger.Changelog.
func ReadChangelog(r *Record, task Position) ChangelogItem {
	item := ChangelogItem{Task: task, Next: -1}
	if number, ok := numberOf(r.Key); ok {
		cp, err := smallCheckpoint(number, r.Value)
		item.Next, item.whole, item.set, item.known = cp.next, number == 0, cp.set, cp.known
		if err != nil {
			item.Next, item.Wrong, item.Where = -1, err.Error(), at(r)
		}
		return item
	}
	err := rowsOfRecord(r, func(row *LedgerRow) { item.Rows = append(item.Rows, *row) })
	if item.Where = at(r); err != nil {
		item.Wrong = err.Error()
	}
	for i := range item.Rows {
		item.Rows[i].Where = item.Where
	}
	return item
}

// smallCheckpoint reads the fields of a checkpoint that are not relative to the previous checkpoint.
func smallCheckpoint(number uint32, b []byte) (checkpoint, error) {
	if number == 0 {
		return openCheckpoint(b)
	}
	if len(b) < 3 || b[0] != 5 {
		return checkpoint{}, fmt.Errorf("is no partial checkpoint: %x", b)
	}
	f := fields{rest: b[2:]}
	return openCheckpoint(f.bytes(int(f.unsigned(1 << 31))))
}

// Changelog processes the next record of a task's changelog.
func (l *Ledger) Changelog(item *ChangelogItem) {
	if item.Wrong != "" {
		l.find("K5", -1, item.Where, "%s", item.Wrong)
	}
	task := l.tasks[item.Task]
	if task == nil {
		task = &ledgerTask{}
		l.tasks[item.Task] = task
	}
	for i := range item.Rows {
		l.row(task, &item.Rows[i])
	}
	if item.Next >= 0 {
		if item.Next < task.next {
			l.find("K10", -1, l.text(item.Task), "a checkpoint has next %d, the previous one %d: it went back", item.Next, task.next)
		}
		task.take(item)
		l.decideRepeats(task)
	}
	l.bound()
}

// row processes a row of the changelog: it updates the state of the key and, if the row stands for a first
// event or a new attempt, looks for its event and its output.
func (l *Ledger) row(task *ledgerTask, row *LedgerRow) {
	s := &l.spaces[row.Space]
	if !s.known {
		return // it belongs to a route that the routes file no longer has
	}
	if row.Earlier {
		l.earlier(task, row, s)
		return
	}
	l.advance(row)
	before, known := l.keys[row.Digest]
	now := keyState{row.First, hashOf(row.At, row.Space), row.Attempt}
	if known && (row.Freed || before.first != row.First) {
		l.former[row.Digest] = append(l.former[row.Digest], formerRow{before.first, before.at})
		l.formers++
	}
	switch {
	case row.Freed && !s.claims:
		delete(l.keys, row.Digest)
		return
	case l.follows(row.Digest):
		l.keys[row.Digest] = now
	}
	if row.Base {
		return
	}
	if s.claims && !l.dispatches(row, before, now, known) {
		return
	}
	l.rowCount++
	if known && !s.claims && covers(before.first, row.First, s.longest) {
		task.repeats = append(task.repeats, repeat{*row, before.first})
	}
	if l.joins(row.Digest) {
		l.join(row, !known || before.at != now.at)
	}
}

// earlier processes a row of an earlier window of a key. The event of this row was judged after an event of the
// same key with a later time. The row of that later event stays the newest row of the key.
func (l *Ledger) earlier(task *ledgerTask, row *LedgerRow, s *space) {
	if row.Freed {
		return
	}
	if l.follows(row.Digest) {
		l.former[row.Digest] = append(l.former[row.Digest], formerRow{row.First, hashOf(row.At, row.Space)})
		l.formers++
	}
	if row.Base {
		return
	}
	if latest, known := l.keys[row.Digest]; known && covers(latest.first, row.First, s.longest) {
		task.repeats = append(task.repeats, repeat{*row, latest.first})
	}
	l.rowCount++
	if l.joins(row.Digest) {
		l.join(row, true)
	}
}

// dispatches reports whether a row of a claim belongs to an attempt whose dispatch the ledger must wait for. It
// also remembers the row that this row replaces.
func (l *Ledger) dispatches(row *LedgerRow, before, now keyState, known bool) bool {
	if !l.follows(row.Digest) || row.Freed || known && before.at == now.at && before.attempt >= row.Attempt {
		return false // the row is about an outcome, or about a request that waits
	}
	if l.jumps(row, before.attempt); known && before.at != now.at {
		l.formerClaim(formerDigest(row.Digest, uint64(before.attempt)))
	}
	return !l.kept[row.Digest]
}

// jumps notices that compaction has removed the row of an attempt, because the number of attempts grew by more
// than one, and records the key.
func (l *Ledger) jumps(row *LedgerRow, before uint32) {
	if row.Attempt > before+1 {
		l.jumped[row.Digest] = true
	}
}

// formerClaim records the digest under which a claim is kept because another event has claimed its key. Rows
// under this digest are about an attempt that was dispatched under the original key.
func (l *Ledger) formerClaim(d digest) {
	l.kept[d] = true
	l.open -= len(l.rows[d])
	delete(l.rows, d)
}

// join matches a row with its output and with its event, and keeps the row until both were read. Only the first
// attempt of a claim is matched with the event that made the claim. The row of a seed has neither event nor
// output here: its event was in another system.
func (l *Ledger) join(row *LedgerRow, first bool) {
	seeded := row.At.Topic == seedTopic
	open := &openRow{
		At: row.At, First: row.First, Attempt: row.Attempt, Space: row.Space, Certain: row.Certain, Soft: row.Soft, Where: row.Where, NeedsOut: !seeded,
		NeedsIn: first && !seeded && l.follows(row.Digest) && !(l.cfg.HasRepartition && row.At.Topic == l.cfg.Repartition) && l.reach.InRange(row.At),
	}
	for _, in := range slices.Clone(l.waiting[row.Digest]) { // a clone, because the loop removes entries
		switch {
		case in.done:
		case in.At == row.At:
			l.takeInput(open, in)
		case covers(row.First, in.Time, l.reachOf(in)):
			l.isDuplicate(in)
		}
	}
	l.dropInputs(row.Digest)
	l.meetOut(row.Digest, open)
	if open.NeedsIn || open.NeedsOut {
		l.rows[row.Digest] = append(l.rows[row.Digest], open)
		l.open++
	}
}

// meetOut matches a row with a record of an output that was read before the row.
func (l *Ledger) meetOut(d digest, row *openRow) {
	for _, out := range l.outs[d] {
		if route, ok := l.meets(d, row, out); ok && !out.done {
			l.takeOut(row, out, route)
			return
		}
	}
}

// meets reports whether a record of an output belongs to a row with this key, and to which route the record
// then belongs.
func (l *Ledger) meets(of digest, row *openRow, out *openOut) (route int32, ok bool) {
	if !row.NeedsOut || l.spaces[row.Space].claims != out.Claim {
		return -1, false
	}
	if out.Claim {
		return out.Route, row.At == out.At && row.Attempt == out.Attempt
	}
	time := row.First
	if row.HasOwn {
		time = row.Own
	}
	for _, k := range out.Keys {
		if k.Digest == of && (out.anyTime || time == k.Time) {
			return k.Route, true
		}
	}
	return -1, false
}

// countOut counts a record of an output for its route, unless it was counted before.
func (l *Ledger) countOut(out *openOut, route int32) {
	if !out.counted {
		l.routes[route].Unique++
	}
	out.counted = true
}

func (l *Ledger) takeOut(row *openRow, out *openOut, route int32) {
	row.NeedsOut, out.done = false, true
	l.countOut(out, route)
	for _, d := range out.Digests {
		l.outs[d] = removed(l.outs[d], out)
		if len(l.outs[d]) == 0 {
			delete(l.outs, d)
		}
	}
	l.open--
	l.compare(row, out.Content, out.Where, route)
}

func (l *Ledger) takeInput(row *openRow, in *openInput) {
	row.NeedsIn, in.done = false, true
	if l.spaces[row.Space].clamp {
		row.Own, row.HasOwn = in.Time, true
	}
	if f := l.fates[in.At]; f != nil {
		l.dropFate(in.At)
		if f.Emitted && f.Verdict != "bypassed" {
			l.find("K1", f.Route, f.Where, "%s has two fates: its event was stored as the first of its key, and this record says %s", l.text(in.At), f.Verdict)
		}
		if f.Emitted && f.Verdict == "bypassed" {
			row.NeedsOut = false
		}
	}
	l.compare(row, in.Content, l.text(in.At), in.Route)
}

// compare compares the content of a row's event with the content of the row's output, when the second of the
// two is read (K3).
func (l *Ledger) compare(row *openRow, content uint64, where string, route int32) {
	if !row.HasPrint {
		row.HasPrint, row.Content = true, content
		return
	}
	if row.Content != content {
		l.find("K3", route, where, "the event of %s and its output differ in key, value, headers or timestamp", l.text(row.At))
	}
}

// closeRows removes the rows of a key that no longer wait for anything.
func (l *Ledger) closeRows(d digest) {
	rows := l.rows[d]
	left := rows[:0]
	for _, r := range rows {
		if r.NeedsIn || r.NeedsOut {
			left = append(left, r)
		} else {
			l.open--
		}
	}
	if l.rows[d] = left; len(left) == 0 {
		delete(l.rows, d)
	}
}

// removed returns a list without its first element that equals x.
func removed[T comparable](list []T, x T) []T {
	for i := range list {
		if list[i] == x {
			return append(list[:i], list[i+1:]...)
		}
	}
	return list
}
