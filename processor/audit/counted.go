package audit

import (
	"maps"
	"math"
	"slices"
)

// Counted has the counts of a rule. The indexes in Partitions and Senders are those of Event.
type Counted struct {
	Events, Keyed, MissingKey, Invalid, Future uint64

	Keys                                 Estimate
	Copies, OtherPayload, OtherPartition Estimate
	Sample                               int    // the audit counted 1 of 2^Sample keys; 0 means all
	DiskRecords                          int64  // how many records were on disk
	DiskBytes                            int64  // their size
	InMemory                             int    // how many keys were in memory
	Delays                               []Step // copies by delay since the first record, up to the longest delay with copies
	Lateness                             []Late
	Partitions, Senders                  []Part
	Hours                                []Hour
	Reasons                              []Reason
	Mismatches                           []Mismatch
	Top                                  []TopKey

	all   counts
	total count // copies
}

// Step is the number of copies whose delay in ms is above the previous step and at most UpTo; UpTo is 0 if
// there is no bound.
type Step struct {
	UpTo      int64
	Copies    Estimate // without the copies of earlier steps
	Share     float64  // of all copies, with those of earlier steps
	Deviation float64  // standard error of Share
}

// Late counts the events that are late by at most UpTo ms: by so much their event time is below the highest
// event time before them in their partition. UpTo is 0 for events in order, and -1 for no bound.
type Late struct {
	UpTo   int64
	Events uint64
	Share  float64 // of all events, with those of earlier entries
}

// Part has the events and copies of a partition or a sender.
type Part struct {
	Index  int32
	Events uint64
	Copies Estimate
}

// Hour has the events and copies of an hour of event time.
type Hour struct {
	Start  int64 // Unix ms
	Events uint64
	Copies Estimate
}

// Mismatch is a copy whose payload differs from the payload of the first record of its key.
type Mismatch struct{ First, Copy Position }

// TopKey is a key with many copies.
type TopKey struct {
	First  Position
	Copies uint32
}

// counted returns the result of a fold.
func (f *Fold) counted() *Counted {
	all := newCounts()
	for _, c := range f.levels[f.level:] {
		if c != nil {
			all.merge(c)
		}
	}
	c := &Counted{
		Events: f.events, Keyed: f.keyed, MissingKey: f.missing, Invalid: f.invalid, Future: f.future, Sample: f.level, InMemory: f.table.n,
		Copies: all.copies.estimate(f.level), OtherPayload: all.otherPayload.estimate(f.level), OtherPartition: all.otherPartition.estimate(f.level),
		Reasons: f.reasons, all: *all, total: all.copies,
	}
	if f.disk != nil {
		c.DiskRecords, c.DiskBytes = f.disk.records, f.disk.size
	}
	c.Keys = f.keys(c.Copies)
	c.Delays = f.delays(all)
	c.Lateness = f.latenessSteps()
	c.Partitions, c.Senders = f.parts(f.partitions, all.partitions), f.parts(f.senders, all.senders)
	for _, hour := range slices.Sorted(maps.Keys(f.hours)) {
		h := Hour{Start: hour * hourMS, Events: f.hours[hour]}
		if n := all.hours[hour]; n != nil {
			h.Copies = n.estimate(f.level)
		}
		c.Hours = append(c.Hours, h)
	}
	for _, m := range f.mismatches {
		c.Mismatches = append(c.Mismatches, Mismatch{m.first, m.copy})
	}
	for _, e := range f.top {
		c.Top = append(c.Top, TopKey{Position{e.partition, e.offset}, e.copies})
	}
	return c
}

// keys returns the number of keys. There are two estimates: from the number of keys in the sample, and as the
// number of all records minus the copies. keys returns the estimate with the smaller error.
func (f *Fold) keys(copies Estimate) Estimate {
	if f.level == 0 {
		return Estimate{N: uint64(f.table.n) + f.onDisk}
	}
	scale := math.Ldexp(1, f.level)
	if own := math.Sqrt((1-1/scale)*float64(f.table.n)) * scale; own < copies.Error {
		return Estimate{uint64(f.table.n) << f.level, own}
	}
	return Estimate{f.keyed - min(f.keyed, copies.N), copies.Error}
}

// delays returns the steps up to the last one that has copies.
func (f *Fold) delays(all *counts) []Step {
	last := len(all.delays) - 1
	for last >= 0 && all.delays[last].n == 0 {
		last--
	}
	var steps []Step
	var sum count
	for i := range last + 1 {
		s := Step{Copies: all.delays[i].estimate(f.level)}
		if i < len(Steps) {
			s.UpTo = Steps[i]
		}
		sum.merge(all.delays[i])
		s.Share, s.Deviation = share(sum, all.copies, f.level)
		steps = append(steps, s)
	}
	return steps
}

// latenessSteps returns the entries up to the last one that has events.
func (f *Fold) latenessSteps() []Late {
	last := len(f.lateness) - 1
	for last > 0 && f.lateness[last] == 0 {
		last--
	}
	var list []Late
	var sum uint64
	for i := range last + 1 {
		sum += f.lateness[i]
		l := Late{Events: f.lateness[i], Share: float64(sum) / float64(max(1, f.keyed))}
		switch {
		case i > len(Steps):
			l.UpTo = -1
		case i > 0:
			l.UpTo = Steps[i-1]
		}
		list = append(list, l)
	}
	return list
}

// parts returns the entries that have events.
func (f *Fold) parts(events, copies []count) []Part {
	var list []Part
	for i := range events {
		if events[i].n == 0 {
			continue
		}
		p := Part{Index: int32(i), Events: events[i].n}
		if i < len(copies) {
			p.Copies = copies[i].estimate(f.level)
		}
		list = append(list, p)
	}
	return list
}
