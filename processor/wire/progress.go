package wire

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"oncebus/dedup"
)

// Progress says how far inputs and outcomes have been read, and what the executors have committed. A
// progress record contains what one worker of the routing stage observed; a checkpoint contains what
// all of them did. All times are broker time in Unix milliseconds. A Progress is never changed.
type Progress struct {
	Outcomes  []OutcomesProgress // ascending by topic
	Executors []ExecutorProgress // ascending by route
	// Inputs is set only in progress records; a checkpoint has Sources instead.
	Inputs []InputProgress // ascending by topic
}

// InputProgress says how far a worker has read its partitions of an input topic.
type InputProgress struct {
	Topic uint16 // number in the manifest
	// Partitions is how many partitions the topic had at CountedAt, or has got since.
	Partitions int
	CountedAt  int64
	Read       []ReadProgress // ascending by partition
}

// ReadProgress says how far a partition of an input was read.
type ReadProgress struct {
	Partition int32
	// To is a broker time: every record that was stored in the partition before To is in the
	// repartition topic. dedup.NoStreamTime if not known.
	To     int64
	Fronts []Front
}

// Front is the highest event time of a namespace's events in a partition of an input, in ms. A worker
// knows only the records that it has routed itself.
type Front struct {
	NamespaceID uint8
	At          int64
}

// OutcomesProgress says how far the partitions of an outcomes topic were read.
type OutcomesProgress struct {
	Topic uint16 // number in the manifest
	// CountedAt is a broker time at which the topic had no more than len(ReadTo) partitions.
	CountedAt int64
	// ReadTo has a broker time for each partition: every outcome that was stored in the partition
	// before it is in the repartition topic. unknownTime if not known.
	ReadTo []int64
}

// unknownTime means that no time is known. It is encoded as 0.
const unknownTime = dedup.NoStreamTime

// NewReadProgress returns the progress of a partition about which nothing is known.
func NewReadProgress(partition int32) ReadProgress {
	return ReadProgress{Partition: partition, To: unknownTime}
}

// NewOutcomesProgress returns the progress of a topic with that many partitions about which nothing is
// known.
func NewOutcomesProgress(topic uint16, countedAt int64, partitions int) OutcomesProgress {
	return OutcomesProgress{topic, countedAt, slices.Repeat([]int64{unknownTime}, partitions)}
}

// ExecutorProgress says how far the executor of a route has committed its input, our output topic.
type ExecutorProgress struct {
	Route  string
	Passed []Passed // ascending
}

// Passed says that the executor had committed every event that was dispatched before To when the broker
// time was At.
type Passed struct{ To, At int64 }

// passedMax is the largest number of Passed entries of a route. Entries are at least a lease divided by
// passedStep apart. So a lease may end an eighth of its length later than necessary, which is harmless.
const passedMax, passedStep = 16, 8

// maxPartitions bounds the number of partitions that a decoded record can claim.
const maxPartitions = 1 << 20

// OutcomesReadTo returns the broker time before which every outcome in a topic has been read;
// dedup.NoStreamTime if unknown.
func (p *Progress) OutcomesReadTo(topic uint16) int64 {
	at, ok := slices.BinarySearchFunc(p.Outcomes, topic, func(o OutcomesProgress, topic uint16) int { return cmp.Compare(o.Topic, topic) })
	if !ok {
		return dedup.NoStreamTime
	}
	o := &p.Outcomes[at]
	return min(o.CountedAt, slices.Min(o.ReadTo))
}

// ExecutorPassedTo returns a time To: at least a lease before now, the route's executor had committed every
// event that was dispatched before To; dedup.NoStreamTime if unknown. What the executor committed before
// steppedAt counts as committed at steppedAt.
func (p *Progress) ExecutorPassedTo(route string, lease, steppedAt, now int64) int64 {
	to := dedup.NoStreamTime
	for _, passed := range p.executor(route) {
		if max(passed.At, steppedAt)+lease < now {
			to = passed.To
		}
	}
	return to
}

func (p *Progress) executor(route string) []Passed {
	for i := range p.Executors {
		if p.Executors[i].Route == route {
			return p.Executors[i].Passed
		}
	}
	return nil
}

// Merge returns p with the progress of a record that the broker stored at broker time stored:
//
//   - A time in the record that is later than stored is lowered to stored: the worker that wrote the record
//     estimates broker time, and its estimate may be ahead.
//   - A time that is later than stored by more than aheadMax is ignored: the worker wrote it before broker
//     time was set back.
//   - What the record does not know stays as it is in p.
//   - A time in the record replaces the time in p even if it is earlier, because broker time may have
//     been set back.
//
// leaseOf returns the lease of a route, in ms, and the number of the topic of its outcomes.
func (p *Progress) Merge(record *Progress, stored int64, leaseOf func(route string) (lease int64, outcomes uint16)) Progress {
	merged := Progress{Outcomes: slices.Clone(p.Outcomes), Executors: slices.Clone(p.Executors)}
	for i := range record.Outcomes {
		merged.mergeOutcomes(&record.Outcomes[i], stored)
	}
	for _, e := range record.Executors {
		lease, outcomes := leaseOf(e.Route)
		for _, passed := range e.Passed {
			if passed.To > stored+aheadMax {
				continue
			}
			merged.mergeExecutor(e.Route, Passed{min(passed.To, stored), stored}, lease, merged.OutcomesReadTo(outcomes))
		}
	}
	return merged
}

// aheadMax is how far, in ms, a worker's estimate of broker time may be ahead. A larger difference
// counts as a step in app.BrokerClock, too.
const aheadMax = 10_000

func (p *Progress) mergeOutcomes(record *OutcomesProgress, stored int64) {
	if record.CountedAt > stored+aheadMax {
		return
	}
	at, ok := slices.BinarySearchFunc(p.Outcomes, record.Topic, func(o OutcomesProgress, topic uint16) int { return cmp.Compare(o.Topic, topic) })
	if !ok {
		p.Outcomes = slices.Insert(p.Outcomes, at, OutcomesProgress{Topic: record.Topic})
	}
	known := &p.Outcomes[at]
	merged := NewOutcomesProgress(record.Topic, min(record.CountedAt, stored), max(len(record.ReadTo), len(known.ReadTo)))
	if len(record.ReadTo) < len(known.ReadTo) {
		merged.CountedAt = known.CountedAt // topics lose no partitions, so this record has an old answer of a broker
	}
	copy(merged.ReadTo, known.ReadTo)
	for partition, to := range record.ReadTo {
		if to != unknownTime && to <= stored+aheadMax {
			merged.ReadTo[partition] = min(to, stored)
		}
	}
	p.Outcomes[at] = merged
}

// mergeExecutor adds an entry, unless the last entry says as much or is hardly older. Of the entries
// whose lease is over at now, it keeps only the newest.
func (p *Progress) mergeExecutor(route string, passed Passed, lease, now int64) {
	at, ok := slices.BinarySearchFunc(p.Executors, route, func(e ExecutorProgress, route string) int { return cmp.Compare(e.Route, route) })
	if !ok {
		p.Executors = slices.Insert(p.Executors, at, ExecutorProgress{Route: route})
	}
	entries := p.Executors[at].Passed
	if n := len(entries); n > 0 {
		last := entries[n-1]
		switch {
		case last.At > passed.At: // broker time was set back
			entries = nil
		case passed.To <= last.To, passed.At-last.At < lease/passedStep:
			return
		}
	}
	first := 0
	for first+1 < len(entries) && entries[first+1].At+lease < now {
		first++
	}
	entries = append(slices.Clone(entries[first:]), passed)
	if len(entries) > passedMax {
		entries = dropNearest(entries, func(p Passed) int64 { return p.At })
	}
	p.Executors[at] = ExecutorProgress{route, entries}
}

// dropNearest drops the entry whose neighbours are nearest to each other in time, so that the remaining
// entries stay spread over the whole time.
func dropNearest[T any](entries []T, at func(T) int64) []T {
	nearest := 1
	for i := 2; i < len(entries)-1; i++ {
		if at(entries[i+1])-at(entries[i-1]) < at(entries[nearest+1])-at(entries[nearest-1]) {
			nearest = i
		}
	}
	return slices.Delete(entries, nearest, nearest+1)
}

// IsEmpty reports whether p says nothing about outcomes and executors.
func (p *Progress) IsEmpty() bool { return len(p.Outcomes) == 0 && len(p.Executors) == 0 }

// AppendRecord appends the value of a progress record: the encoding of Append, and, if p has inputs,
//
//	inputs uvarint | for each: topic uvarint, partitions uvarint, counted at varint, entries uvarint,
//	for each: partition uvarint, 0 or the time to which it was read plus 1 uvarint,
//	fronts uvarint, for each: namespace id 1, time varint
func (p *Progress) AppendRecord(dst []byte) []byte {
	dst = p.Append(dst)
	if len(p.Inputs) == 0 {
		return dst
	}
	dst = binary.AppendUvarint(dst, uint64(len(p.Inputs)))
	for _, in := range p.Inputs {
		dst = binary.AppendUvarint(dst, uint64(in.Topic))
		dst = binary.AppendUvarint(dst, uint64(in.Partitions))
		dst = binary.AppendVarint(dst, in.CountedAt)
		dst = binary.AppendUvarint(dst, uint64(len(in.Read)))
		for _, r := range in.Read {
			dst = binary.AppendUvarint(dst, uint64(r.Partition))
			dst = binary.AppendUvarint(dst, uint64(max(r.To, -1)+1)) // an unknown time is less than -1
			dst = binary.AppendUvarint(dst, uint64(len(r.Fronts)))
			for _, f := range r.Fronts {
				dst = binary.AppendVarint(append(dst, f.NamespaceID), f.At)
			}
		}
	}
	return dst
}

// Append appends the encoding of p:
//
//	topics uvarint | for each: topic uvarint, counted at varint, partitions uvarint,
//	for each: 0, or the zigzag difference to counted at plus 1, uvarint |
//	routes uvarint | for each: length of the route uvarint, route, entries uvarint,
//	for each: to varint, at varint
func (p *Progress) Append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(p.Outcomes)))
	for _, o := range p.Outcomes {
		dst = binary.AppendUvarint(dst, uint64(o.Topic))
		dst = binary.AppendVarint(dst, o.CountedAt)
		dst = binary.AppendUvarint(dst, uint64(len(o.ReadTo)))
		for _, to := range o.ReadTo {
			if to == unknownTime {
				dst = append(dst, 0)
				continue
			}
			difference := to - o.CountedAt
			dst = binary.AppendUvarint(dst, uint64(difference<<1^difference>>63)+1)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(p.Executors)))
	for _, e := range p.Executors {
		dst = append(binary.AppendUvarint(dst, uint64(len(e.Route))), e.Route...)
		dst = binary.AppendUvarint(dst, uint64(len(e.Passed)))
		for _, passed := range e.Passed {
			dst = binary.AppendVarint(binary.AppendVarint(dst, passed.To), passed.At)
		}
	}
	return dst
}

var errProgress = errors.New("unreadable progress record")

// DecodeProgress decodes the value of a progress record.
func DecodeProgress(b []byte) (Progress, error) {
	c := dedup.NewCursor(b)
	p := decodeProgress(&c)
	if c.Left() > 0 {
		for n := c.Uvarint(math.MaxUint16); n > 0 && !c.Bad(); n-- {
			p.Inputs = append(p.Inputs, decodeInput(&c))
		}
		if len(p.Inputs) == 0 {
			c.Fail()
		}
	}
	if !c.Done() {
		return Progress{}, fmt.Errorf("%w: cut short, too long or out of range in %d bytes", errProgress, len(b))
	}
	return p, nil
}

func decodeProgress(c *dedup.Cursor) (p Progress) {
	for n := c.Uvarint(math.MaxUint16); n > 0 && !c.Bad(); n-- {
		o := decodeOutcomes(c)
		if last := len(p.Outcomes) - 1; last >= 0 && p.Outcomes[last].Topic >= o.Topic {
			c.Fail()
		}
		p.Outcomes = append(p.Outcomes, o)
	}
	for n := c.Uvarint(math.MaxUint16); n > 0 && !c.Bad(); n-- {
		e := ExecutorProgress{Route: string(c.Bytes(int(c.Uvarint(uint64(c.Left())))))}
		for passed := c.Uvarint(passedMax); passed > 0 && !c.Bad(); passed-- {
			e.Passed = append(e.Passed, Passed{c.Varint(), c.Varint()})
		}
		if last := len(p.Executors) - 1; last >= 0 && p.Executors[last].Route >= e.Route {
			c.Fail()
		}
		p.Executors = append(p.Executors, e)
	}
	return p
}

func decodeInput(c *dedup.Cursor) InputProgress {
	in := InputProgress{Topic: uint16(c.Uvarint(math.MaxUint16)), Partitions: int(c.Uvarint(maxPartitions)), CountedAt: c.Varint()}
	for n := c.Uvarint(uint64(c.Left())); n > 0 && !c.Bad(); n-- {
		r := ReadProgress{Partition: int32(c.Uvarint(uint64(in.Partitions))), To: unknownTime}
		if to := c.Uvarint(math.MaxInt64); to > 0 {
			r.To = int64(to) - 1
		}
		if int(r.Partition) >= in.Partitions {
			c.Fail()
		}
		for fronts := c.Uvarint(256); fronts > 0 && !c.Bad(); fronts-- {
			r.Fronts = append(r.Fronts, Front{c.Byte(), c.Varint()})
		}
		in.Read = append(in.Read, r)
	}
	return in
}

func decodeOutcomes(c *dedup.Cursor) OutcomesProgress {
	o := OutcomesProgress{Topic: uint16(c.Uvarint(math.MaxUint16)), CountedAt: c.Varint()}
	partitions := c.Uvarint(min(maxPartitions, uint64(c.Left())))
	if partitions == 0 {
		c.Fail()
	}
	for ; partitions > 0 && !c.Bad(); partitions-- {
		to := unknownTime
		if z := c.Uvarint(math.MaxUint64); z > 0 {
			z--
			to = o.CountedAt + (int64(z>>1) ^ -int64(z&1))
		}
		o.ReadTo = append(o.ReadTo, to)
	}
	return o
}
