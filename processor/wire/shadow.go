package wire

import (
	"encoding/binary"
	"math"
	"slices"

	"oncebus/dedup"
)

// ShadowVerdict is what the route of a shadow, which judges by the rule in force, decided on an event.
type ShadowVerdict uint8

// Bits of a ShadowVerdict.
const (
	ShadowEmitted   ShadowVerdict = 1 << iota // the event was emitted; else it was a duplicate
	ShadowClamped                             // the event's time was clamped, so it moves no stream time
	ShadowSent                                // always set
	shadowBitsKnown = ShadowSent<<1 - 1
)

// ShadowCounts are the counts of a shadow in one task. The task of the event counts events without a
// new key; the task of the new key counts all others.
type ShadowCounts struct {
	NamespaceID uint8
	// Begin is the latest event time, in ms, of the route's namespace when the task began to send to
	// the shadow. The counts include every event after it. dedup.NoStreamTime for none.
	Begin int64
	Fates [dedup.ShadowFates]uint64
	// Samples has the newest events for each fate of SampledFates, at most ShadowSamples for each, the
	// newest last.
	Samples [len(SampledFates)][]ShadowSample
}

// SampledFates are the fates for which a task keeps samples.
var SampledFates = [...]dedup.ShadowFate{dedup.ShadowWouldDrop, dedup.ShadowWouldEmit, dedup.ShadowNoKey}

// ShadowSamples is how many samples a task keeps for each fate, some 30 bytes each. A transaction that
// counts an event writes all samples again.
const ShadowSamples = 8

// ShadowSample is one event. At is its position. First is set if the event is a duplicate by the new
// rule: it is the position of the emitted event that has the same new key. Both are positions as in
// rows.
type ShadowSample struct {
	At, First dedup.Position
	Time      int64 // event time, ms
}

// Count counts an event and keeps its sample. No other checkpoint may share c.
func (c *ShadowCounts) Count(fate dedup.ShadowFate, sample ShadowSample) {
	c.Fates[fate]++
	if i := slices.Index(SampledFates[:], fate); i >= 0 {
		kept := c.Samples[i]
		c.Samples[i] = append(slices.Clone(kept[max(0, len(kept)+1-ShadowSamples):]), sample)
	}
}

// ShadowOf returns the counts of a shadow's namespace; nil for none.
func (c *Checkpoint) ShadowOf(namespaceID uint8) *ShadowCounts {
	for i := range c.Shadows {
		if c.Shadows[i].NamespaceID == namespaceID {
			return &c.Shadows[i]
		}
	}
	return nil
}

// appendShadows appends the number of shadows 1, and for each shadow: namespace id 1, begin varint, its
// counts uvarint, and for each sampled fate: number of samples 1, and for each sample: At and First,
// each as topic, partition and offset uvarints, and its time varint.
func appendShadows(dst []byte, all []ShadowCounts) []byte {
	dst = append(dst, byte(len(all)))
	for i := range all {
		c := &all[i]
		dst = binary.AppendVarint(append(dst, c.NamespaceID), c.Begin)
		for _, n := range c.Fates {
			dst = binary.AppendUvarint(dst, n)
		}
		for _, samples := range c.Samples {
			dst = append(dst, byte(len(samples)))
			for _, s := range samples {
				for _, at := range []dedup.Position{s.At, s.First} {
					dst = binary.AppendUvarint(dst, uint64(at.Topic))
					dst = binary.AppendUvarint(dst, uint64(uint32(at.Partition)))
					dst = binary.AppendUvarint(dst, uint64(at.Offset))
				}
				dst = binary.AppendVarint(dst, s.Time)
			}
		}
	}
	return dst
}

// decodeShadows reads what appendShadows wrote.
func decodeShadows(r *dedup.Cursor) (all []ShadowCounts) {
	n := r.Byte()
	if n == 0 {
		r.Fail()
	}
	for ; n > 0 && !r.Bad(); n-- {
		c := ShadowCounts{NamespaceID: r.Byte(), Begin: r.Varint()}
		for i := range c.Fates {
			c.Fates[i] = r.Uvarint(math.MaxInt64)
		}
		for i := range c.Samples {
			samples := r.Byte()
			if samples > ShadowSamples {
				r.Fail()
			}
			for ; samples > 0 && !r.Bad(); samples-- {
				c.Samples[i] = append(c.Samples[i], ShadowSample{At: decodePosition(r), First: decodePosition(r), Time: r.Varint()})
			}
		}
		all = append(all, c)
	}
	return all
}

func decodePosition(r *dedup.Cursor) dedup.Position {
	return dedup.Position{Topic: uint16(r.Uvarint(math.MaxUint16)), Partition: int32(r.Uvarint(math.MaxInt32)), Offset: int64(r.Uvarint(math.MaxInt64))}
}
