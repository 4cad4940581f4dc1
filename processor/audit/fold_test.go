package audit

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"oncebus/dedup"
)

// record is one record of a generated log.
type record struct {
	e Event
	k Key
}

const testNow = int64(1_760_000_000_000)

// digestOf spreads a number as SHA-256 spreads a key.
func digestOf(n uint64) (d dedup.Digest) {
	for i := range 2 {
		n += 0x9e3779b97f4a7c15
		z := n
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.BigEndian.PutUint64(d[8*i:], z^z>>31)
	}
	return d
}

// traffic generates a log: keys with copies in bursts and much later, in any partition, some
// with another payload, some records late, without a key or from the future.
type traffic struct {
	rnd        *rand.Rand
	copies     float64 // share of the records
	partitions int
	n          int
	keys       uint64
	clock      int64
	recent     []record
	ends       []int64
}

func newTraffic(seed uint64, copies float64, partitions int) *traffic {
	return &traffic{rnd: rand.New(rand.NewPCG(seed, 1)), copies: copies, partitions: partitions, clock: testNow - 5*int64(day/time.Millisecond), ends: make([]int64, partitions)}
}

func (t *traffic) next() record {
	t.n++
	t.clock += t.rnd.Int64N(800)
	p := int32(t.rnd.IntN(t.partitions))
	r := record{e: Event{Partition: p, Sender: int32(t.rnd.IntN(4)), Offset: t.ends[p], Timestamp: t.clock, Payload: t.rnd.Uint64()}, k: Key{Time: t.clock}}
	t.ends[p]++
	switch draw := t.rnd.Float64(); {
	case draw < 0.001:
		r.k = Key{Finding: MissingKey, Reason: "no id"}
		return r
	case draw < 0.002:
		r.k = Key{Finding: Invalid, Reason: "no JSON"}
		return r
	case draw < 0.0021:
		r.k.Time = testNow + futureMax + 1
		return r
	case draw < 0.01:
		r.k.Time -= t.rnd.Int64N(3_600_000)
	}
	if t.rnd.Float64() < t.copies && len(t.recent) > 0 {
		first := t.recent[t.rnd.IntN(len(t.recent))]
		r.k.Digest, r.e.Payload = first.k.Digest, first.e.Payload
		if t.rnd.IntN(50) == 0 {
			r.e.Payload++
		}
		return r
	}
	t.keys++
	r.k.Digest = digestOf(t.keys + uint64(t.rnd.Int64()))
	if len(t.recent) < 2000 {
		t.recent = append(t.recent, r)
	} else if t.rnd.IntN(10) == 0 { // some keys stay for long
		t.recent[t.rnd.IntN(len(t.recent))] = r
	}
	return r
}

// plain is a fold that keeps everything in maps.
type plain struct {
	first                                   map[dedup.Digest]record
	copies                                  map[dedup.Digest]uint64
	events, keyed, missing, invalid, future uint64
	otherPayload, otherPartition            uint64
	delays                                  map[int64]uint64 // by step, -1 beyond the last
	partitions, senders                     map[int32][2]uint64
	hours                                   map[int64][2]uint64
	late                                    map[int64]uint64
	fronts                                  map[int32]int64
}

func newPlain() *plain {
	return &plain{first: map[dedup.Digest]record{}, copies: map[dedup.Digest]uint64{}, delays: map[int64]uint64{}, partitions: map[int32][2]uint64{},
		senders: map[int32][2]uint64{}, hours: map[int64][2]uint64{}, late: map[int64]uint64{}, fronts: map[int32]int64{}}
}

// bound returns the least step that is as long as a delay, by looking at each.
func bound(delay int64) int64 {
	for _, s := range Steps {
		if delay <= s {
			return s
		}
	}
	return -1
}

func (p *plain) add(r record) {
	p.events++
	switch {
	case r.k.Finding == MissingKey:
		p.missing++
		return
	case r.k.Finding == Invalid:
		p.invalid++
		return
	case r.k.Time > testNow+futureMax:
		p.future++
		return
	}
	p.keyed++
	first, is := p.first[r.k.Digest]
	one := uint64(0)
	if is {
		one = 1
		p.copies[r.k.Digest]++
		if first.e.Payload != r.e.Payload {
			p.otherPayload++
		}
		if first.e.Partition != r.e.Partition {
			p.otherPartition++
		}
		p.delays[bound(max(r.k.Time-first.k.Time, first.k.Time-r.k.Time))]++
	} else {
		p.first[r.k.Digest] = r
	}
	count := func(n [2]uint64) [2]uint64 { return [2]uint64{n[0] + 1, n[1] + one} }
	p.partitions[r.e.Partition] = count(p.partitions[r.e.Partition])
	p.senders[r.e.Sender] = count(p.senders[r.e.Sender])
	p.hours[r.k.Time/3_600_000] = count(p.hours[r.k.Time/3_600_000])
	if front, has := p.fronts[r.e.Partition]; has && r.k.Time < front {
		p.late[bound(front-r.k.Time)]++
	} else {
		p.fronts[r.e.Partition] = r.k.Time
		p.late[0]++
	}
}

// total returns the copies of all keys.
func (p *plain) total() (n uint64) {
	for _, c := range p.copies {
		n += c
	}
	return n
}

// failer is a test, or a run of rapid.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// compare fails the test with every difference from exact counts.
func (p *plain) compare(t failer, c *Counted) {
	t.Helper()
	same := func(what string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, a plain fold has %v", what, got, want)
		}
	}
	same("events", [5]uint64{c.Events, c.Keyed, c.MissingKey, c.Invalid, c.Future}, [5]uint64{p.events, p.keyed, p.missing, p.invalid, p.future})
	same("keys and copies", []Estimate{c.Keys, c.Copies, c.OtherPayload, c.OtherPartition},
		[]Estimate{{N: uint64(len(p.first))}, {N: p.total()}, {N: p.otherPayload}, {N: p.otherPartition}})
	delays, late := map[int64]uint64{}, map[int64]uint64{}
	for _, s := range c.Delays {
		if s.Copies.N > 0 {
			delays[cmp.Or(s.UpTo, -1)] = s.Copies.N
		}
	}
	same("delays", delays, p.delays)
	for _, l := range c.Lateness {
		if l.Events > 0 {
			late[l.UpTo] = l.Events
		}
	}
	same("lateness", late, p.late)
	parts := func(list []Part) map[int32][2]uint64 {
		m := map[int32][2]uint64{}
		for _, x := range list {
			m[x.Index] = [2]uint64{x.Events, x.Copies.N}
		}
		return m
	}
	same("partitions", parts(c.Partitions), p.partitions)
	same("senders", parts(c.Senders), p.senders)
	hours := map[int64][2]uint64{}
	for _, h := range c.Hours {
		hours[h.Start/3_600_000] = [2]uint64{h.Events, h.Copies.N}
	}
	same("hours", hours, p.hours)
	if top := slices.Sorted(maps.Values(p.copies)); len(c.Top) > 0 && uint64(c.Top[0].Copies) != top[len(top)-1] {
		t.Errorf("the most copies of a key: %d, a plain fold has %d", c.Top[0].Copies, top[len(top)-1])
	}
}

// foldTwice folds a log twice: by f, and by a plain fold.
func foldTwice(t failer, o FoldOptions, n int, next func() record) (*Counted, *plain) {
	t.Helper()
	o.Now = testNow
	f, p := NewFold(o), newPlain()
	for range n {
		r := next()
		p.add(r)
		if err := f.Add(&r.e, &r.k); err != nil {
			t.Fatal(err)
		}
	}
	c, err := f.Finish(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return c, p
}

// TestFoldEqualsAPlainFoldOnAMillionEvents is the promise of an exact audit.
func TestFoldEqualsAPlainFoldOnAMillionEvents(t *testing.T) {
	if testing.Short() {
		t.Skip("it has no goroutine: make verify runs it without the race detector")
	}
	t.Parallel()
	began := time.Now()
	tr := newTraffic(1, 0.15, 12)
	c, p := foldTwice(t, FoldOptions{KeysMax: 5_000_000}, 1_000_000, tr.next)
	p.compare(t, c)
	t.Logf("1,000,000 events, %d keys, %d copies, in memory: %v, generated and folded twice", c.Keys.N, c.Copies.N, time.Since(began).Round(time.Millisecond))
	began = time.Now()
	tr = newTraffic(1, 0.15, 12)
	onDisk, p := foldTwice(t, FoldOptions{KeysMax: 50_000, Dir: t.TempDir()}, 1_000_000, tr.next)
	p.compare(t, onDisk)
	if onDisk.DiskRecords < 700_000 {
		t.Errorf("only %d records were on disk", onDisk.DiskRecords)
	}
	t.Logf("the same with 50,000 keys in memory: %v; %d records on disk, %.1f bytes each", time.Since(began).Round(time.Millisecond), onDisk.DiskRecords, float64(onDisk.DiskBytes)/float64(onDisk.DiskRecords))
	for what, pair := range map[string][2]any{"mismatches": {c.Mismatches, onDisk.Mismatches}, "top": {c.Top, onDisk.Top}, "reasons": {c.Reasons, onDisk.Reasons}} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s: %v in memory, %v on disk", what, pair[0], pair[1])
		}
	}
}

// TestExactFoldsEqualAPlainFold draws logs and bounds.
func TestExactFoldsEqualAPlainFold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(0, 3000).Draw(rt, "records")
		seed := rapid.Uint64().Draw(rt, "seed")
		copies := rapid.SampledFrom([]float64{0, 0.01, 0.3, 0.9}).Draw(rt, "copies")
		few := rapid.SampledFrom([]uint64{0, 1, 7}).Draw(rt, "keys in all, 0 for many")
		o := FoldOptions{KeysMax: rapid.SampledFrom([]int{1, 10, 1000, 10_000}).Draw(rt, "keys in memory"), Dir: dir}
		tr := newTraffic(seed, copies, 3)
		c, p := foldTwice(t, o, n, func() record {
			r := tr.next()
			if few > 0 {
				r.k.Digest = digestOf(uint64(r.e.Offset) % few)
			}
			return r
		})
		p.compare(rt, c)
	})
}

// TestSampleIsWithinItsError compares samples with exact counts: the squared deviations are
// those that the standard error states, on average, and none is far off.
func TestSampleIsWithinItsError(t *testing.T) {
	t.Parallel()
	const seeds, n = 60, 30_000
	sums := map[string]float64{}
	for seed := range uint64(seeds) {
		tr := newTraffic(seed+1, 0.3, 4)
		c, p := foldTwice(t, FoldOptions{KeysMax: 1500}, n, tr.next)
		if c.Sample < 3 {
			t.Fatalf("the sample has all keys of a level %d", c.Sample)
		}
		near := func(what string, got Estimate, want uint64) {
			t.Helper()
			z := (float64(got.N) - float64(want)) / max(got.Error, 1)
			sums[what] += z * z
			if math.Abs(z) > 5 {
				t.Errorf("run %d: %s: %d ± %.0f, want %d", seed, what, got.N, got.Error, want)
			}
		}
		near("keys", c.Keys, uint64(len(p.first)))
		near("copies", c.Copies, p.total())
		near("other partition", c.OtherPartition, p.otherPartition)
		for _, x := range c.Partitions {
			near("copies of a partition", x.Copies, p.partitions[x.Index][1])
			if x.Events != p.partitions[x.Index][0] {
				t.Errorf("events of partition %d: %d, want all %d", x.Index, x.Events, p.partitions[x.Index][0])
			}
		}
		var sum uint64
		for _, s := range c.Delays {
			sum += p.delays[cmp.Or(s.UpTo, -1)]
			if want := float64(sum) / float64(p.total()); math.Abs(s.Share-want) > 5*s.Deviation+1e-9 && s.Copies.N > 100 {
				t.Errorf("run %d: share up to %d: %f ± %f, want %f", seed, s.UpTo, s.Share, s.Deviation, want)
			}
		}
		if c.Events != p.events || c.MissingKey != p.missing || c.Keyed != p.keyed {
			t.Errorf("run %d: counts of events are sampled: %d, %d, %d", seed, c.Events, c.Keyed, c.MissingKey)
		}
	}
	for what, per := range map[string]float64{"keys": seeds, "copies": seeds, "other partition": seeds, "copies of a partition": 4 * seeds} {
		mean := sums[what] / per
		t.Logf("%s: mean squared deviation %.2f standard errors", what, mean)
		if mean > 1.8 {
			t.Errorf("%s: the mean squared deviation is %.2f squared standard errors, want about 1 at most", what, mean)
		}
	}
}

// TestKeysInMemoryAreBounded: neither a sample nor a file on disk has more.
func TestKeysInMemoryAreBounded(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"", t.TempDir()} {
		c, _ := foldTwice(t, FoldOptions{KeysMax: 1000, Dir: dir}, 20_000, newTraffic(3, 0.1, 2).next)
		if c.InMemory > 1000 || c.InMemory < 300 {
			t.Errorf("%d keys in memory, want at most 1,000 and not much fewer", c.InMemory)
		}
		if exact := c.Sample == 0; exact != (dir != "") {
			t.Errorf("directory %q: the sample is level %d", dir, c.Sample)
		}
	}
}

// TestFirstRecordOnDiskIsTheOldest has a key in three runs.
func TestFirstRecordOnDiskIsTheOldest(t *testing.T) {
	t.Parallel()
	r, err := newRuns(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}()
	for n := range int64(3) {
		for i := range uint64(10) {
			if err := r.add(&spilled{digest: digestOf(9 - i), time: n, offset: 100 * n, payload: i, sender: int32(i)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.write(); err != nil {
			t.Fatal(err)
		}
	}
	var got []spilled
	if err := r.merge(func(int64, int64) {}, func(s *spilled) { got = append(got, *s) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 30 {
		t.Fatalf("%d records of 30", len(got))
	}
	for i, s := range got {
		if n := int64(i % 3); s.time != n || s.offset != 100*n || s.digest != got[i-i%3].digest || s.digest != digestOf(9-s.payload) || s.sender != int32(s.payload) {
			t.Errorf("record %d is %+v", i, s)
		}
	}
}

func BenchmarkFold(b *testing.B) {
	tr := newTraffic(1, 0.15, 12)
	log := make([]record, 1_000_000)
	for i := range log {
		log[i] = tr.next()
	}
	for _, o := range []FoldOptions{{KeysMax: 5_000_000}, {KeysMax: 50_000}, {KeysMax: 50_000, Dir: b.TempDir()}} {
		b.Run(fmt.Sprintf("keys=%d/disk=%t", o.KeysMax, o.Dir != ""), func(b *testing.B) {
			for b.Loop() {
				o.Now = testNow
				f := NewFold(o)
				for i := range log {
					if err := f.Add(&log[i].e, &log[i].k); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := f.Finish(nil); err != nil {
					b.Fatal(err)
				}
				if err := f.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(log)), "ns/event")
		})
	}
}
