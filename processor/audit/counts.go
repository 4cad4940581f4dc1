package audit

import (
	"math"
	"sort"
	"time"
)

// Steps are the upper bounds of the delays by which copies are counted, in ms.
var Steps = milliseconds(
	time.Second, 10*time.Second, 30*time.Second, time.Minute, 2*time.Minute, 5*time.Minute, 10*time.Minute, 15*time.Minute, 30*time.Minute,
	time.Hour, 2*time.Hour, 3*time.Hour, 6*time.Hour, 12*time.Hour, day, 2*day, 3*day, 5*day, 7*day, 10*day, 14*day, 21*day, 30*day, 60*day, 90*day, 180*day, 365*day,
)

const day = 24 * time.Hour

func milliseconds(ds ...time.Duration) []int64 {
	list := make([]int64, len(ds))
	for i, d := range ds {
		list[i] = d.Milliseconds()
	}
	return list
}

// stepOf returns the index of the smallest step that is at least as long as the delay, or len(Steps).
func stepOf(delay int64) int {
	return sort.Search(len(Steps), func(i int) bool { return delay <= Steps[i] })
}

// count is a number of copies. squares is an upper bound of the sum, over all keys, of the square of the key's
// number of copies; from that sum follows how uncertain the number is if only a sample of the keys is counted.
// If the count has all copies, squares is that sum exactly.
type count struct{ n, squares uint64 }

// add adds a copy of a key that has had this many copies before.
func (c *count) add(earlier uint32) {
	c.n++
	c.squares += 2*uint64(earlier) + 1
}

func (c *count) merge(other count) {
	c.n += other.n
	c.squares += other.squares
}

// estimate returns an estimate of the count of all keys, from the count of the keys in a sample.
func (c count) estimate(level int) Estimate {
	scale := math.Ldexp(1, level)
	return Estimate{N: c.n << level, Error: math.Sqrt((1-1/scale)*float64(c.squares)) * scale}
}

// Estimate is a number with its standard error; the error of an exact number is 0.
type Estimate struct {
	N     uint64  `json:"n"`
	Error float64 `json:"standard_error"`
}

// share returns a share of the copies, and the standard error that it has if only a sample of the keys is
// counted.
func share(part, all count, level int) (of, deviation float64) {
	if all.n == 0 {
		return 0, 0
	}
	of = float64(part.n) / float64(all.n)
	rest := float64(all.squares - min(part.squares, all.squares))
	variance := (1 - math.Ldexp(1, -level)) * (float64(part.squares)*(1-of)*(1-of) + rest*of*of)
	return of, math.Sqrt(variance) / float64(all.n)
}

// counts has the copies of the keys of one level of the sample.
type counts struct {
	copies, otherPayload, otherPartition count
	delays                               []count // by step; the last has the delays above all steps
	partitions                           []count
	senders                              []count
	hours                                map[int64]*count
}

func newCounts() *counts {
	return &counts{delays: make([]count, len(Steps)+1), hours: map[int64]*count{}}
}

// at returns the i-th element of a list, and extends the list if it is too short.
func at[T any](list *[]T, i int32) *T {
	for int(i) >= len(*list) {
		*list = append(*list, *new(T))
	}
	return &(*list)[i]
}

// add adds a copy of the key whose first record is first.
func (c *counts) add(first *entry, e *Event, eventTime int64, hour int64) {
	earlier := first.copies
	c.copies.add(earlier)
	if e.Payload != first.payload {
		c.otherPayload.add(earlier)
	}
	if e.Partition != first.partition {
		c.otherPartition.add(earlier)
	}
	delay := eventTime - first.time
	c.delays[stepOf(max(delay, -delay))].add(earlier)
	at(&c.partitions, e.Partition).add(earlier)
	at(&c.senders, e.Sender).add(earlier)
	if c.hours[hour] == nil {
		c.hours[hour] = &count{}
	}
	c.hours[hour].add(earlier)
}

// merge adds the counts of another level of the sample.
func (c *counts) merge(other *counts) {
	c.copies.merge(other.copies)
	c.otherPayload.merge(other.otherPayload)
	c.otherPartition.merge(other.otherPartition)
	for _, list := range []struct{ to, from *[]count }{{&c.delays, &other.delays}, {&c.partitions, &other.partitions}, {&c.senders, &other.senders}} {
		for i := range *list.from {
			at(list.to, int32(i)).merge((*list.from)[i])
		}
	}
	for hour, n := range other.hours {
		if c.hours[hour] == nil {
			c.hours[hour] = &count{}
		}
		c.hours[hour].merge(*n)
	}
}
