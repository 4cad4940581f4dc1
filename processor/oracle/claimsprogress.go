package oracle

import "math"

// claimsProgress is what a task knows about the outcomes from the progress records that it has read. Times are
// ms of the broker's clock.
type claimsProgress struct {
	counted    map[uint16]int64 // by topic: the time at which the topic had no more partitions than partitions says
	partitions map[uint16]int
	read       map[uint16]map[int]int64 // without the partitions that are unread
	passed     []passed                 // by the executor's consumer group, ascending
	last       int64                    // when the last progress record was stored
	stepped    int64                    // when broker time may last have changed by a step; 0 for never
}

// followsStep reports whether broker time may have changed by a step between two progress records: time went
// back, or more than a minute passed without a progress record.
func followsStep(before, now int64) bool {
	return before != 0 && (now > before+60_000 || now < before-1000)
}

// stepsOf returns, by partition, the times of the progress records that follow a step. Progress records that
// are only about inputs are ignored.
func stepsOf(repartition []*Record) map[int32]map[int64]bool {
	steps, last := map[int32]map[int64]bool{}, map[int32]int64{}
	for _, r := range repartition {
		if !isProgress(r) {
			continue
		}
		if p, err := openProgress(r.Value); err != nil || p.ofInputs() {
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

// progress reads a progress record: topics, uvarint, and for each: number, uvarint | counted at, varint |
// partitions, uvarint, and for each: 0 if unknown, or one more than the zigzag difference of the time to
// counted at. The executors follow, and the inputs. No time in the record may count as later than the time at
// which the broker stored the record.
func (f *claimFold) progress(r *Record) error {
	p, err := openProgress(r.Value)
	if err != nil {
		return err
	}
	if f.sources != nil {
		f.sources.progress(p.inputs, r.Timestamp, f.Skew, f.GoesOn)
		f.last, f.seen = f.sources.follow(r.Timestamp, f.last, f.seen)
		f.answerEvicted()
	}
	if p.ofInputs() {
		return nil
	}
	if followsStep(f.known.last, r.Timestamp) {
		f.known = claimsProgress{stepped: r.Timestamp}
	}
	f.known.last = r.Timestamp
	if f.known.counted == nil {
		f.known.counted, f.known.partitions, f.known.read = map[uint16]int64{}, map[uint16]int{}, map[uint16]map[int]int64{}
	}
	b := fields{rest: r.Value}
	for n := b.unsigned(1 << 16); n > 0 && !b.bad; n-- {
		f.known.readOutcomes(&b, r.Timestamp)
	}
	f.readExecutors(&b, r.Timestamp)
	f.counts["progress records"]++
	for _, k := range f.keys {
		if k.status == "in_progress" && k.startID == "" && f.leaseIsOver(k, r) {
			f.answerWaiting(k, "answered at the lease's end")
		}
	}
	return nil
}

// aheadMax is how far, in ms, the broker time of a worker may be ahead. A time that is further ahead was
// written before the broker's clock was set back.
const aheadMax = 10_000

// readOutcomes reads what a progress record says about a topic of outcomes. The record was stored at the time
// stored.
func (p *claimsProgress) readOutcomes(b *fields, stored int64) {
	topic, counted := uint16(b.unsigned(1<<16)), b.signed()
	times := make([]uint64, b.unsigned(1<<20))
	for partition := range times {
		times[partition] = b.unsigned(1 << 63)
	}
	if b.bad || counted > stored+aheadMax {
		return
	}
	if p.read[topic] == nil {
		p.read[topic] = map[int]int64{}
	}
	for partition, z := range times {
		at := counted + (int64((z-1)>>1) ^ -int64((z-1)&1))
		if z > 0 && at <= stored+aheadMax {
			p.read[topic][partition] = min(at, stored)
		}
	}
	if len(times) >= p.partitions[topic] { // otherwise the broker that gave the number of partitions had outdated metadata
		p.partitions[topic], p.counted[topic] = len(times), min(counted, stored)
	}
}

// answerEvicted answers the requests that wait for claims which stream time now evicts.
func (f *claimFold) answerEvicted() {
	for _, k := range f.keys {
		if k.status != "freed" && !f.isRetained(k) {
			f.answerWaiting(k, "answered at the eviction")
		}
	}
}

// answerWaiting answers the requests that wait for a claim without an outcome.
func (f *claimFold) answerWaiting(k *claim, count string) {
	for _, q := range k.requesters {
		f.counts[count]++
		f.reply(q.key, "in_progress", k.status, k.attempt, content(nil, nil))
	}
	k.requesters = nil
}

// leaseIsOver reports whether the lease of a claim has ended when a duplicate is judged. The lease has ended
// only if every outcome that was stored during the lease has been read.
func (f *claimFold) leaseIsOver(k *claim, duplicate *Record) bool {
	began := f.leaseBegan(k.since, duplicate)
	if f.ByClock {
		return duplicate.Timestamp-began > f.Lease
	}
	readTo := f.readTo()
	if readTo == math.MinInt64 || readTo-began <= f.Lease {
		return false
	}
	return !f.Group || f.executorHad(began, f.stepped(duplicate), readTo)
}
