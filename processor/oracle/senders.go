package oracle

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
)

// A sender is one of the counters that count the duplicates of a route by sender.
type sender struct {
	name         string
	count, error uint64
}

// routeSenders has the counters of a route, by number. The count of a sender may be too high, by at most its
// error.
type routeSenders struct {
	route           string
	capacity, total uint64
	floor           uint64 // how many duplicates a sender without a counter may have had
	all             []sender
}

// senders reads the number of routes, uvarint, and for each route: length of the name 1, name | capacity,
// total, floor and number of counters, uvarints | for each counter: length of the name 1, name, count, error,
// uvarints.
func (f *fields) senders() (all []routeSenders) {
	for n := f.unsigned(1 << 16); n > 0 && !f.bad; n-- {
		one := routeSenders{route: string(f.bytes(int(f.byte())))}
		one.capacity, one.total, one.floor = f.unsigned(1<<16), f.unsigned(1<<63), f.unsigned(1<<63)
		for counters := f.unsigned(1 << 16); counters > 0 && !f.bad; counters-- {
			one.all = append(one.all, sender{string(f.bytes(int(f.byte()))), f.unsigned(1 << 63), f.unsigned(1 << 63)})
		}
		f.bad = f.bad || uint64(len(one.all)) > one.capacity
		all = append(all, one)
	}
	return all
}

// changeSenders reads changes. For each route: its index in the whole checkpoint, duplicates since the previous
// checkpoint, number of changed counters, uvarints | for each counter: twice its number, plus 1 if its name has
// changed, how much its count rose, uvarints | if its name has changed: length 1, name, error, uvarint. It
// returns the counters after the changes.
func changeSenders(before []routeSenders, changes []byte) (all []routeSenders, ok bool) {
	all = append(all, before...)
	f := fields{rest: changes}
	for len(f.rest) > 0 && !f.bad {
		place := f.unsigned(1 << 16)
		if place >= uint64(len(all)) {
			return nil, false
		}
		one := &all[place]
		one.all = append([]sender(nil), one.all...)
		one.total += f.unsigned(1 << 63)
		for n := f.unsigned(1 << 16); n > 0 && !f.bad; n-- {
			head, rise := f.unsigned(1<<16), f.unsigned(1<<63)
			number := int(head / 2)
			if number == len(one.all) {
				one.all = append(one.all, sender{})
			}
			if number >= len(one.all) || uint64(number) >= one.capacity || rise == 0 {
				return nil, false
			}
			if one.all[number].count += rise; head%2 == 1 {
				one.all[number].name, one.all[number].error = string(f.bytes(int(f.byte()))), f.unsigned(1<<63)
			}
		}
	}
	return all, !f.bad
}

// routeDuplicates has the exact numbers of duplicates of a route in a task.
type routeDuplicates struct {
	byDay    map[int64]int64 // by UTC day since 1970, in broker time
	bySender map[string]uint64
	total    uint64
}

// duplicates has the duplicates of each route that has a sender.
type duplicates map[string]*routeDuplicates

// count counts a record of the repartition topic that is a duplicate.
func (d duplicates) count(r *Record, route *Route) {
	if route.Sender == "" {
		return
	}
	one := d[route.Name]
	if one == nil {
		one = &routeDuplicates{map[int64]int64{}, map[string]uint64{}, 0}
		d[route.Name] = one
	}
	name := ""
	for _, h := range r.Headers {
		if h.Key == route.Sender {
			name = string(h.Value)
			break
		}
	}
	one.byDay[r.Timestamp/(24*60*60*1000)]++
	one.bySender[name]++
	one.total++
}

// statusDuplicates stands in place of a status for the duplicates of a namespace's routes. The number of a
// bucket consists of the first 47 bits of the FNV-1a hash of the route's name, and of the day in 16 bits.
const statusDuplicates = 0x41

// duplicates compares the duplicates by day and by sender in a checkpoint with the duplicates that were judged
// (K13). It does not check a partition with a cut changelog, because after a cut, counts that only a local
// store had may be lost.
func (c *check) duplicates(t *task, r *Record, cp *checkpoint) {
	if c.isCut(c.cfg.Changelog, t.partition) {
		return
	}
	for name, want := range t.duplicates {
		hash := fnv.New64a()
		hash.Write([]byte(name))
		start := int64(hash.Sum64()>>17) << 16
		got := cp.counts[counted{c.routes[name].NamespaceID, statusDuplicates}].buckets
		for day, n := range want.byDay {
			if got[start+day].rows != n {
				c.add("K13", "%s: checkpoint with sequence %d has %d duplicates of route %s on day %d, want %d", at(r), cp.sequence, got[start+day].rows, name, day, n)
			}
		}
		place := slices.IndexFunc(cp.senders, func(s routeSenders) bool { return s.route == name })
		wrong := "is missing"
		if place >= 0 {
			wrong = cp.senders[place].compare(want)
		}
		if wrong != "" {
			c.add("K13", "%s: checkpoint with sequence %d: the senders of route %s: %s", at(r), cp.sequence, name, wrong)
		}
	}
}

// compare returns what is wrong with the counters of a route; "" if nothing is. It checks that the total is
// right, that no name has two counters, that every count differs from the true number by at most its error,
// that every error is within its bound, and that no sender without a counter has more duplicates than the
// lowest counter.
func (s *routeSenders) compare(want *routeDuplicates) string {
	if s.total != want.total {
		return fmt.Sprintf("%d duplicates, want %d", s.total, want.total)
	}
	left, lowest := maps.Clone(want.bySender), s.floor
	if uint64(len(s.all)) == s.capacity {
		lowest = s.all[0].count
	}
	for _, one := range s.all {
		if uint64(len(s.all)) == s.capacity {
			lowest = min(lowest, one.count)
		}
		if n, known := left[one.name]; !known || n > one.count || n+one.error < one.count || one.error > s.total/s.capacity {
			return fmt.Sprintf("%q has count %d with error %d, want %d, or it comes twice", one.name, one.count, one.error, n)
		}
		delete(left, one.name)
	}
	for name, n := range left {
		if n > lowest {
			return fmt.Sprintf("%q came %d times and has no counter; the lowest is %d", name, n, lowest)
		}
	}
	return ""
}
