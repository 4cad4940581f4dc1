package app

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/dedup/sketch"
)

// StatusDuplicates and StatusDelays are statuses that no row has. Under them Counts counts the duplicates of
// each route, by day and by delay. In a checkpoint these counts are key counters with buckets of one ms, whose
// "first seen times" are numbers: the bits of the route (routeBits) plus the day or the delay. So a build that
// does not know these statuses carries them like the counts of an unknown namespace.
const (
	StatusDuplicates dedup.Status = 0x41
	StatusDelays     dedup.Status = 0x42
)

// ofRows reports whether rows have a status.
func ofRows(status dedup.Status) bool { return status < StatusWaiting }

// ofDuplicates reports whether a status is StatusDuplicates or StatusDelays.
func ofDuplicates(status dedup.Status) bool {
	return status == StatusDuplicates || status == StatusDelays
}

// daysKept is for how many days the number of a day's duplicates is kept.
const daysKept = 35

// DelayBounds are the upper bounds, in seconds, of the delays that are counted apart. The delay is the time
// from the first event to its duplicate, in event time. Longer delays than the last bound are counted together.
var DelayBounds = [...]float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 300, 900, 3600, 21600, 86400, 604800}

// DelayOf returns the index of the first bound that a delay in ms does not exceed, or len(DelayBounds). A
// duplicate whose event time is before the first event's counts as a duplicate without delay.
func DelayOf(ms int64) int {
	seconds := float64(ms) / 1000
	for i, bound := range DelayBounds {
		if seconds <= bound {
			return i
		}
	}
	return len(DelayBounds)
}

const (
	msPerDay = 24 * 60 * 60 * 1000
	// lowBits are the bits of a number below the bits of the route: the day or the delay.
	lowBits, lowMax = 16, 1<<16 - 1
)

// routeBits returns the number with which the counts of a route begin: 47 bits of the FNV-1a hash of its name.
// It does not use the route's index or namespace: routes may share a namespace, and their order in the file may
// change.
func routeBits(name string) int64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return int64(h.Sum64()>>17) << lowBits
}

// dayOf returns the UTC day of a broker time in ms, counted from 1970.
func dayOf(brokerTime int64) int64 { return min(max(brokerTime/msPerDay, 0), lowMax) }

// CountDuplicate counts a duplicate of a route on the UTC day of its broker time (in ms), and under the number
// of its delay, see DelayOf.
func (c *Counts) CountDuplicate(route *Route, brokerTime int64, delay int) {
	c.note(route.NamespaceID)
	day := dayOf(brokerTime)
	at := c.Of(route.NamespaceID, StatusDuplicates)
	before := at.Buckets()
	if at.Add(route.bits + day); at.Buckets() > before {
		at.RemoveWhere(func(number int64) bool { return number&lowMax <= day-daysKept })
	}
	c.Of(route.NamespaceID, StatusDelays).Add(route.bits + int64(delay))
}

// DayCount is the number of duplicates of a route on a UTC day.
type DayCount struct {
	Day        string `json:"day"` // 2006-01-02
	Duplicates uint64 `json:"duplicates"`
}

// RouteDuplicates has the duplicates of a route, in one task or summed over several.
type RouteDuplicates struct {
	Route string `json:"route"`
	// Days are the UTC days of broker time that have duplicates, in ascending order. Days are kept for 35 days.
	Days []DayCount `json:"days"`
	// Delays are the numbers of duplicates by the index of their bound in DelayBounds, since the app began. The
	// last element counts the delays beyond all bounds.
	Delays []uint64 `json:"delays"`
	// Senders are the senders of the duplicates; empty for a route without sender.
	Senders sketch.Summary `json:"-"`
}

// Duplicates returns the duplicates of each route that has any, in the order of the app's routes. It does not
// include the open transaction: c is as of the last Commit or Discard.
func (c *Counts) Duplicates(rt *App) []RouteDuplicates {
	byBits := map[int64]*RouteDuplicates{}
	of := func(number int64) *RouteDuplicates {
		one := byBits[number&^lowMax]
		if one == nil {
			one = &RouteDuplicates{Delays: make([]uint64, len(DelayBounds)+1)}
			byBits[number&^lowMax] = one
		}
		return one
	}
	for i := range c.Counters {
		counter := &c.Counters[i]
		if counter.status == StatusDuplicates {
			counter.Each(func(number int64, n uint64) {
				day := time.UnixMilli(number & lowMax * msPerDay).UTC().Format(time.DateOnly)
				one := of(number)
				one.Days = append(one.Days, DayCount{day, n})
			})
		}
		if counter.status == StatusDelays {
			counter.Each(func(number int64, n uint64) { of(number).Delays[min(number&lowMax, int64(len(DelayBounds)))] = n })
		}
	}
	var all []RouteDuplicates
	for _, route := range rt.Routes {
		if one := byBits[route.bits]; one != nil {
			one.Route, one.Senders = route.Name, c.senders.summaryOf(route)
			all = append(all, *one)
		}
	}
	return all
}

// Add adds the duplicates that another task has of the same route.
func (d *RouteDuplicates) Add(other *RouteDuplicates) {
	d.Days, d.Delays = slices.Clone(d.Days), slices.Clone(d.Delays)
	for _, day := range other.Days {
		at, found := slices.BinarySearchFunc(d.Days, day.Day, func(have DayCount, day string) int { return cmp.Compare(have.Day, day) })
		if !found {
			d.Days = slices.Insert(d.Days, at, DayCount{Day: day.Day})
		}
		d.Days[at].Duplicates += day.Duplicates
	}
	for i, n := range other.Delays {
		d.Delays[i] += n
	}
	d.Senders = sketch.Merge(d.Senders, other.Senders)
}

// SumDuplicates sums the duplicates of tasks by route, in the order of the routes' names.
func SumDuplicates(tasks ...[]RouteDuplicates) []RouteDuplicates {
	var all []RouteDuplicates
	for _, task := range tasks {
		for i := range task {
			at, found := slices.BinarySearchFunc(all, task[i].Route, func(have RouteDuplicates, name string) int { return cmp.Compare(have.Route, name) })
			if !found {
				all = slices.Insert(all, at, task[i])
			} else {
				all[at].Add(&task[i])
			}
		}
	}
	return all
}

// hasSender reports whether duplicates of a route are counted by sender.
func hasSender(r *rules.Route) bool { return r.Sender != nil }
