package oracle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
)

// A chain is the sequence of checkpoints in a changelog partition: whole checkpoints, and partial checkpoints,
// which have only the changes since the previous checkpoint.
type chain struct {
	newest checkpoint
	has    bool
	number uint32 // number of the newest partial checkpoint; 0 after a whole one
}

// flagsOfSmall are the flags that the small checkpoint inside a partial checkpoint may have.
const flagsOfSmall = 255 &^ flagCounts

// Marks of a partial checkpoint tell which parts it has:
const markFences, markClaims, markProgress, markSenders, markShadows, markTenants, markSources = 1, 2, 4, 8, 16, 32, 64

// numberOf returns the number of the checkpoint with this key: 0 for a whole checkpoint, whose key is
// "checkpoint"; for a partial one the 4 bytes after "checkpoint/", big-endian. It returns false for any other
// key.
func numberOf(key []byte) (uint32, bool) {
	const whole = "checkpoint"
	switch n := len(whole); {
	case string(key) == whole:
		return 0, true
	case len(key) == n+5 && string(key[:n+1]) == whole+"/":
		return binary.BigEndian.Uint32(key[n+1:]), true
	}
	return 0, false
}

// isCheckpoint reports whether a changelog record is a checkpoint.
func isCheckpoint(r *Record) bool {
	_, ok := numberOf(r.Key)
	return ok
}

// add reads the next checkpoint. After an error the chain is unchanged.
func (c *chain) add(number uint32, value []byte) error {
	if number == 0 {
		cp, err := openCheckpoint(value)
		if err == nil {
			*c = chain{newest: cp, has: true}
		}
		return err
	}
	if !c.has || number != c.number+1 {
		return fmt.Errorf("is the partial checkpoint %d after number %d (there is one: %t)", number, c.number, c.has)
	}
	cp, err := openPartial(&c.newest, value)
	if err == nil {
		*c = chain{newest: cp, has: true, number: number}
	}
	return err
}

// openPartial reads a partial checkpoint: version 5 | marks | length, uvarint, and a
// checkpoint of what is not relative | if marked: the newest claim, progress record and step,
// varints | if marked: length, uvarint, and progress | if marked: length, uvarint, and changes of
// the senders | if marked: the counts of shadows | if marked: length, uvarint, and changes of the
// tenants | if marked: length, uvarint, and changes of the sources | number of changed stream times,
// uvarint, and for each: namespace id, difference, varint | changes of the counts.
func openPartial(before *checkpoint, b []byte) (c checkpoint, err error) {
	if len(b) < 3 || b[0] != 5 {
		return c, fmt.Errorf("is no partial checkpoint: %x", b)
	}
	marks, f := b[1], fields{rest: b[2:]}
	if c, err = openCheckpoint(f.bytes(int(f.unsigned(1 << 31)))); err != nil {
		return c, err
	}
	if c.flags&^flagsOfSmall != 0 || c.sequence != before.sequence+1 {
		return c, fmt.Errorf("is the partial checkpoint of transaction %d with flags %x, after transaction %d", c.sequence, c.flags, before.sequence)
	}
	if marks&markFences == 0 {
		c.fences = before.fences
	}
	if marks&markClaims != 0 {
		c.claimed, c.progressed, c.stepped = f.signed(), f.signed(), f.signed()
		c.progress = before.progress
	}
	if marks&markProgress != 0 {
		c.progress = string(f.bytes(int(f.unsigned(1 << 31))))
	}
	c.set, c.known, c.senders = before.set, before.known, before.senders
	if marks&markSenders != 0 {
		var ok bool
		if c.senders, ok = changeSenders(before.senders, f.bytes(int(f.unsigned(1<<31)))); !ok {
			return c, fmt.Errorf("has changes of senders that do not fit: %x", b)
		}
	}
	if c.shadows = before.shadows; marks&markShadows != 0 {
		c.shadows = f.shadows()
	}
	if marks&markTenants != 0 {
		f.bytes(int(f.unsigned(1 << 31)))
	}
	if c.sources = before.sources; marks&markSources != 0 {
		var ok bool
		if c.sources, ok = changeSources(before.sources, f.bytes(int(f.unsigned(1<<31)))); !ok {
			return c, fmt.Errorf("has changes of sources that do not fit: %x", b)
		}
	}
	c.times, c.seen, c.counts = before.times, before.seen, before.counts.clone()
	for n := f.unsigned(257); n > 0 && !f.bad; n-- {
		namespaceID := f.byte()
		c.times[namespaceID] += f.signed()
		c.seen[namespaceID] = true
	}
	c.counts.change(&f)
	if f.bad {
		return c, fmt.Errorf("is no partial checkpoint of the one before: %x", b)
	}
	return c, nil
}

// openStored reads the checkpoint of a local store: a whole checkpoint and the partial ones after it, each
// preceded by its length, a uvarint.
func openStored(b []byte) (checkpoint, error) {
	f, c := fields{rest: b}, chain{}
	for number := uint32(0); len(f.rest) > 0; number++ {
		value := f.bytes(int(f.unsigned(1 << 31)))
		if f.bad {
			return checkpoint{}, errors.New("is cut short")
		}
		if err := c.add(number, value); err != nil {
			return checkpoint{}, err
		}
	}
	return c.newest, nil
}

// equals reports whether two checkpoints have the same content.
func (c *checkpoint) equals(other *checkpoint) bool {
	a, b := *c, *other
	a.flags, b.flags = 0, 0
	return reflect.DeepEqual(a, b)
}

// A counted identifies what a count counts: a namespace id, and a status or countsOfEvents.
type counted struct{ namespaceID, status uint8 }

// countsOfEvents stands in place of a status for the judged events and the duplicates among them.
const countsOfEvents = 0xff

// A count is a number of rows by time, in buckets of equal width. A count of events has a single bucket.
type count struct {
	width   int64
	buckets map[int64]bucket
}

// A bucket has the number of rows and their earliest time; a bucket of events has the number of all events, and
// of duplicates.
type bucket struct{ rows, lowest int64 }

// counts has the counts of a checkpoint.
type counts map[counted]count

// openCounts reads, for each count: namespace id, status | for events: all, duplicates, uvarints | for rows:
// width, number of buckets, uvarints, and for each: number, varint, rows and lowest time in it, uvarints.
func openCounts(b []byte) (counts, bool) {
	all, f := counts{}, fields{rest: b}
	for len(f.rest) > 0 && !f.bad {
		key := counted{f.byte(), f.byte()}
		one := count{1, map[int64]bucket{}}
		if key.status == countsOfEvents {
			one.buckets[0] = bucket{int64(f.unsigned(1 << 63)), int64(f.unsigned(1 << 63))}
		} else {
			one.width = int64(f.unsigned(1 << 62))
			for n := f.unsigned(1 << 31); n > 0 && !f.bad; n-- {
				number := f.signed()
				one.buckets[number] = bucket{int64(f.unsigned(1 << 63)), number*one.width + int64(f.unsigned(1<<63))}
			}
		}
		all[key] = one
	}
	return all, !f.bad
}

// clone returns a copy, because two checkpoints must not share their counts.
func (all counts) clone() counts {
	copied := make(counts, len(all))
	for key, one := range all {
		buckets := make(map[int64]bucket, len(one.buckets))
		for number, b := range one.buckets {
			buckets[number] = b
		}
		copied[key] = count{one.width, buckets}
	}
	return copied
}

// change reads the changes of counts, for each namespace: its id, flags, [events since the previous checkpoint,
// uvarint: flag 8], [duplicates since then, uvarint: flag 16], and then for as many counts of rows as the lower
// bits tell: status, changes.
func (all counts) change(f *fields) {
	for len(f.rest) > 0 && !f.bad {
		namespaceID, flags := f.byte(), f.byte()
		key := counted{namespaceID, countsOfEvents}
		if flags&24 != 0 {
			one := all[key]
			b := one.buckets[0]
			if flags&8 != 0 {
				b.rows += int64(f.unsigned(1 << 63))
			}
			if flags&16 != 0 {
				b.lowest += int64(f.unsigned(1 << 63))
			}
			all[key] = count{1, map[int64]bucket{0: b}}
		}
		for n := flags & 7; n > 0 && !f.bad; n-- {
			key.status = f.byte()
			one, known := all[key]
			if !known {
				one.buckets = map[int64]bucket{}
			}
			one.change(f, known)
			if all[key] = one; len(one.buckets) == 0 {
				delete(all, key)
			}
		}
	}
}

// change reads the changes of a count of rows: the width, uvarint, if there was no count before; twice the
// number of buckets, uvarint, and for each: its number after the previous one, how many rows more, and how much
// later the lowest time is, varints. The first number is relative to the newest bucket of before. A bucket
// without rows is removed. In place of all of this there may be 1, and how many rows more the newest bucket
// has, varint.
func (c *count) change(f *fields, known bool) {
	number := int64(math.MinInt64)
	for n := range c.buckets {
		number = max(n, number)
	}
	if !known {
		c.width, number = int64(f.unsigned(1<<62)), 0
	}
	n := f.unsigned(1 << 31)
	if n == 1 {
		b := c.buckets[number]
		b.rows += f.signed()
		c.buckets[number] = b
		return
	}
	for n /= 2; n > 0 && !f.bad; n-- {
		number += f.signed()
		b, ok := c.buckets[number]
		if !ok {
			b.lowest = number * c.width
		}
		if b.rows += f.signed(); b.rows == 0 {
			delete(c.buckets, number)
			continue
		}
		b.lowest += f.signed()
		c.buckets[number] = b
		f.bad = f.bad || b.rows < 0
	}
}
