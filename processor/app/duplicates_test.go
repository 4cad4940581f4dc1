package app

import (
	"fmt"
	"reflect"
	"testing"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/dedup/sketch"
	"oncebus/processor/wire"
)

// senderApp returns an app of routes that share namespace 1. Those whose name begins with s
// have a sender.
func senderApp(names ...string) *App {
	rt := &App{ByName: map[string]*Route{}}
	for i, name := range names {
		route := &Route{Route: &rules.Route{Name: name, Index: i}, NamespaceID: 1, Span: dedup.Window{Size: 1000}, bits: routeBits(name)}
		if name[0] == 's' {
			route.Sender = &rules.Sender{Kind: rules.SenderHeader, Header: "x"}
		}
		rt.Routes = append(rt.Routes, route)
		rt.ByName[name] = route
	}
	return rt
}

// count counts a duplicate and its sender.
func (c *Counts) countFrom(route *Route, at, delay int64, sender string) {
	c.CountDuplicate(route, at, DelayOf(delay))
	if route.Sender != nil {
		c.CountSender(route, []byte(sender))
	}
}

// TestDuplicatesOfRoutesThatShareANamespace are counted apart, also after their order in the file
// changes, and are not counted as keys.
func TestDuplicatesOfRoutesThatShareANamespace(t *testing.T) {
	rt := senderApp("plain", "seen")
	counts := NewCounts(rt)
	open := counts.Open(rt)
	const day = msPerDay
	open.countFrom(rt.Routes[0], 3*day, 5, "")
	open.countFrom(rt.Routes[1], 3*day, 20, "a")
	open.countFrom(rt.Routes[1], 3*day+1, -1, "a")
	open.countFrom(rt.Routes[1], 4*day, 1<<40, "b")
	changes, senders := counts.AppendChanges(nil, &open), open.AppendSenders(nil)
	if len(changes) == 0 || len(senders) == 0 || open.LiveKeys(1) != 0 || counts.Duplicates(rt) != nil {
		t.Fatalf("%d bytes of changes, %d of senders, %d live keys, committed %v", len(changes), len(senders), open.LiveKeys(1), counts.Duplicates(rt))
	}
	counts.Commit(&open)
	text, whole := open.Encode(), open.Senders()

	other := senderApp("seen", "another", "plain")
	read := NewCounts(other)
	if recount, err := read.Decode(&wire.Checkpoint{Counts: text}, 0); err != nil || len(recount) > 0 {
		t.Fatalf("recount %v, error %v", recount, err)
	}
	read.LoadSenders(other, whole)
	want := []RouteDuplicates{
		{
			Route: "seen", Days: []DayCount{{"1970-01-04", 2}, {"1970-01-05", 1}}, Delays: delaysOf(0, 1, len(DelayBounds)),
			Senders: sketch.Summary{Capacity: sendersMost, Total: 3, Counters: []sketch.Counter{{Name: "a", Count: 2}, {Name: "b", Count: 1}}},
		},
		{Route: "plain", Days: []DayCount{{"1970-01-04", 1}}, Delays: delaysOf(0)},
	}
	if got := read.Duplicates(other); !reflect.DeepEqual(got, want) {
		t.Errorf("read as\n%+v, want\n%+v", got, want)
	}
	sum := SumDuplicates(read.Duplicates(other), counts.Duplicates(rt))
	if len(sum) != 2 || sum[0].Route != "plain" || sum[1].Days[0].Duplicates != 4 || sum[1].Delays[1] != 2 || sum[1].Senders.Total != 6 || sum[1].Senders.Top(1)[0].Count != 4 {
		t.Errorf("the sum is %+v", sum)
	}
	if got := read.Duplicates(other); !reflect.DeepEqual(got, want) {
		t.Errorf("the sum changed what it added: %+v", got)
	}
}

// delaysOf has one duplicate for each number of a bound.
func delaysOf(numbers ...int) []uint64 {
	all := make([]uint64, len(DelayBounds)+1)
	for _, n := range numbers {
		all[n] = 1
	}
	return all
}

// TestDiscardedDuplicates are not counted by day, delay or sender.
func TestDiscardedDuplicates(t *testing.T) {
	rt := senderApp("s")
	counts := NewCounts(rt)
	open := counts.Open(rt)
	open.countFrom(rt.Routes[0], 0, 0, "kept")
	counts.Commit(&open)
	open.countFrom(rt.Routes[0], 0, 0, "dropped")
	counts.Discard(&open)
	open.countFrom(rt.Routes[0], 0, 0, "kept")
	counts.Commit(&open)
	if got := counts.Duplicates(rt); got[0].Days[0].Duplicates != 2 || fmt.Sprint(got[0].Senders.Counters) != "[{kept 2 0}]" {
		t.Errorf("counted %+v", got)
	}
}

// TestCountsOfAnotherBuildAreCarried: a build that does not know a status of counts, or a route
// with senders, hands them on. So a rolling upgrade and the way back lose none.
func TestCountsOfAnotherBuildAreCarried(t *testing.T) {
	rt := senderApp("a")
	with := NewCounts(rt)
	open := with.Open(rt)
	open.countFrom(rt.Routes[0], 5*msPerDay, 5, "")
	one := dedup.NewKeyCounter(dedup.Window{})
	one.Add(1 << 40)
	text := open.Encode() + string(one.Append([]byte{1, 0x7e}))
	known := NewCounts(rt)
	if _, err := known.Decode(&wire.Checkpoint{Counts: text}, 0); err != nil || known.Encode() != text {
		t.Errorf("%x became %x, %v", text, known.Encode(), err)
	}
	senders := []wire.RouteSenders{
		{Route: "gone", Summary: sketch.Summary{Capacity: 16, Total: 2, Counters: []sketch.Counter{{Name: "x", Count: 2}}}},
		{Route: "a", Summary: sketch.Summary{Capacity: 16, Total: 1, Counters: []sketch.Counter{{Name: "y", Count: 1}}}},
	}
	known.LoadSenders(rt, senders)
	if got := known.Senders(); !reflect.DeepEqual(got, senders[:1]) {
		t.Errorf("the senders of a route without sender are dropped, those of an unknown route carried: got %+v", got)
	}
}

// TestSendersAreBounded: many routes share the counters.
func TestSendersAreBounded(t *testing.T) {
	for routes, want := range map[int]int{1: 128, 16: 128, 17: 120, 250: 16} {
		var names []string
		for n := range routes {
			names = append(names, fmt.Sprint("s", n))
		}
		rt := senderApp(names...)
		counts := NewCounts(rt)
		for _, one := range counts.Senders() {
			if one.Capacity != want {
				t.Errorf("%d routes: %d counters for a route, want %d", routes, one.Capacity, want)
				break
			}
		}
	}
	rt := senderApp("s")
	counts := NewCounts(rt)
	full := wire.RouteSenders{Summary: sketch.Summary{Capacity: 4096, Total: 1}}
	for n := range sendersAll - 5 {
		full.Counters = append(full.Counters, sketch.Counter{Name: fmt.Sprint(n), Count: 1})
	}
	small := wire.RouteSenders{Route: "small", Summary: sketch.Summary{Capacity: 9, Total: 1, Counters: full.Counters[:9]}}
	counts.LoadSenders(rt, []wire.RouteSenders{full, small})
	if got := counts.Senders(); len(got) != 2 || got[1].Route != full.Route {
		t.Errorf("%d routes are carried beyond the bound", len(got)-1)
	}
}
