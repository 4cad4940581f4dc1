package front

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// A Target is what an operator wants the app to forget: the key that a text means, or the several keys that it
// can mean.
type Target struct {
	Text string          // as the operator typed it
	Keys []rules.Derived // the first key that has rows counts
}

// Erasure says what Forget did for a target.
type Erasure struct {
	Text string
	// Key is the key that has the rows. If no key has rows, it is the first key of the target.
	Key rules.Derived
	// Rows has the rows that decide on the key: the row of the key itself, and the rows of earlier windows,
	// adjacent buckets, collisions and former claims, if these rows belong to the same event.
	Rows []RowErasure
	// FreeAfter is the last attempt of the key, if the key is already free; 0 if no row of the key is free.
	FreeAfter uint32
}

// RowErasure says what happened to one row of a target.
type RowErasure struct {
	Digest  dedup.Digest
	Task    string // topic/partition
	First   string // topic/partition/offset of the first event
	Status  dedup.Status
	Attempt uint32
	Result  ErasureResult

	task app.TaskID
	ref  app.RowRef
}

// ErasureResult is the result of an erasure.
type ErasureResult string

// The results of an erasure.
const (
	// Requested: the request is in the manifest topic, and no task has applied it yet.
	Requested ErasureResult = "requested"
	// Erased: the changelog contains the freed row.
	Erased ErasureResult = "erased"
	// Superseded: before the task applied the erasure, a later event or attempt had made a new row of the key.
	// That row stays.
	Superseded ErasureResult = "superseded"
)

// ForgetOptions are the options of Forget.
type ForgetOptions struct {
	// Timeout is how long Forget waits until the rows are erased; if it is 0, Forget does not wait.
	Timeout time.Duration
	By      string // who asks, for people to read
	// Progress gets the number of rows that are erased or superseded, and the number of all requested rows. It
	// may be nil.
	Progress func(done, all int64)
}

// confirmPause is the time between two readings of the changelogs for erased rows.
const confirmPause = 100 * time.Millisecond

// Forget requests that tasks erase the rows of keys, and waits until they have. The requests go through the
// manifest topic: the process that has the task of a row erases the row in the task's next transaction. A
// request names the event and the attempt of each row, so that it cannot erase the row of a later event or
// attempt.
//
// Forget reads each changelog partition once. It returns an operator error for a route that the app has never
// run.
func (i *Inspector) Forget(ctx context.Context, targets []Target, o ForgetOptions) ([]Erasure, error) {
	scan := rowScan{tasks: map[app.TaskID]*taskScan{}}
	for t := range targets {
		for k := range targets[t].Keys {
			if err := i.known(targets[t].Keys[k].Route); err != nil {
				return nil, err
			}
			scan.add(i, &targets[t].Keys[k])
		}
	}
	for _, task := range scan.order {
		if err := scan.tasks[task].read(ctx, i); err != nil {
			return nil, err
		}
	}
	erasures := make([]Erasure, len(targets))
	for t := range targets {
		var err error
		if erasures[t], err = scan.erasureOf(i, &targets[t]); err != nil {
			return nil, err
		}
	}
	if err := i.request(ctx, erasures, o); err != nil {
		return erasures, err
	}
	return erasures, i.confirm(ctx, &scan, erasures, o)
}

// rowScan looks for the rows of keys in the changelogs of their tasks.
type rowScan struct {
	order []app.TaskID
	tasks map[app.TaskID]*taskScan
}

// taskScan looks for rows in the changelog of one task.
type taskScan struct {
	id      app.TaskID
	digests map[dedup.Digest]bool
	// keys has the dedup keys for which former claims are looked for: the rows of former claims contain the
	// key, but have other digests.
	keys map[[32]byte]bool
	// collisions has the keys whose fingerprint is not known. The second digest of such a key cannot be
	// computed in advance, so the scan finds the row of a collision by the row's content (isCollisionOf).
	collisions []*rules.Derived
	rows       map[dedup.Digest]dedup.Row
	last       wire.Fold
	end        int64 // end of the part of the changelog that was read
}

// formerMax is how many former attempts of an adjacent bucket a scan looks for. A scan normally finds the row
// of a former claim by the dedup key in the row. The dedup key of an adjacent bucket is unknown, so the scan
// must look for the digests of its former attempts.
const formerMax = 64

// add adds a key to the scans of the tasks that may have its rows.
func (s *rowScan) add(i *Inspector, d *rules.Derived) {
	topic, partitions := i.locate(d)
	for _, partition := range partitions {
		id := app.TaskID{Topic: topic, Partition: partition}
		t := s.tasks[id]
		if t == nil {
			t = &taskScan{id: id, digests: map[dedup.Digest]bool{}, keys: map[[32]byte]bool{}}
			s.tasks[id], s.order = t, append(s.order, id)
		}
		for _, digest := range digestsOf(d) {
			t.digests[digest] = true
		}
		if d.Route.Mode != rules.ClaimMode {
			continue
		}
		t.keys[d.Key] = true
		if d.HasAdjacent {
			for attempt := range uint32(formerMax) {
				for _, digest := range d.Adjacent {
					t.digests[dedup.FormerDigest(digest, attempt)] = true
				}
			}
		}
		if d.Route.ForwardsCollisions() && d.Fingerprint == 0 {
			t.collisions = append(t.collisions, d)
		}
	}
}

// read reads the changelog from its start.
func (t *taskScan) read(ctx context.Context, i *Inspector) (err error) {
	t.rows = map[dedup.Digest]dedup.Row{}
	t.end, err = i.changelogFrom(ctx, t.id, 0, func(rec *kgo.Record) error {
		if number, ok := wire.CheckpointNumber(rec.Key); ok {
			return t.last.Add(number, rec.Value)
		}
		for row, err := range wire.RowsOf(rec) {
			if err != nil {
				return err
			}
			if wanted, err := t.wants(row); err != nil {
				return err
			} else if wanted {
				t.rows[row.Digest] = *row
			}
		}
		return nil
	})
	return err
}

// wants reports whether the scan needs a row: the row has a digest or key that the scan looks for.
func (t *taskScan) wants(row *dedup.Row) (bool, error) {
	if _, known := t.rows[row.Digest]; known || t.digests[row.Key()] {
		return true, nil
	}
	if len(t.keys) == 0 || !row.HasResult {
		return false, nil
	}
	claim, err := dedup.DecodeClaim(row.Result)
	if err != nil {
		return false, err
	}
	if t.keys[claim.Key] {
		return true, nil
	}
	return row.Fingerprint != 0 && slices.ContainsFunc(t.collisions, func(d *rules.Derived) bool { return isCollisionOf(row, d) }), nil
}

// isCollisionOf reports whether a row belongs to an event that has this key but other details than the key's
// first event.
func isCollisionOf(row *dedup.Row, d *rules.Derived) bool {
	return dedup.CollisionDigest(d.Digest, row.Fingerprint) == row.Digest
}

// erasureOf returns the rows of the first of a target's keys that has rows. If keys in two namespaces have
// rows, it returns an operator error: the operator must choose.
func (s *rowScan) erasureOf(i *Inspector, target *Target) (Erasure, error) {
	all := Erasure{Text: target.Text, Key: target.Keys[0]}
	for k := range target.Keys {
		d := &target.Keys[k]
		rows, freeAfter := s.rowsOf(i, d)
		all.FreeAfter = max(all.FreeAfter, freeAfter)
		switch {
		case len(rows) == 0:
		case len(all.Rows) == 0:
			all.Key, all.Rows = *d, rows
		case all.Key.Route.Namespace != d.Route.Namespace:
			return all, Ambiguous(target.Text, all.Key.Route, d.Route)
		}
	}
	slices.SortFunc(all.Rows, func(a, b RowErasure) int { return slices.Compare(a.Digest[:], b.Digest[:]) })
	return all, nil
}

// Ambiguous returns the operator error about a key that has rows of two routes.
func Ambiguous(text string, a, b *rules.Route) error {
	return kafka.OperatorErrorf("%s is a key of route %s and of route %s: choose one with --route", text, a.Name, b.Name)
}

// rowsOf returns the rows of a key, and the last attempt among its rows that are free already.
func (s *rowScan) rowsOf(i *Inspector, d *rules.Derived) (rows []RowErasure, freeAfter uint32) {
	namespaceID := i.rt.ByName[d.Route.Name].NamespaceID
	topic, partitions := i.locate(d)
	for _, partition := range partitions {
		t := s.tasks[app.TaskID{Topic: topic, Partition: partition}]
		streamTime, window := i.timeOf(&t.last, d.Route)
		for _, row := range t.rows {
			switch {
			case row.NamespaceID != namespaceID || !window.Retains(row.First, streamTime) || !isOf(&row, d):
			case row.Status == dedup.Freed:
				freeAfter = max(freeAfter, row.Attempt)
			default:
				rows = append(rows, RowErasure{
					Digest: row.Digest, Task: t.id.String(), First: string(i.rt.PositionText(row.At)), Status: row.Status, Attempt: row.Attempt,
					task: t.id, ref: app.RefOf(&row),
				})
			}
		}
	}
	return rows, freeAfter
}

// isOf reports whether a row belongs to the event with the derived key. If the details of the event are
// unknown, every row of the key does.
func isOf(row *dedup.Row, d *rules.Derived) bool {
	if d.Fingerprint != 0 && !row.Agrees(d.Fingerprint) {
		return false
	}
	if slices.Contains(digestsOf(d), row.Key()) {
		ev := dedup.Event{Digest: d.Digest, Time: d.Time, Shift: d.Shift, Fingerprint: d.Fingerprint}
		adjacent := d.HasAdjacent && row.Digest != d.Digest && row.Digest != dedup.CollisionDigest(d.Digest, d.Fingerprint)
		return !adjacent || ev.IsAdjacent(row, d.Route.AdjacentStep())
	}
	if d.Route.Mode != rules.ClaimMode {
		return false
	}
	if claim, err := dedup.DecodeClaim(row.Result); err == nil && row.HasResult && claim.Key == d.Key {
		return true
	}
	if d.HasAdjacent {
		for attempt := range uint32(formerMax) {
			if row.Digest == dedup.FormerDigest(d.Adjacent[0], attempt) || row.Digest == dedup.FormerDigest(d.Adjacent[1], attempt) {
				return true
			}
		}
	}
	return d.Route.ForwardsCollisions() && d.Fingerprint == 0 && row.Fingerprint != 0 && isCollisionOf(row, d)
}

// request writes erasure requests for all rows to the manifest topic.
func (i *Inspector) request(ctx context.Context, erasures []Erasure, o ForgetOptions) error {
	type group struct {
		task        app.TaskID
		namespaceID uint8
	}
	groups := map[group][]*RowErasure{}
	var order []group
	for e := range erasures {
		namespaceID := i.rt.ByName[erasures[e].Key.Route.Name].NamespaceID
		for r := range erasures[e].Rows {
			row := &erasures[e].Rows[r]
			g := group{row.task, namespaceID}
			if groups[g] == nil {
				order = append(order, g)
			}
			groups[g] = append(groups[g], row)
		}
	}
	for _, g := range order {
		for chunk := range slices.Chunk(groups[g], app.ErasureRowsMax) {
			refs := make([]app.RowRef, len(chunk))
			for n, row := range chunk {
				refs[n] = row.ref
			}
			if err := app.WriteErasure(ctx, i.client, i.rt.Topology, app.NewErasureRequest(g.task, g.namespaceID, refs, o.By)); err != nil {
				return err
			}
			for _, row := range chunk {
				row.Result = Requested
			}
		}
	}
	return nil
}

// pendingRows has the requested rows by task and digest. A digest may have several, because targets may repeat
// a key.
type pendingRows map[app.TaskID]map[dedup.Digest][]*RowErasure

// confirm reads the changelogs until all requested rows are erased or superseded, or the timeout is over. After
// a timeout, the results show which rows are not erased.
func (i *Inspector) confirm(ctx context.Context, scan *rowScan, erasures []Erasure, o ForgetOptions) error {
	if o.Timeout <= 0 {
		return nil
	}
	pending, all := pendingRows{}, 0
	for e := range erasures {
		for r := range erasures[e].Rows {
			row := &erasures[e].Rows[r]
			if pending[row.task] == nil {
				pending[row.task] = map[dedup.Digest][]*RowErasure{}
			}
			pending[row.task][row.Digest] = append(pending[row.task][row.Digest], row)
			all++
		}
	}
	waiting, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	for ended := 0; ended < all; {
		n, err := i.confirmMore(waiting, scan, pending)
		ended += n
		if o.Progress != nil {
			o.Progress(int64(ended), int64(all))
		}
		if err == nil && ended < all {
			err = kafka.Pause(waiting, confirmPause)
		}
		switch {
		case ended == all || waiting.Err() != nil && ctx.Err() == nil:
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// confirmMore reads what was added to the changelogs since the last call, and returns how many erasures have
// ended.
func (i *Inspector) confirmMore(ctx context.Context, scan *rowScan, pending pendingRows) (ended int, err error) {
	for _, task := range scan.order {
		if len(pending[task]) == 0 {
			continue
		}
		t := scan.tasks[task]
		t.end, err = i.changelogFrom(ctx, task, t.end, func(rec *kgo.Record) error {
			n, err := note(pending[task], rec)
			ended += n
			return err
		})
		if err != nil {
			return ended, err
		}
	}
	return ended, nil
}

// note reads a changelog record. If a row in it shows that an erasure has ended, note sets the result of the
// erasure. It returns how many erasures have ended.
func note(open map[dedup.Digest][]*RowErasure, rec *kgo.Record) (ended int, err error) {
	if _, ok := wire.CheckpointNumber(rec.Key); ok {
		return 0, nil
	}
	for row, err := range wire.RowsOf(rec) {
		if err != nil {
			return ended, err
		}
		wanted := open[row.Digest]
		if len(wanted) == 0 || wanted[0].ref.Names(row) {
			continue // the row is not erased yet; the record may be a copy that a sweep has written
		}
		result := Superseded
		if wanted[0].ref == app.RefOf(row) {
			result = Erased
		}
		for _, w := range wanted {
			w.Result = result
		}
		ended += len(wanted)
		delete(open, row.Digest)
	}
	return ended, nil
}
