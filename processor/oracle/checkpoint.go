package oracle

import (
	"fmt"
	"math"
)

// A checkpoint is the state of a task as of a transaction, read from the task's changelog.
type checkpoint struct {
	next, sequence int64
	floor          int64 // changelog offset below which no row decides anything
	stepped        int64 // broker time at which its last step was noticed; 0 if there was none
	// incomplete means that the changelog lacks rows above the floor, so that only the task's local store has
	// these rows.
	incomplete bool
	bypassed   map[uint8]int64 // by namespace id, the input offset up to which events were forwarded unchecked
	dead       []offsetRange   // ranges of bypassed records that became dead letters, ascending
	times      [256]int64
	seen       [256]bool
	counts     counts
	senders    []routeSenders
	// set is the number of the route set with which the task judged, 0 if the app has no route sets. known has
	// the namespaces whose window has changed.
	set    int64
	known  []knownSince
	closed int64 // number of the switch for which the task is closed; 0 if it is not closed
	// shadows has the counts of the shadows (key rules that are tried out), still encoded.
	shadows string
	// sources has the sources of the namespaces that follow sources, in ascending order of namespace id.
	sources []sourceTimes

	// The following fields are needed only to compare a local store with the changelog.
	flags                   uint64
	epoch, generation       int64
	claimed, progressed     int64
	fences, ahead, progress string
}

// knownSince has the first seen time from which on the rows of a namespace are complete, and the event time
// before which its events are late.
type knownSince struct {
	namespaceID       uint8
	since, lateBefore int64
}

// An offsetRange is a range of offsets from from up to, but without, to.
type offsetRange struct{ from, to int64 }

// Flags of a checkpoint:
const flagCounts, flagBypassed, flagDeadLettered, flagFloor, flagIncomplete, flagFences, flagAhead, flagGeneration = 1, 2, 4, 8, 16, 32, 64, 128

// Further flags that a checkpoint of version 7 may have:
const flagClaims, flagSenders, flagKnown, flagClosed, flagShadows, flagTenants, flagSources = 256, 512, 1024, 2048, 4096, 8192, 16384

// openCheckpoint reads a whole checkpoint: version, 3, 4, 6 or 7 | flags, in version 7 a uvarint, after which the set
// follows | next, leader epoch, sequence, varints | rows ever written, uvarint | generation of the input, uvarint |
// number of bypassed namespaces 1, and for each: namespace id 1, offset, uvarint | number of dead-lettered ranges,
// uvarint, and for each: gap and length, uvarints | floor and rows below it, uvarints | number of fences, uvarint,
// and for each two uvarints and entries | entries | in version 7 the number of namespaces with a changed window 1,
// and for each: namespace id 1, two varints | length of the counts of keys, uvarint, and these | from version 4 on,
// in version 7 by a flag: when the newest lease began, and the last step of broker time, varints, and what progress
// records said | in version 6: the duplicates by sender | by a flag the counts of shadows | by a flag the accounts of
// tenants: number of routes, uvarint, and for each the length of its name 1, the name, and the length, uvarint, of
// its accounts and these | by a flag the sources | for each namespace that has one: namespace id | stream time,
// varint. Entries are their number, uvarint, and for each a namespace id and a varint.
func openCheckpoint(b []byte) (c checkpoint, err error) {
	if len(b) < 2 || b[0] < 3 || b[0] > 7 || b[0] == 5 {
		return c, fmt.Errorf("is not a checkpoint: %x", b)
	}
	version, f := b[0], fields{rest: b[1:]}
	flags := f.flagsOf(&c, version)
	c.flags, c.next, c.epoch, c.sequence = flags, f.signed(), f.signed(), f.signed()
	f.unsigned(math.MaxInt64)
	if flags&flagGeneration != 0 {
		c.generation = int64(f.unsigned(math.MaxInt64))
	}
	c.incomplete = flags&flagIncomplete != 0
	if flags&flagBypassed != 0 {
		c.bypassed = map[uint8]int64{}
		for n := f.byte(); n > 0 && !f.bad; n-- {
			namespaceID := f.byte()
			c.bypassed[namespaceID] = int64(f.unsigned(math.MaxInt64))
		}
	}
	if flags&flagDeadLettered != 0 {
		c.dead = f.ranges()
	}
	if flags&flagFloor != 0 {
		c.floor = int64(f.unsigned(math.MaxInt64))
		f.unsigned(math.MaxInt64)
	}
	rest := f.rest
	f.skipFences(flags)
	c.fences, rest = string(rest[:len(rest)-len(f.rest)]), f.rest
	if flags&flagAhead != 0 {
		f.entries()
	}
	c.ahead = string(rest[:len(rest)-len(f.rest)])
	if flags&flagKnown != 0 {
		c.known = f.known()
	}
	var ok bool
	if c.counts, ok = openCounts(f.countsOf(flags)); !ok {
		return c, fmt.Errorf("has no counts: %x", b)
	}
	if version >= 4 && version < 7 || flags&flagClaims != 0 {
		c.claimed, c.progressed, c.stepped = f.signed(), f.signed(), f.signed()
		rest = f.rest
		f.progress()
		c.progress = string(rest[:len(rest)-len(f.rest)])
	}
	if version == 6 || flags&flagSenders != 0 {
		c.senders = f.senders()
	}
	if flags&flagShadows != 0 {
		c.shadows = f.shadows()
	}
	f.skipTenants(flags)
	c.sources = f.sources(flags)
	for len(f.rest) > 0 {
		namespaceID := f.byte()
		c.times[namespaceID], c.seen[namespaceID] = f.signed(), true
	}
	if f.bad {
		return c, fmt.Errorf("is not a checkpoint: %x", b)
	}
	return c, nil
}

// skipTenants skips the accounts of tenants, which no check looks at.
func (f *fields) skipTenants(flags uint64) {
	if flags&flagTenants == 0 {
		return
	}
	for n := f.unsigned(1 << 10); n > 0 && !f.bad; n-- {
		f.bytes(int(f.byte()))
		f.bytes(int(f.unsigned(1 << 31)))
	}
}

// flagsOf reads the flags and, in version 7, the fields that follow them.
func (f *fields) flagsOf(c *checkpoint, version byte) uint64 {
	if version < 7 {
		return uint64(f.byte())
	}
	flags := f.unsigned(1 << 15)
	c.set = int64(f.unsigned(math.MaxInt64))
	if flags&flagClosed != 0 {
		c.closed = int64(f.unsigned(math.MaxInt64))
	}
	return flags
}

// known reads the namespaces whose window has changed.
func (f *fields) known() (all []knownSince) {
	for n := f.byte(); n > 0 && !f.bad; n-- {
		all = append(all, knownSince{namespaceID: f.byte(), since: f.signed(), lateBefore: f.signed()})
	}
	return all
}

// shadows reads the counts of shadows: their number 1, and for each: namespace id 1, begin
// varint, 5 counts uvarint, and three times a number of samples 1, each of 6 uvarints and a
// varint.
func (f *fields) shadows() string {
	rest := f.rest
	for n := f.byte(); n > 0 && !f.bad; n-- {
		f.byte()
		f.signed()
		for range 5 {
			f.unsigned(1 << 63)
		}
		for range 3 {
			for samples := f.byte(); samples > 0 && !f.bad; samples-- {
				for range 6 {
					f.unsigned(1 << 63)
				}
				f.signed()
			}
		}
	}
	return string(rest[:len(rest)-len(f.rest)])
}

// skipFences skips the fences, if the flags say that the checkpoint has fences.
func (f *fields) skipFences(flags uint64) {
	if flags&flagFences == 0 {
		return
	}
	for n := f.unsigned(17); n > 0 && !f.bad; n-- {
		f.unsigned(math.MaxInt64)
		f.unsigned(math.MaxInt64)
		f.entries()
	}
}

// countsOf returns the encoded counts of keys; nil if the flags say that the checkpoint has no counts.
func (f *fields) countsOf(flags uint64) []byte {
	if flags&flagCounts == 0 {
		return nil
	}
	return f.bytes(int(f.unsigned(1 << 31)))
}

// ranges reads the ranges of dead-lettered offsets.
func (f *fields) ranges() (all []offsetRange) {
	end := int64(0)
	for n := f.unsigned(1 << 16); n > 0 && !f.bad; n-- {
		from := end + int64(f.unsigned(1<<62))
		end = from + int64(f.unsigned(1<<62))
		all = append(all, offsetRange{from, end})
	}
	return all
}

// progress skips what a checkpoint of version 4 has about claims.
func (f *fields) progress() {
	for n := f.unsigned(1 << 16); n > 0 && !f.bad; n-- {
		f.unsigned(1 << 16)
		f.signed()
		for partitions := f.unsigned(1 << 20); partitions > 0 && !f.bad; partitions-- {
			f.unsigned(1 << 63)
		}
	}
	for n := f.unsigned(1 << 16); n > 0 && !f.bad; n-- {
		f.bytes(int(f.unsigned(1 << 16)))
		for entries := f.unsigned(17); entries > 0 && !f.bad; entries-- {
			f.signed()
			f.signed()
		}
	}
}
