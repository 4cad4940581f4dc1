package oracle

import "fmt"

// claimsProgress is what a task knows of the outcomes, by the progress records that it
// read. Times are ms of the broker's clock.
type claimsProgress struct {
	counted map[uint16]int64 // when the topic had no more partitions than in read
	read    map[uint16]map[int]int64
	last    int64 // when the last progress record was stored
	stepped int64 // when broker time may last have changed by a step; 0 for never
}

// followsStep reports whether broker time may have changed by a step between two progress
// records: it went back, or a minute passed without one.
func followsStep(before, now int64) bool {
	return before != 0 && (now > before+60_000 || now < before-1000)
}

// stepsOf returns by partition the times of the progress records that follow a step.
func stepsOf(repartition []Record) map[int32]map[int64]bool {
	steps, last := map[int32]map[int64]bool{}, map[int32]int64{}
	for i := range repartition {
		r := &repartition[i]
		if !isProgress(r) {
			continue
		}
		if followsStep(last[r.Partition], r.Timestamp) {
			if steps[r.Partition] == nil {
				steps[r.Partition] = map[int64]bool{}
			}
			steps[r.Partition][r.Timestamp] = true
		}
		last[r.Partition] = r.Timestamp
	}
	return steps
}

// isProgress reports whether a record of the repartition topic is a progress record.
func isProgress(r *Record) bool {
	return len(r.Headers) > 0 && r.Headers[0].Key == "oncebus-envelope" && len(r.Headers[0].Value) > 1 && r.Headers[0].Value[1]&flagProgress != 0
}

// progress reads a progress record: topics, uvarint, and for each: number, uvarint |
// counted at, varint | partitions, uvarint, and for each: 0 for unknown, or one more than
// the zigzag difference of the time to counted at. The executors follow. The broker
// stored it later than any time in it.
func (f *claimFold) progress(r *Record) error {
	if followsStep(f.known.last, r.Timestamp) {
		f.known = claimsProgress{stepped: r.Timestamp}
	}
	f.known.last = r.Timestamp
	if f.known.counted == nil {
		f.known.counted, f.known.read = map[uint16]int64{}, map[uint16]map[int]int64{}
	}
	b := fields{rest: r.Value}
	for n := b.unsigned(1 << 16); n > 0 && !b.bad; n-- {
		topic, counted := uint16(b.unsigned(1<<16)), b.signed()
		before, now := f.known.read[topic], map[int]int64{}
		partitions := int(b.unsigned(1 << 20))
		for p := range partitions {
			if z := b.unsigned(1 << 63); z > 0 {
				difference := int64((z-1)>>1) ^ -int64((z-1)&1)
				now[p] = min(counted+difference, r.Timestamp)
			} else if to, ok := before[p]; ok {
				now[p] = to
			}
			if b.bad {
				break
			}
		}
		if len(now) < partitions {
			f.known.counted[topic] = 0 // one of them is unread
		} else {
			f.known.counted[topic] = min(counted, r.Timestamp)
		}
		f.known.read[topic] = now
	}
	if b.bad {
		return fmt.Errorf("is not a progress record: %x", r.Value)
	}
	f.counts["progress records"]++
	return nil
}

// leaseIsOver reports whether the lease of a claim has ended for a duplicate: every
// outcome that was stored in its time has been read.
func (f *claimFold) leaseIsOver(k *claim, duplicate *Record) bool {
	began := f.leaseBegan(k.since, duplicate)
	if f.ByClock {
		return duplicate.Timestamp-began > f.Lease
	}
	known := false
	for topic, read := range f.known.read {
		if f.Outcomes != "" && topic != f.OutcomesNumber {
			continue // of another route
		}
		known = true
		to := f.known.counted[topic]
		for _, at := range read {
			to = min(to, at)
		}
		if to-began <= f.Lease {
			return false
		}
	}
	return known
}
