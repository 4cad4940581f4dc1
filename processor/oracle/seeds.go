package oracle

import (
	"fmt"
	"slices"
	"strings"
)

// seedTopic stands for the topic in the position of a row that a seed has made.
const seedTopic = 0xffff

// The fates of seeds, in the order of their counts.
var seedFates = []string{"taken", "known", "out of window", "too late", "in the future"}

// seeded has the counts of the seeds of a transaction.
type seeded struct {
	fates   [5]int64
	tooLate []int64 // the seeds' numbers in their file
}

// seed applies a seed, whose key another system has seen first, to the fold. A seed emits nothing and moves no
// stream time.
func (c *check) seed(t *task, r *Record, e *envelope, route *Route) {
	c.report.Seeds++
	if e.streamTime {
		c.arrived(t, r, e, route.NamespaceID)
		return
	}
	last, running := t.fold.times[route.NamespaceID], t.fold.seen[route.NamespaceID]
	prior, known := t.fold.rows[e.digest]
	window, grace := t.fold.spans.windowOf(route.NamespaceID, route.Window, route.Grace)
	known = known && !t.fold.absent(&prior, window, grace, last, running)
	fate := 1
	switch {
	case e.time > add(r.Timestamp, route.Skew):
		fate = 4
	case t.fold.absent(&row{first: e.time, namespaceID: route.NamespaceID}, window, grace, last, running):
		fate = 2
	case known && e.time > add(prior.first, window) && (!running || e.time > last):
		// The fate stays 1 (known), because the existing row must stay: events on which it decides are not late
		// yet.
	case !known, e.time > add(prior.first, window):
		fate = 0
	case e.time < prior.first && e.time >= add(prior.first, -window) && prior.at.topic != seedTopic:
		fate = 3
		t.seeded.tooLate = append(t.seeded.tooLate, e.from.offset)
	}
	t.seeded.fates[fate]++
	if fate == 0 {
		j := judgement{row: row{first: e.time, at: e.from, namespaceID: route.NamespaceID}}
		if known {
			j.replaces = &prior
		}
		c.stored(t, r, e, route, &j)
	}
}

// arrived applies the stream time that the task had in another cluster, unless the namespace already has one.
// The value of the record that brings the stream time is null or, if the window of the namespace has changed,
// it has since and lateBefore.
func (c *check) arrived(t *task, r *Record, e *envelope, namespaceID uint8) {
	if !e.streamTime || t.fold.seen[namespaceID] {
		return
	}
	t.fold.times[namespaceID], t.fold.seen[namespaceID] = e.time, true
	if r.Value == nil {
		return
	}
	f := fields{rest: r.Value}
	if t.fold.spans.known == nil {
		t.fold.spans.known = map[uint8]knownSince{}
	}
	t.fold.spans.known[namespaceID] = knownSince{namespaceID, f.signed(), f.signed()}
	if f.bad || len(f.rest) > 0 {
		c.add("K2", "%s: a stream time with the value %x", at(r), r.Value)
	}
}

// isSeedCounts reports whether a changelog record has the counts of seeds.
func isSeedCounts(r *Record) bool {
	return len(r.Key) == 26 && strings.HasPrefix(string(r.Key), "seeds/")
}

// seedCounts reads what a task has written about its seeds: version 1 | five counts, uvarint | how many
// numbers, uvarint | the numbers, each as the difference from the previous one, varint.
func (c *check) seedCounts(t *task, r *Record) {
	f := fields{rest: r.Value}
	version := f.byte()
	for i := range t.wroteSeeds.fates {
		t.wroteSeeds.fates[i] += int64(f.unsigned(1 << 63))
	}
	number := int64(0)
	for n := f.unsigned(1 << 20); n > 0 && !f.bad; n-- {
		number += f.signed()
		t.wroteSeeds.tooLate = append(t.wroteSeeds.tooLate, number)
	}
	if version != 1 || f.bad || len(f.rest) > 0 {
		c.add("K11", "%s: not counts of seeds: %x", at(r), r.Value)
	}
}

// seeds compares the counts of a transaction with the seeds in its input (K11). It does not judge seeds of
// claims.
func (c *check) seeds(t *task, r *Record, cp *checkpoint) {
	want, got := t.seeded, t.wroteSeeds
	t.seeded, t.wroteSeeds = seeded{}, seeded{}
	if len(c.cfg.Claims) > 0 || want.fates == got.fates && slices.Equal(want.tooLate, got.tooLate) {
		return
	}
	c.add("K11", "%s: the transaction with sequence %d counts seeds %s, its input has %s", at(r), cp.sequence, got.text(), want.text())
}

func (s *seeded) text() string {
	var parts []string
	for i, n := range s.fates {
		parts = append(parts, fmt.Sprintf("%d %s", n, seedFates[i]))
	}
	return strings.Join(parts, ", ") + fmt.Sprintf(" %v", s.tooLate)
}
