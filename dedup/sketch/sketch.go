package sketch

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// NameMax is the longest name in bytes; Offer cuts off the rest of a longer name.
const NameMax = 64

// CapacityMax is the highest capacity.
const CapacityMax = 1 << 12

// A Sketch counts names. The zero Sketch has no counters; make one with New. A Sketch is for one goroutine.
type Sketch struct {
	capacity int
	// now includes the offers of the open transaction, committed does not. The two differ in their totals, and
	// in the slots whose numbers are in changed.
	now, committed state
	changed        []uint16
	heap           []uint16 // numbers of the used slots of now, a binary heap by count, lowest first
	index          []uint16 // open addressing by hash of the name: number of the slot + 1; 0 is free
}

// state has the counters of a Sketch. A counter keeps its number, the index in slots.
type state struct {
	slots []slot // the counters in use
	total uint64
	floor uint64 // how often a name without a counter may have come, while slots are free
}

// slot is a counter.
type slot struct {
	count, error uint64
	hash         uint64
	at           uint16 // place in heap
	changed      bool   // the slot is in Sketch.changed; never set in committed
	length       uint8
	name         [NameMax]byte
}

// seed makes the places of names in the index differ between processes, because senders choose the names and
// could choose names that collide. The counts do not depend on the seed.
var seed = maphash.MakeSeed()

// New returns an empty sketch with a capacity of 1 to CapacityMax counters. The sketch takes its memory, 200
// bytes for each counter, at the first offer.
func New(capacity int) *Sketch {
	return &Sketch{capacity: min(max(capacity, 1), CapacityMax)}
}

// allocate takes the memory of the sketch.
func (s *Sketch) allocate() {
	if s.index != nil {
		return
	}
	size := 4
	for size < 4*s.capacity {
		size *= 2
	}
	s.index = make([]uint16, size)
	s.heap = make([]uint16, 0, s.capacity)
	s.changed = make([]uint16, 0, s.capacity)
	s.now.slots = make([]slot, 0, s.capacity)
	s.committed.slots = make([]slot, 0, s.capacity)
}

// Offer counts a name in the open transaction.
func (s *Sketch) Offer(name []byte) {
	s.allocate()
	if len(name) > NameMax {
		name = name[:NameMax]
	}
	hash := maphash.Bytes(seed, name)
	s.now.total++
	place, found := s.find(hash, name)
	if found {
		number := s.index[place] - 1
		s.note(number)
		s.now.slots[number].count++
		s.sink(int(s.now.slots[number].at))
		return
	}
	if n := len(s.now.slots); n < s.capacity {
		s.add(name, hash, place)
		return
	}
	number := s.heap[0]
	s.note(number)
	one := &s.now.slots[number]
	s.unindex(number)
	one.error = one.count
	one.count++
	one.set(name, hash)
	s.enter(number)
	s.sink(0)
}

// add gives a free slot to a name. place is the place of the name in the index.
func (s *Sketch) add(name []byte, hash uint64, place int) {
	number := uint16(len(s.now.slots))
	s.now.slots = s.now.slots[:number+1]
	one := &s.now.slots[number]
	*one = slot{count: s.now.floor + 1, error: s.now.floor}
	one.set(name, hash)
	s.note(number)
	s.index[place] = number + 1
	s.heap = append(s.heap, number)
	one.at = number
	s.rise(int(number))
}

func (x *slot) set(name []byte, hash uint64) {
	x.hash, x.length = hash, uint8(copy(x.name[:], name))
}

func (x *slot) text() []byte { return x.name[:x.length] }

// note adds a slot to the changed slots.
func (s *Sketch) note(number uint16) {
	if one := &s.now.slots[number]; !one.changed {
		one.changed = true
		s.changed = append(s.changed, number)
	}
}

// find returns the place of a name in the index, or the free place that it would get.
func (s *Sketch) find(hash uint64, name []byte) (place int, found bool) {
	for place = s.home(hash); ; place = s.next(place) {
		number := s.index[place]
		if number == 0 {
			return place, false
		}
		if one := &s.now.slots[number-1]; one.hash == hash && bytes.Equal(one.text(), name) {
			return place, true
		}
	}
}

func (s *Sketch) home(hash uint64) int   { return int(hash & uint64(len(s.index)-1)) }
func (s *Sketch) next(place int) int     { return (place + 1) & (len(s.index) - 1) }
func (s *Sketch) count(place int) uint64 { return s.now.slots[s.heap[place]].count }

// enter adds a slot to the index.
func (s *Sketch) enter(number uint16) {
	place := s.home(s.now.slots[number].hash)
	for s.index[place] != 0 {
		place = s.next(place)
	}
	s.index[place] = number + 1
}

// unindex removes a slot from the index, and moves back those entries that are behind their home place only
// because the removed entry occupied a place before them.
func (s *Sketch) unindex(number uint16) {
	place := s.home(s.now.slots[number].hash)
	for s.index[place] != number+1 {
		place = s.next(place)
	}
	for at := s.next(place); s.index[at] != 0; at = s.next(at) {
		home := s.home(s.now.slots[s.index[at]-1].hash)
		// The entry at at may move to place, unless its home place lies after place and not after at.
		if between := (at - home) & (len(s.index) - 1); between >= (at-place)&(len(s.index)-1) {
			s.index[place] = s.index[at]
			place = at
		}
	}
	s.index[place] = 0
}

// sink moves the counter at a place of the heap down, after its count rose.
func (s *Sketch) sink(place int) {
	for {
		least := place
		for child := 2*place + 1; child <= 2*place+2 && child < len(s.heap); child++ {
			if s.count(child) < s.count(least) {
				least = child
			}
		}
		if least == place {
			return
		}
		s.swap(place, least)
		place = least
	}
}

// rise moves the counter at a place of the heap up, after it was added.
func (s *Sketch) rise(place int) {
	for place > 0 && s.count(place) < s.count((place-1)/2) {
		s.swap(place, (place-1)/2)
		place = (place - 1) / 2
	}
}

func (s *Sketch) swap(a, b int) {
	s.heap[a], s.heap[b] = s.heap[b], s.heap[a]
	s.now.slots[s.heap[a]].at, s.now.slots[s.heap[b]].at = uint16(a), uint16(b)
}

// Commit makes the open offers final.
func (s *Sketch) Commit() {
	s.committed.slots = s.committed.slots[:len(s.now.slots)]
	for _, number := range s.changed {
		s.now.slots[number].changed = false
		s.committed.slots[number] = s.now.slots[number]
	}
	s.committed.total, s.changed = s.now.total, s.changed[:0]
}

// Discard undoes the open offers.
func (s *Sketch) Discard() {
	if len(s.changed) == 0 {
		return
	}
	s.now.slots = s.now.slots[:len(s.committed.slots)]
	for _, number := range s.changed {
		if int(number) < len(s.now.slots) {
			s.now.slots[number] = s.committed.slots[number]
		}
	}
	s.now.total, s.changed = s.committed.total, s.changed[:0]
	s.reindex()
}

// reindex makes the heap and the index of the counters.
func (s *Sketch) reindex() {
	s.heap = s.heap[:0]
	clear(s.index)
	for number := range s.now.slots {
		s.heap = append(s.heap, uint16(number))
		s.now.slots[number].at = uint16(number)
		s.rise(number)
		s.enter(uint16(number))
	}
}

// IsChanged reports whether there are open offers.
func (s *Sketch) IsChanged() bool { return len(s.changed) > 0 }

// Total returns how many names were offered, without the open ones.
func (s *Sketch) Total() uint64 { return s.committed.total }

// Summary returns the counters, by their number, without the open offers.
func (s *Sketch) Summary() Summary { return s.summary(&s.committed) }

// Open returns the counters including the open offers.
func (s *Sketch) Open() Summary { return s.summary(&s.now) }

func (s *Sketch) summary(of *state) Summary {
	all := Summary{Capacity: s.capacity, Total: of.total, Floor: of.floor}
	if len(of.slots) == 0 {
		return all
	}
	size := 0
	for i := range of.slots {
		size += int(of.slots[i].length)
	}
	names := make([]byte, 0, size)
	for i := range of.slots {
		names = append(names, of.slots[i].text()...)
	}
	text := string(names) // one allocation for all names
	all.Counters = make([]Counter, len(of.slots))
	for i := range of.slots {
		one := &of.slots[i]
		all.Counters[i] = Counter{Name: text[:one.length], Count: one.count, Error: one.error}
		text = text[one.length:]
	}
	return all
}

// Load replaces the content of the sketch by a summary, as if its offers were committed. If the summary has
// more counters than the sketch can have, the lowest are lost.
func (s *Sketch) Load(from Summary) {
	s.allocate()
	counters := from.Counters
	s.now.total, s.now.floor = from.Total, from.Floor
	if from.Capacity != s.capacity {
		if s.now.floor = from.Missing(); len(counters) > s.capacity {
			counters = slices.Clone(counters)
			slices.SortStableFunc(counters, byCount)
			s.now.floor = max(s.now.floor, counters[s.capacity].Count)
			counters = counters[:s.capacity]
		}
	}
	s.now.slots, s.changed = s.now.slots[:0], s.changed[:0]
	for i := range counters {
		one := slot{count: counters[i].Count, error: counters[i].Error}
		one.set([]byte(counters[i].Name), maphash.String(seed, counters[i].Name))
		s.now.slots = append(s.now.slots, one)
	}
	s.reindex()
	s.committed.slots = append(s.committed.slots[:0], s.now.slots...)
	s.committed.total, s.committed.floor = s.now.total, s.now.floor
}

// byCount orders counters, the highest first.
func byCount(a, b Counter) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Error, b.Error), cmp.Compare(a.Name, b.Name))
}

// AppendChanges appends the open offers, for Summary.ApplyChanges:
//
//	names offered uvarint | changed counters uvarint | for each: twice its number, plus 1 for
//	another name, uvarint, what its count rose by uvarint, [length of the name 1, name, error
//	uvarint: with another name]
//
// It appends nothing if there are no open offers.
func (s *Sketch) AppendChanges(dst []byte) []byte {
	if len(s.changed) == 0 {
		return dst
	}
	dst = binary.AppendUvarint(dst, s.now.total-s.committed.total)
	dst = binary.AppendUvarint(dst, uint64(len(s.changed)))
	for _, number := range s.changed {
		one, before := &s.now.slots[number], &slot{}
		if int(number) < len(s.committed.slots) {
			before = &s.committed.slots[number]
		}
		head := 2 * uint64(number)
		if before.count == 0 || before.error != one.error || !bytes.Equal(before.text(), one.text()) {
			head++
		}
		dst = binary.AppendUvarint(dst, head)
		dst = binary.AppendUvarint(dst, one.count-before.count)
		if head%2 == 1 {
			dst = append(append(dst, one.length), one.text()...)
			dst = binary.AppendUvarint(dst, one.error)
		}
	}
	return dst
}
