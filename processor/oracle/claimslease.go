package oracle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// leaseTimes are the times that decide on leases up to an input
// offset, besides those of the records themselves: when their transaction began,
// before which no executor received an event, and when the task began to judge. ms
// of the broker's clock.
type leaseTimes struct{ next, began, up int64 }

// leases reads the times of each partition from its checkpoints. A task
// cannot begin to judge after its transaction began.
func (c *Claims) leases(changelog []Record) (map[int32][]leaseTimes, error) {
	all := map[int32][]leaseTimes{}
	for i := range changelog {
		r := &changelog[i]
		said := text(r, "oncebus-lease")
		if string(r.Key) != "checkpoint" || said == "" {
			continue
		}
		times := leaseTimes{}
		cp, err := openCheckpoint(r.Value)
		if err == nil {
			_, err = fmt.Sscanf(said, "%d %d", &times.began, &times.up)
		}
		if err == nil && times.up > times.began {
			err = errors.New("the task began to judge after the transaction did")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: leases run by %q: %w", at(r), said, err)
		}
		times.next = cp.next
		all[r.Partition] = append(all[r.Partition], times)
	}
	return all, nil
}

// timesOf returns the times of the transaction that judged an input offset.
func (f *claimFold) timesOf(offset int64) leaseTimes {
	i, _ := slices.BinarySearchFunc(f.leases, offset+1, func(at leaseTimes, next int64) int { return cmp.Compare(at.next, next) })
	if i == len(f.leases) {
		return leaseTimes{}
	}
	return f.leases[i]
}

// handedOut is the earliest time at which an executor could have an event.
func (f *claimFold) handedOut(r *Record) int64 { return max(r.Timestamp, f.timesOf(r.Offset).began) }
