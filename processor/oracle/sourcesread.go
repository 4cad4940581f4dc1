package oracle

import (
	"bytes"
	"fmt"
	"slices"
)

// A progress is the content of a progress record that is about the inputs.
type progress struct {
	inputs []inputProgress
	// silent means that the record has nothing about outcomes and executors.
	silent bool
}

// An inputProgress says up to which time a worker has read its partitions of an input topic. At broker time
// counted, in ms, the topic had partitions partitions.
type inputProgress struct {
	topic      uint16
	partitions int
	counted    int64
	read       []readProgress
}

// A readProgress has a broker time, in ms: every record that was stored in the partition before that time is in
// the repartition topic. The time is never if no such time is known.
type readProgress struct {
	partition int
	to        int64
	fronts    []frontTime
}

// A frontTime is the highest event time of a namespace in a partition, in ms.
type frontTime struct {
	namespaceID uint8
	at          int64
}

// openProgress reads the value of a progress record: what a checkpoint has about claims | optionally the number
// of inputs, uvarint, and for each: topic, partitions, uvarints, when the topic had them, varint, number of
// entries, uvarint, and for each: partition, 0 or 1 plus the time up to which the partition was read, number of
// fronts, uvarints, and for each: namespace id 1, time, varint.
func openProgress(b []byte) (p progress, err error) {
	f := fields{rest: b}
	f.progress()
	p.silent = bytes.Equal(b[:len(b)-len(f.rest)], []byte{0, 0})
	if len(f.rest) > 0 {
		p.inputs = f.inputs()
		f.bad = f.bad || len(p.inputs) == 0
	}
	if f.bad || len(f.rest) > 0 {
		return progress{}, fmt.Errorf("is not a progress record: %x", b)
	}
	return p, nil
}

// ofInputs reports whether the record is only about inputs.
func (p *progress) ofInputs() bool { return p.silent && len(p.inputs) > 0 }

func (f *fields) inputs() (all []inputProgress) {
	for n := f.unsigned(1 << 16); n > 0 && !f.bad; n-- {
		in := inputProgress{topic: uint16(f.unsigned(1 << 16)), partitions: int(f.unsigned(partitionsMax + 1)), counted: f.signed()}
		for entries := f.unsigned(partitionsMax + 1); entries > 0 && !f.bad; entries-- {
			in.read = append(in.read, f.read(uint64(in.partitions)))
		}
		all = append(all, in)
	}
	return all
}

func (f *fields) read(partitions uint64) readProgress {
	r := readProgress{partition: int(f.unsigned(partitions)), to: never}
	if to := f.unsigned(1 << 63); to > 0 {
		r.to = int64(to) - 1
	}
	for n := f.unsigned(257); n > 0 && !f.bad; n-- {
		r.fronts = append(r.fronts, frontTime{f.byte(), f.signed()})
	}
	return r
}

// sources reads the sources in a checkpoint, if the flags say that the checkpoint has sources: number of
// namespaces, uvarint, and for each: namespace id 1, highest event time, varint, highest event time by HTTP,
// samples | number of topics, uvarint, and for each: number, partitions, uvarints, when the topic had them,
// varint, and for each partition: front, bound.
func (f *fields) sources(flags uint64) (all []sourceTimes) {
	if flags&flagSources == 0 {
		return nil
	}
	for n := f.unsigned(257); n > 0 && !f.bad; n-- {
		s := sourceTimes{namespaceID: f.byte(), highest: f.signed()}
		s.ingress = s.readTime(f)
		s.readSamples(f)
		for topics := f.unsigned(1 << 16); topics > 0 && !f.bad; topics-- {
			t := sourceTopic{number: uint16(f.unsigned(1 << 16))}
			n := f.unsigned(partitionsMax + 1)
			for t.counted = f.signed(); n > 0 && !f.bad; n-- {
				t.partitions = append(t.partitions, s.readReached(f))
			}
			f.bad = f.bad || len(s.topics) > 0 && s.topics[len(s.topics)-1].number >= t.number
			s.topics = append(s.topics, t)
		}
		f.bad = f.bad || len(all) > 0 && all[len(all)-1].namespaceID >= s.namespaceID
		all = append(all, s)
	}
	return all
}

// readSamples reads samples: 0 if the samples are unchanged, or 1 plus their number, uvarint, and for each:
// broker time as the difference from the previous sample, varint, highest event time.
func (s *sourceTimes) readSamples(f *fields) {
	n := f.unsigned(samplesMax + 2)
	if n == 0 {
		return
	}
	s.samples = nil
	at := int64(0)
	for n--; n > 0 && !f.bad; n-- {
		at += f.signed()
		s.samples = append(s.samples, timeSample{at, s.readTime(f)})
	}
}

// readTime reads a time: 0 for never, otherwise 1 plus how far the time is behind the highest, uvarint.
func (s *sourceTimes) readTime(f *fields) int64 {
	behind := f.unsigned(1 << 63)
	if behind == 0 {
		return never
	}
	return s.highest - int64(behind-1)
}

func (s *sourceTimes) readReached(f *fields) reached {
	front := s.readTime(f)
	return reached{front, s.readTime(f)}
}

// changeSources reads changes: the number of namespaces, uvarint, and for each: its index, uvarint, how much
// the highest event time rose, varint, the highest event time by HTTP, 0 if it is unchanged, samples | for each
// topic: how much later it was counted, varint | number of changed sources, uvarint, and for each: its index
// after the previous one, uvarint, front, bound, or 0 for each that is unchanged. The indexes of the sources
// run through all topics. changeSources returns the sources after the changes.
func changeSources(before []sourceTimes, changes []byte) (all []sourceTimes, ok bool) {
	f := fields{rest: changes}
	all = slices.Clone(before)
	for n := f.unsigned(257); n > 0 && !f.bad; n-- {
		place := f.unsigned(uint64(len(all)))
		if f.bad {
			return nil, false
		}
		s := all[place].clone()
		s.highest += f.signed()
		s.ingress = max(s.ingress, s.readTime(&f))
		s.readSamples(&f)
		for i := range s.topics {
			s.topics[i].counted += f.signed()
		}
		var lanes []*reached
		for i := range s.topics {
			for partition := range s.topics[i].partitions {
				lanes = append(lanes, &s.topics[i].partitions[partition])
			}
		}
		lane := uint64(0)
		for sources := f.unsigned(uint64(len(lanes)) + 1); sources > 0 && !f.bad; sources-- {
			if lane += f.unsigned(1 << 31); lane >= uint64(len(lanes)) {
				return nil, false
			}
			changed := s.readReached(&f)
			lanes[lane].front, lanes[lane].bound = max(lanes[lane].front, changed.front), max(lanes[lane].bound, changed.bound)
		}
		all[place] = s
	}
	return all, !f.bad && len(f.rest) == 0
}

// clone returns a copy that shares nothing that may change.
func (s *sourceTimes) clone() sourceTimes {
	c := *s
	c.topics = slices.Clone(s.topics)
	for i := range c.topics {
		c.topics[i].partitions = slices.Clone(c.topics[i].partitions)
	}
	return c
}
