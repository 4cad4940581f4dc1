package audit

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"time"

	"oncebus/dedup"
)

// Fold counts the records for one rule, in the merged order. Only one goroutine uses it.
type Fold struct {
	keysMax int
	now     int64 // when the audit began, Unix ms
	table   table
	level   int // level of the sample: keys of a lower level are not in it
	levels  [levelMax + 1]*counts
	disk    *runs // nil without a directory, and before it is needed
	dir     string

	events, keyed, missing, invalid, future uint64
	onDisk                                  uint64  // keys that are not in memory but on disk
	fronts                                  []int64 // highest event times so far, by partition
	lateness                                []uint64
	partitions, senders                     []count // keyed events; only n is used
	hours                                   map[int64]uint64
	reasons                                 []Reason
	mismatches                              []mismatch
	top                                     []entry
	failed                                  error
}

// FoldOptions are the options of a fold.
type FoldOptions struct {
	KeysMax int    // keys in memory, at least 1
	Dir     string // directory for exact counts of the keys beyond KeysMax; "" to sample keys instead
	Now     int64  // when the audit began, Unix ms; an event that is too far ahead of it (futureMax) is not counted
}

// levelMax is the highest level of the sample, at which one of 2^levelMax keys is left.
const levelMax = 30

// futureMax is how far an event may be ahead of the begin of the audit, in ms: the default skew of a route.
const futureMax = int64(time.Hour / time.Millisecond)

// How many examples a result has.
const (
	mismatchesMax = 10
	topMax        = 5
	reasonsMax    = 3
)

// hoursMax is the number of hours before the audit that are counted individually: ten years. All earlier hours
// count as the first of these hours, so that the memory is bounded even if wrong event times can be any number.
const hoursMax = 10 * 365 * 24

const hourMS = int64(time.Hour / time.Millisecond)

// NewFold returns a fold without records.
func NewFold(o FoldOptions) *Fold {
	return &Fold{keysMax: o.KeysMax, dir: o.Dir, now: o.Now, lateness: make([]uint64, len(Steps)+2), hours: map[int64]uint64{}}
}

// Reason is a reason why records have no key, with the first record that it concerns.
type Reason struct {
	Finding Finding
	Text    string
	First   Position
}

// mismatch is a copy whose payload differs from that of the first record.
type mismatch struct {
	digest      dedup.Digest
	first, copy Position
}

// levelOf returns the highest level of the sample to which a key belongs.
func levelOf(d *dedup.Digest) int {
	return min(bits.LeadingZeros64(binary.BigEndian.Uint64(d[8:])), levelMax)
}

// Add counts a record. An error comes from the file on disk.
func (f *Fold) Add(e *Event, k *Key) error {
	if k.Finding == Elsewhere {
		return nil
	}
	f.events++
	switch {
	case k.Finding == MissingKey:
		f.missing++
		f.reason(e, k)
		return nil
	case k.Finding == Invalid:
		f.invalid++
		f.reason(e, k)
		return nil
	case k.Time > f.now+futureMax:
		f.future++
		return nil
	}
	f.keyed++
	at(&f.partitions, e.Partition).n++
	at(&f.senders, e.Sender).n++
	hour := f.hourOf(k.Time)
	f.hours[hour]++
	f.late(e.Partition, k.Time)
	level := levelOf(&k.Digest)
	if level < f.level {
		return nil
	}
	found, slot := f.table.find(&k.Digest)
	if found != nil {
		f.copy(found, e, k.Time, level)
		return nil
	}
	if f.table.n >= f.keysMax {
		if f.dir != "" {
			return f.spill(e, k)
		}
		if f.raise(); level < f.level {
			return nil
		}
		_, slot = f.table.find(&k.Digest)
	}
	f.table.add(slot, &entry{digest: k.Digest, time: k.Time, offset: e.Offset, payload: e.Payload, partition: e.Partition})
	return nil
}

// late counts how far an event is behind the newest event before it in its partition. Events of other
// partitions do not matter, because the stream time of an app follows the partition that is furthest behind.
func (f *Fold) late(partition int32, eventTime int64) {
	front := at(&f.fronts, partition)
	if f.partitions[partition].n == 1 || eventTime >= *front {
		*front = eventTime
		f.lateness[0]++
		return
	}
	f.lateness[1+stepOf(*front-eventTime)]++
}

// hourOf returns the hour of an event, in hours since 1970.
func (f *Fold) hourOf(eventTime int64) int64 { return max(eventTime/hourMS, f.now/hourMS-hoursMax) }

// copy counts a copy of a key that is in the sample.
func (f *Fold) copy(first *entry, e *Event, eventTime int64, level int) {
	c := f.levels[level]
	if c == nil {
		c = newCounts()
		f.levels[level] = c
	}
	c.add(first, e, eventTime, f.hourOf(eventTime))
	first.copies++
	if e.Payload != first.payload {
		f.mismatch(mismatch{first.digest, Position{first.partition, first.offset}, Position{e.Partition, e.Offset}})
	}
}

// mismatch keeps the first mismatches in the order of digest and position, so that a count in memory and a
// count on disk keep the same mismatches.
func (f *Fold) mismatch(m mismatch) {
	if n := len(f.mismatches); n == mismatchesMax {
		if compareMismatches(m, f.mismatches[n-1]) >= 0 {
			return
		}
		f.mismatches = f.mismatches[:n-1]
	}
	i, _ := slices.BinarySearchFunc(f.mismatches, m, compareMismatches)
	f.mismatches = slices.Insert(f.mismatches, i, m)
}

func compareMismatches(a, b mismatch) int {
	return cmp.Or(slices.Compare(a.digest[:], b.digest[:]), cmp.Compare(a.copy.Partition, b.copy.Partition), cmp.Compare(a.copy.Offset, b.copy.Offset))
}

// reason keeps the first few reasons that differ from each other.
func (f *Fold) reason(e *Event, k *Key) {
	if len(f.reasons) < reasonsMax && !slices.ContainsFunc(f.reasons, func(r Reason) bool { return r.Finding == k.Finding && r.Text == k.Reason }) {
		f.reasons = append(f.reasons, Reason{k.Finding, k.Reason, Position{e.Partition, e.Offset}})
	}
}

// raise halves the sample (it raises the level) until one more key fits into memory.
func (f *Fold) raise() {
	for f.table.n >= f.keysMax && f.level < levelMax {
		f.levels[f.level] = nil
		f.level++
		f.table.retain(func(e *entry) bool { return levelOf(&e.digest) >= f.level })
		f.mismatches = slices.DeleteFunc(f.mismatches, func(m mismatch) bool { return levelOf(&m.digest) < f.level })
	}
}

// keep keeps a key if it is among those with the most copies.
func (f *Fold) keep(e *entry) {
	if e.copies == 0 || len(f.top) == topMax && compareTop(*e, f.top[topMax-1]) >= 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(f.top, *e, compareTop)
	f.top = slices.Insert(f.top, i, *e)
	f.top = f.top[:min(len(f.top), topMax)]
}

func compareTop(a, b entry) int {
	return cmp.Or(cmp.Compare(b.copies, a.copies), slices.Compare(a.digest[:], b.digest[:]))
}

// spill writes a record to disk because its key is not in memory.
func (f *Fold) spill(e *Event, k *Key) error {
	if f.disk == nil {
		f.disk, f.failed = newRuns(f.dir)
	}
	if f.failed == nil {
		f.failed = f.disk.add(&spilled{digest: k.Digest, time: k.Time, offset: e.Offset, payload: e.Payload, partition: e.Partition, sender: e.Sender})
	}
	return f.failed
}

// Finish counts the records on disk and returns the result. watch, if not nil, is called with how many records
// on disk were counted.
func (f *Fold) Finish(watch func(done, total int64)) (*Counted, error) {
	if f.failed == nil && f.disk != nil {
		f.failed = f.countDisk(watch)
	}
	if f.failed != nil {
		return nil, f.failed
	}
	for i := range f.table.n {
		f.keep(f.table.entry(i))
	}
	return f.counted(), nil
}

// countDisk counts the records on disk, one key after the other.
func (f *Fold) countDisk(watch func(done, total int64)) error {
	if watch == nil {
		watch = func(int64, int64) {}
	}
	var first entry // the first record of the current key
	err := f.disk.merge(watch, func(s *spilled) {
		if f.onDisk > 0 && s.digest == first.digest {
			f.copy(&first, &Event{Partition: s.partition, Sender: s.sender, Offset: s.offset, Payload: s.payload}, s.time, levelOf(&s.digest))
			return
		}
		f.keep(&first)
		first = entry{digest: s.digest, time: s.time, offset: s.offset, payload: s.payload, partition: s.partition}
		f.onDisk++
	})
	f.keep(&first)
	return err
}

// Close removes the file on disk.
func (f *Fold) Close() error {
	if f.disk == nil {
		return nil
	}
	return f.disk.close()
}
