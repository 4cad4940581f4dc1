package oracle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// leaseTimes has times of a transaction which, together with the timestamps of the records, decide about leases
// for the input offsets below next. began is when the transaction began: no executor received an event before
// that. up is when the task started. stepped is the time of the last step of broker time that the task knew.
// All times are ms of the broker's clock.
type leaseTimes struct{ next, began, up, stepped int64 }

// leases reads the times of each partition from the checkpoints of the partition. A task starts before its
// transactions begin.
func (c *Claims) leases(changelog []Record) (map[int32][]leaseTimes, error) {
	all, chains := map[int32][]leaseTimes{}, map[int32]chain{}
	for i := range changelog {
		r := &changelog[i]
		header := text(r, "oncebus-lease")
		number, ok := numberOf(r.Key)
		if !ok {
			continue
		}
		times, chain := leaseTimes{}, chains[r.Partition]
		err := chain.add(number, r.Value)
		chains[r.Partition] = chain
		if header == "" {
			continue
		}
		if err == nil {
			_, err = fmt.Sscanf(header, "%d %d", &times.began, &times.up)
		}
		if err == nil && times.up > times.began {
			err = errors.New("the task started after the transaction began")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: oncebus-lease is %q: %w", at(r), header, err)
		}
		times.next, times.stepped = chain.newest.next, chain.newest.stepped
		all[r.Partition] = append(all[r.Partition], times)
	}
	return all, nil
}

// timesOf returns the times of the transaction that judged this input offset.
func (f *claimFold) timesOf(offset int64) leaseTimes {
	i, _ := slices.BinarySearchFunc(f.leases, offset+1, func(at leaseTimes, next int64) int { return cmp.Compare(at.next, next) })
	if i == len(f.leases) {
		return leaseTimes{}
	}
	return f.leases[i]
}

// dispatchedAt returns the earliest time at which an executor could have received an event.
func (f *claimFold) dispatchedAt(r *Record) int64 { return max(r.Timestamp, f.timesOf(r.Offset).began) }

// leaseBegan returns the broker time at which the lease of a claim begins, as a duplicate must see it. If the
// claim is more than a minute later than its duplicate, the broker's clock was set back after the claim.
func (f *claimFold) leaseBegan(since int64, duplicate *Record) int64 {
	times, latest, stepped := f.timesOf(duplicate.Offset), f.dispatchedAt(duplicate)+60_000, f.stepped(duplicate)
	switch {
	case since > latest:
		return max(times.up, stepped)
	case f.ByClock:
		return max(since, times.up)
	default:
		return max(since, stepped)
	}
}

// stepped returns when broker time had last changed by a step, as far as it was known when the event was
// judged.
func (f *claimFold) stepped(event *Record) int64 {
	times := f.timesOf(event.Offset)
	if f.showsStep[times.stepped] {
		return f.known.stepped
	}
	return max(f.known.stepped, times.stepped) // the task noticed the step before the log showed it
}
