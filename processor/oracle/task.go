package oracle

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
)

// A task follows a partition of the repartition topic and the changelog of that partition, transaction by
// transaction.
type task struct {
	partition int32
	fold      *fold
	input     []*Record
	cursor    int // index in input: the records below it are judged
	lastFrom  map[source]int64

	// From the changelog, up to the current record:
	latest     map[digest]*Record // newest row of each key
	openRows   []*Record          // rows since the last checkpoint
	packs      uint32             // packs since the last checkpoint
	made       []madeRow          // rows that the fold made since the last checkpoint
	checkpoint *Record            // the newest checkpoint
	chain      chain              // all checkpoints up to the newest
	sequence   int64
	floor      int64 // of the newest checkpoint
	incomplete bool  // of the newest checkpoint
	bypassed   map[uint8]int64
	dead       map[int64]bool // offsets of bypassed records that became dead letters
	duplicates duplicates     // duplicates judged so far
	// seeded has the seeds that the fold has judged since the last checkpoint, and wroteSeeds has the seeds
	// that the task itself has counted since then.
	seeded, wroteSeeds seeded

	checkpoints []*Record
	nexts       []int64 // next of every checkpoint that advances
	sequences   []int64 // sequences of the same checkpoints
	offsets     []int64 // changelog offsets of the same checkpoints
}

// A madeRow is a row that the fold has made, with the record from which it was made.
type madeRow struct {
	digest digest
	row    row
	by     *Record
}

// task checks a partition: the chain of checkpoints (K10), the transactions (K11), the state (K5), and the
// records that were routed to the partition.
func (c *check) task(partition int32, input, changelog []*Record) {
	t := &task{
		partition: partition, fold: newFold(), input: input, lastFrom: map[source]int64{}, latest: map[digest]*Record{},
		bypassed: map[uint8]int64{}, dead: map[int64]bool{}, duplicates: duplicates{},
	}
	c.tasks[partition] = t
	stores := c.storesOf(partition)
	for _, r := range changelog {
		for len(stores) > 0 && stores[0].Position <= r.Offset {
			c.store(t, stores[0])
			stores = stores[1:]
		}
		if isCheckpoint(r) {
			c.transaction(t, r)
			continue
		}
		if isSeedCounts(r) {
			c.seedCounts(t, r)
			continue
		}
		swept := len(r.Headers) > 0 && r.Headers[0].Key == headerSweep
		for _, row := range c.rowsOf(t, r) {
			if swept {
				c.swept(t, row)
				continue
			}
			t.openRows = append(t.openRows, row)
			t.latest[digest(row.Key)] = row
			c.report.Rows++
		}
	}
	for _, s := range stores {
		c.store(t, s)
	}
	if n := len(t.openRows); n > 0 {
		c.add("K11", "%s: %d rows from this one on are followed by no checkpoint: torn; digest %x", at(t.openRows[0]), n, t.openRows[0].Key)
	}
	c.state(t)
	c.finalState(t)
	c.unfollowed(t)
	// The routing stage writes progress records even without input, so some may follow behind the last
	// checkpoint's input; they are not missing.
	left := slices.DeleteFunc(slices.Clone(t.input[t.cursor:]), isProgress)
	if len(left) > 0 {
		c.add("K9", "%s: %d records from this one on are beyond the last checkpoint: not processed; record key %s", at(left[0]), len(left), brief(left[0].Key))
	}
	for ; t.cursor < len(t.input); t.cursor++ {
		c.judge(t, t.input[t.cursor], true)
	}
	// Later checks need only the offsets of the checkpoints.
	t.fold, t.latest, t.made, t.openRows, t.checkpoints = nil, nil, nil, nil, nil
}

// headerSweep marks a row that a sweep has written again.
const headerSweep = "oncebus-sweep"

// swept checks that a row which a sweep has written again is the newest row of its key (K5).
func (c *check) swept(t *task, r *Record) {
	c.report.Rows++
	if newest := t.latest[digest(r.Key)]; newest == nil || !bytes.Equal(newest.Value, r.Value) {
		c.add("K5", "%s: a sweep wrote %x, which is not the newest row of key %x", at(r), r.Value, r.Key)
	}
	t.latest[digest(r.Key)] = r
}

// judge judges the next record with the fold, and stores the record and the row that are expected for it.
func (c *check) judge(t *task, r *Record, beyond bool) {
	c.report.Routed++
	if isProgress(r) {
		c.progress(t, r)
		return
	}
	if len(c.cfg.Claims) > 0 && isOutcome(r) {
		return
	}
	e, err := openEnvelope(r, c.cfg.RepartitionNumber)
	if err != nil {
		c.add("K2", "%s: %v; record key %s", at(r), err, brief(r.Key))
		return
	}
	switch {
	case e.seed:
	case e.ingress:
		c.submitted(r, &e)
	default:
		c.routed(t, r, &e)
	}
	for i := range c.cfg.Claims {
		if claims := &c.cfg.Claims[i]; claims.Route == string(e.route) {
			if e.seed {
				c.arrived(t, r, &e, claims.NamespaceID)
				return
			}
			t.fold.moveStreamTime(&e, claims, r.Timestamp)
			c.claimAddresses[e.replyTo] = e.replyTo != ""
			return
		}
	}
	route := c.routes[string(e.route)]
	if route == nil {
		c.add("K2", "%s: routed by %q, which is no route; record key %s", at(r), e.route, brief(r.Key))
		return
	}
	if e.seed {
		c.seed(t, r, &e, route)
		return
	}
	if r.Offset < t.bypassed[route.NamespaceID] {
		c.judgeForwarded(t, r, &e, route)
		return
	}
	j := t.fold.judge(&e, route, r.Timestamp)
	if j.verdict == "limited" {
		j.reason = fmt.Sprintf("new key beyond the limit: %d keys of namespace %s are live in %s/%d, live_keys is %d",
			j.live, cmp.Or(route.Namespace, route.Name), c.cfg.Repartition, t.partition, route.LiveKeys)
	}
	if j.verdict == "duplicate" {
		t.duplicates.count(r, route)
	}
	l := draft{record: r, env: &e, route: route, verdict: j.verdict, reason: j.reason, first: j.first}
	if arrived := c.expect(&l, j.topic, beyond); arrived && j.wrote {
		c.stored(t, r, &e, route, &j)
	}
}

// expect stores the record that an event should become, and the verdict that its request should get. It returns
// false if there is no such record, or if the topic refuses it.
func (c *check) expect(l *draft, topic string, beyond bool) (arrived bool) {
	judged := *l
	if topic == "" {
		c.report.Dropped[l.verdict]++
	} else {
		var out Record
		out, arrived = c.builder.build(l, topic)
		c.expected.add(c.printer.of(&out), expectation{
			record: l.record, topic: c.expected.number(out.Topic), verdict: c.expected.number(l.verdict), partition: out.Partition,
			beyond: beyond, order: c.orderOf(l.route),
		})
	}
	if judged.verdict != "duplicate" {
		judged = *l // the request of a duplicate gets this verdict even if the topic refuses the record
	}
	c.expectVerdict(&judged, arrived && topic == l.route.Output, beyond)
	return arrived
}

// stored stores the row that an event makes.
func (c *check) stored(t *task, r *Record, e *envelope, route *Route, j *judgement) {
	if home, ok := c.homes[e.digest]; ok && home != t.partition {
		c.add("K1", "%s: dedup key %x was in partition %d before: two tasks judge it; record key %s", at(r), e.key, home, brief(r.Key))
	}
	c.homes[e.digest] = t.partition
	for _, p := range t.fold.store(e, route, j) {
		t.made = append(t.made, madeRow{p.digest, p.row, r})
	}
}

// transaction checks a checkpoint and all records since the previous checkpoint.
func (c *check) transaction(t *task, r *Record) {
	c.report.Transactions++
	number, _ := numberOf(r.Key)
	if err := t.chain.add(number, r.Value); err != nil {
		c.add("K10", "%s: %v", at(r), err)
		return
	}
	cp := t.chain.newest
	if cp.sequence != t.sequence+1 {
		c.add("K10", "%s: checkpoint with sequence %d (next %d) follows one with sequence %d: two owners, or one is missing", at(r), cp.sequence, cp.next, t.sequence)
	}
	if cp.floor < t.floor || cp.floor > r.Offset {
		c.add("K10", "%s: checkpoint with sequence %d has floor %d, the previous one %d", at(r), cp.sequence, cp.floor, t.floor)
	}
	t.sequence, t.floor, t.incomplete = cp.sequence, cp.floor, cp.incomplete
	if cp.incomplete && !c.isCut(c.cfg.Changelog, t.partition) {
		c.add("K5", "%s: checkpoint with sequence %d says that rows are missing in the changelog, but none was deleted", at(r), cp.sequence)
	}
	t.checkpoint = r
	t.checkpoints = append(t.checkpoints, r)
	if n := len(t.nexts); n > 0 && cp.next < t.nexts[n-1] {
		c.add("K10", "%s: checkpoint with sequence %d has next %d, the previous one %d: it went back", at(r), cp.sequence, cp.next, t.nexts[n-1])
	}
	before := t.cursor
	t.fold.adopt(c.cfg.Sets, cp.set)
	t.fold.linked = t.fold.linked || cp.set > 0 // the app is at level 2, and stays there
	c.followSources(t, &cp)
	for ; t.cursor < len(t.input) && t.input[t.cursor].Offset < cp.next; t.cursor++ {
		c.judge(t, t.input[t.cursor], false)
	}
	c.bypass(t, r, &cp)
	switch moved := len(t.nexts) == 0 || cp.next > t.nexts[len(t.nexts)-1]; {
	case moved && c.isCut(c.cfg.Repartition, t.partition): // it continues where the remaining records begin
	case t.cursor > before && t.input[t.cursor-1].Offset+1 != cp.next, t.cursor == before && moved && len(t.nexts) > 0:
		c.add("K11", "%s: checkpoint with sequence %d has next %d, but %s/%d has no record just below", at(r), cp.sequence, cp.next, c.cfg.Repartition, t.partition)
	case !moved || t.cursor == before:
		c.report.Idle++
	}
	if n := len(t.nexts); n == 0 || cp.next > t.nexts[n-1] {
		t.nexts = append(t.nexts, cp.next)
		t.sequences = append(t.sequences, cp.sequence)
		t.offsets = append(t.offsets, r.Offset)
	}
	c.rows(t, r, &cp)
	c.streamTimes(t, r, &cp)
	c.followed(t, r, &cp)
	c.windows(t, r, &cp)
	c.duplicates(t, r, &cp)
	c.seeds(t, r, &cp)
	t.openRows, t.made, t.packs = t.openRows[:0], t.made[:0], 0
}

// rows compares the rows of a transaction with the rows that the transaction's input makes (K11).
func (c *check) rows(t *task, r *Record, cp *checkpoint) {
	var want []byte
	t.openRows = slices.DeleteFunc(t.openRows, c.ofClaims)
	for i, m := range t.made {
		if i == len(t.openRows) {
			c.add("K11", "%s: the transaction with sequence %d has %d rows, its input makes %d; the first missing is %x of %s", at(r), cp.sequence, i, len(t.made), m.digest, at(m.by))
			return
		}
		got := t.openRows[i]
		if want = m.row.value(want[:0]); digest(got.Key) != m.digest || !bytes.Equal(got.Value, want) {
			c.add("K11", "%s: row %d of the transaction with sequence %d is %x=%x, want %x=%x for %s", at(got), i, cp.sequence, got.Key, got.Value, m.digest, want, at(m.by))
			return
		}
	}
	if extra := t.openRows[len(t.made):]; len(extra) > 0 {
		c.add("K11", "%s: the transaction with sequence %d has %d rows, its input makes %d; the first too many is %x=%x", at(extra[0]), cp.sequence, len(t.openRows), len(t.made), extra[0].Key, extra[0].Value)
	}
}

// streamTimes compares the stream times in a checkpoint with the stream times of the fold (K5).
func (c *check) streamTimes(t *task, r *Record, cp *checkpoint) {
	for namespaceID := range cp.seen {
		if cp.seen[namespaceID] != t.fold.seen[namespaceID] || cp.times[namespaceID] != t.fold.times[namespaceID] {
			c.add("K5", "%s: checkpoint with sequence %d has stream time %d (%t) for namespace id %d, want %d (%t)", at(r), cp.sequence,
				cp.times[namespaceID], cp.seen[namespaceID], namespaceID, t.fold.times[namespaceID], t.fold.seen[namespaceID])
		}
	}
}

// state compares the rows in the live changelog with the state of the oracle (K5).
func (c *check) state(t *task) {
	var want []byte
	for _, d := range sortedKeys(t.fold.rows) {
		row, got := t.fold.rows[d], t.latest[d]
		want = row.value(want[:0])
		switch {
		case got == nil:
			c.add("K5", "%s/%d: no row for %x, want %x (first seen at %s)", c.cfg.Changelog, t.partition, d, want, c.builder.positionText(row.at))
		case !bytes.Equal(got.Value, want):
			c.add("K5", "%s: the row of %x is %x, want %x (first seen at %s)", at(got), d, got.Value, want, c.builder.positionText(row.at))
		}
	}
	for _, d := range sortedKeys(t.latest) {
		if _, ok := t.fold.rows[d]; !ok && !c.ofClaims(t.latest[d]) {
			c.add("K5", "%s: a row for %x, which no event explains: %x", at(t.latest[d]), d, t.latest[d].Value)
		}
	}
}

// sortedKeys returns the keys in sorted order, so that the order of messages is deterministic.
func sortedKeys[V any](m map[digest]V) []digest {
	keys := make([]digest, 0, len(m))
	for d := range m {
		keys = append(keys, d)
	}
	slices.SortFunc(keys, func(a, b digest) int { return slices.Compare(a[:], b[:]) })
	return keys
}

// finalState checks that the final changelog still has the whole state, after compaction and after the deletion
// of records below the floor (K5).
func (c *check) finalState(t *task) {
	if c.report.Unread {
		return
	}
	final := c.finals[c.cfg.Changelog][t.partition]
	for _, d := range sortedKeys(t.latest) {
		// While the checkpoint is incomplete, rows may be missing in the changelog; a later sweep writes them
		// again.
		if newest := t.latest[d]; !t.incomplete && !c.trimmed(t, newest) {
			c.kept(final, newest)
		}
	}
	for _, r := range wholeOnward(t.checkpoints) {
		c.kept(final, r)
	}
}

// isCut reports whether the harness has deleted records of a partition.
func (c *check) isCut(topic string, partition int32) bool {
	return slices.Contains(c.h.Cut, fmt.Sprintf("%s/%d", topic, partition))
}

// kept checks that the newest record of a changelog key still exists.
func (c *check) kept(final []*Record, newest *Record) {
	if find(final, newest.Offset) == nil {
		c.add("K5", "%s: the newest record of key %x is missing from the final changelog, before its retention is over: %x", at(newest), newest.Key, newest.Value)
	}
}

// trimmed reports whether a row may be deleted: it is below the floor of the newest checkpoint, and its
// retention is over in stream time.
func (c *check) trimmed(t *task, r *Record) bool {
	if r.Offset >= t.floor || len(r.Value) < 5 {
		return false
	}
	namespaceID := r.Value[2]
	horizon, routed := c.horizon(&t.chain.newest, namespaceID)
	f := fields{rest: r.Value[4:]}
	first := f.signed()
	return routed && t.fold.seen[namespaceID] && first < horizon
}

// horizon returns the time below which a row of a namespace no longer counts, as of a checkpoint; false for a
// namespace without a route.
func (c *check) horizon(cp *checkpoint, namespaceID uint8) (int64, bool) {
	for i := range c.cfg.Routes {
		if r := &c.cfg.Routes[i]; r.NamespaceID == namespaceID {
			return c.horizonOf(cp, namespaceID, r.Window, r.Grace), true
		}
	}
	for i := range c.cfg.Claims {
		if r := &c.cfg.Claims[i]; r.NamespaceID == namespaceID {
			return c.horizonOf(cp, namespaceID, r.Window, r.Grace), true
		}
	}
	return 0, false
}

// transactionOf returns the index in nexts of the transaction that judged this input offset.
func (t *task) transactionOf(offset int64) int {
	i, _ := slices.BinarySearchFunc(t.nexts, offset+1, cmp.Compare)
	return i
}
