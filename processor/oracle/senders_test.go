package oracle

import (
	"strings"
	"testing"
)

// TestDuplicatesAreCompared: Check finds each wrong count of duplicates in a checkpoint, and
// nothing in a right one.
func TestDuplicatesAreCompared(t *testing.T) {
	const day = 24 * 60 * 60 * 1000
	cfg := testConfig()
	cfg.Routes[0].Sender = "from"
	judged := duplicates{}
	for i, name := range []string{"x", "y", "x", "z", "x"} {
		judged.count(&Record{Timestamp: int64(3+i/4) * day, Headers: []Header{{"from", []byte(name)}, {"from", []byte("second")}}}, &cfg.Routes[0])
	}
	judged.count(&Record{Timestamp: 3 * day}, &cfg.Routes[0])
	judged.count(&Record{Timestamp: 3 * day}, &cfg.Routes[1]) // has no sender
	// python3: h = 0xcbf29ce484222325
	//          for b in b'signals': h = (h ^ b) * 0x100000001b3 % 2**64
	//          print((h >> 17) << 16)
	const start = 854349562647216128
	for _, v := range []struct {
		name, want string
		change     func(cp *checkpoint)
	}{
		{"right", "", func(*checkpoint) {}},
		{"the lowest counter was replaced", "", func(cp *checkpoint) { cp.senders[0].all[1] = sender{"", 3, 2}; cp.senders[0].capacity = 2 }},
		{"a day is missing", "has 0 duplicates of route signals on day 4, want 1", func(cp *checkpoint) { delete(cp.counts[counted{1, 0x41}].buckets, start+4) }},
		{"a day has one too many", "has 6 duplicates of route signals on day 3, want 5", func(cp *checkpoint) {
			cp.counts[counted{1, 0x41}].buckets[start+3] = bucket{rows: 6}
		}},
		{"another total", "7 duplicates, want 6", func(cp *checkpoint) { cp.senders[0].total++ }},
		{"no counters", "is missing", func(cp *checkpoint) { cp.senders = nil }},
		{"a count that is too low", `"x" has count 2 with error 0, want 3`, func(cp *checkpoint) { cp.senders[0].all[0].count = 2 }},
		{"a count that is too high", `"x" has count 5 with error 1, want 3`, func(cp *checkpoint) { cp.senders[0].all[0] = sender{"x", 5, 1} }},
		{"an error above the bound", `"x" has count 6 with error 4, want 3`, func(cp *checkpoint) { cp.senders[0].all[0] = sender{"x", 6, 4} }},
		{"a name of no event", `"other" has count 1`, func(cp *checkpoint) { cp.senders[0].all[0] = sender{"other", 1, 0} }},
		{"a sender without a counter", `"x" came 3 times and has no counter; the lowest is 1`, func(cp *checkpoint) {
			cp.senders[0].all = cp.senders[0].all[1:2]
			cp.senders[0].capacity = 1
		}},
	} {
		c := newCheck(cfg, &History{})
		one := &checkpoint{
			counts:  counts{counted{1, 0x41}: {1, map[int64]bucket{start + 3: {rows: 5}, start + 4: {rows: 1}}}},
			senders: []routeSenders{{route: "signals", capacity: 2, total: 6, all: []sender{{"x", 3, 0}, {"y", 1, 0}}}},
		}
		one.senders[0].capacity, one.senders[0].all = 4, append(one.senders[0].all, sender{"z", 1, 0}, sender{"", 1, 0})
		if v.name == "the lowest counter was replaced" {
			one.senders[0].all = one.senders[0].all[:2]
		}
		v.change(one)
		c.duplicates(&task{duplicates: judged}, &Record{Topic: "changelog"}, one)
		var got string
		for _, violation := range c.sorted() {
			got += violation.String()
		}
		if v.want == "" && got != "" || !strings.Contains(got, v.want) {
			t.Errorf("%s: found %q, want %q", v.name, got, v.want)
		}
	}
}
