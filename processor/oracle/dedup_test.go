package oracle

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"go/parser"
	"go/token"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// The oracle shares no code with package dedup. These tests compare the two: a rule
// that one of them misunderstood is a difference.

// TestTheRulesAgree: both give random events the same verdicts, at the edges of
// windows and of int64.
func TestTheRulesAgree(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r := Route{
			NamespaceID: uint8(1 + rng.IntN(3)), Window: rng.Int64N(50), Grace: rng.Int64N([]int64{10, 300}[rng.IntN(2)]), Skew: rng.Int64N(10),
			Output: "out", DeadLetter: "dead", Duplicates: To, DuplicatesTo: "duplicates",
		}
		if rng.IntN(10) == 0 {
			r.Window = math.MaxInt64 - rng.Int64N(3)
		}
		if rng.IntN(2) == 0 {
			r.Future = Clamp
		}
		if rng.IntN(2) == 0 {
			r.LiveKeys = 1 + rng.Int64N(4)
		}
		compareRules(t, rng, seed, r)
	}
}

// decideLinked decides as package judge does. It returns the row that decides, and the rows to
// store in their order.
func decideLinked(rows map[digest]dedup.Row, ev dedup.Event, w dedup.Window, streamTime int64) (verdict dedup.Verdict, prior dedup.Row, stores []dedup.Row) {
	prior, found := rows[ev.Digest]
	var d *dedup.Descent
	for found && ev.GoesBelow(&prior, w, streamTime) {
		if d == nil {
			d = new(dedup.Descent)
		}
		d.Pass(new(prior))
		next, linked := prior.Below(w, streamTime)
		if found = linked; linked {
			prior, found = rows[next]
		}
	}
	if d != nil {
		verdict, row := dedup.DecideBelow(ev, d, prior, found, w, streamTime)
		return verdict, prior, []dedup.Row{row, d.Above.Above(row.First)}
	}
	verdict, row := dedup.Decide(ev, prior, found, w, streamTime)
	if verdict == dedup.AfterWindow && ev.Linked {
		return verdict, prior, []dedup.Row{prior.AsEarlier(), row}
	}
	return verdict, prior, []dedup.Row{row}
}

// compareRows compares the rows that the fold writes with those to store, and stores them.
func compareRows(t *testing.T, event string, rows map[digest]dedup.Row, wrote []placed, stores []dedup.Row) {
	t.Helper()
	if len(wrote) != len(stores) {
		t.Fatalf("%s: %d rows, dedup writes %d", event, len(wrote), len(stores))
	}
	for i, row := range stores {
		rows[row.Digest] = row
		if want := row.AppendValue(nil); wrote[i].digest != row.Digest || !bytes.Equal(wrote[i].row.value(nil), want) {
			t.Fatalf("%s: row %d is %x=%x, dedup writes %x=%x", event, i, wrote[i].digest, wrote[i].row.value(nil), row.Digest, want)
		}
	}
}

func compareRules(t *testing.T, rng *rand.Rand, seed uint64, r Route) {
	t.Helper()
	span := dedup.Window{Size: r.Window, Grace: r.Grace, Skew: r.Skew, ClampFuture: r.Future == Clamp}
	f, counter := newFold(), dedup.NewKeyCounter(span)
	rows, streamTime := map[digest]dedup.Row{}, dedup.NoStreamTime
	changes := r.LiveKeys == 0 && r.Window < 1000
	f.linked = rng.IntN(3) > 0
	present := []int64{0, base, math.MaxInt64 - 100, math.MinInt64 + 100}[rng.IntN(4)]
	for n := range 400 {
		present = add(present, rng.Int64N(8)-1)
		at := add(present, rng.Int64N(200)-150)
		if changes && rng.IntN(30) == 0 {
			span = changeBoth(rng, f, &r, span, streamTime)
		}
		if rng.IntN(50) == 0 {
			at = []int64{math.MaxInt64, math.MinInt64, 0}[rng.IntN(3)]
		}
		e := envelope{digest: digest{byte(rng.IntN(4))}, time: at, from: position{uint16(rng.IntN(9)), rng.Int32N(9), int64(n)}}
		j := f.judge(&e, &r, present)
		var made []placed
		if j.wrote {
			made = f.store(&e, &r, &j)
		}

		verdict, eventTime := span.Admit(at, streamTime, present)
		prior, held := rows[e.digest]
		var stores []dedup.Row
		if verdict == dedup.Unique {
			ev := dedup.Event{Digest: e.digest, Time: eventTime, At: dedup.Position{Topic: e.from.topic, Partition: e.from.partition, Offset: e.from.offset}, NamespaceID: r.NamespaceID, Linked: f.linked}
			stands := held && span.Decides(&prior, streamTime)
			main := prior
			verdict, prior, stores = decideLinked(rows, ev, span, streamTime)
			latest := slices.ContainsFunc(stores, func(row dedup.Row) bool { return !row.Earlier && row.First == eventTime })
			switch wrote := verdict == dedup.Unique || verdict == dedup.AfterWindow; {
			case wrote && !stands && r.LiveKeys > 0 && counter.Live() >= uint64(r.LiveKeys):
				verdict = dedup.Limited
			case wrote && latest && stands:
				counter.Remove(main.First)
				counter.Add(eventTime)
			case wrote && !stands:
				counter.Add(eventTime)
			}
			streamTime = dedup.NextStreamTime(streamTime, at, eventTime)
			counter.Advance(span, streamTime)
		}
		if j.verdict != verdict.String() {
			t.Fatalf("run %d, event %d at %d, present %d, route %+v: oracle %s, dedup %v", seed, n, at, present, r, j.verdict, verdict)
		}
		if verdict != dedup.Invalid && e.time != eventTime {
			t.Fatalf("run %d, event %d: event time %d, dedup %d", seed, n, e.time, eventTime)
		}
		if streamTime != dedup.NoStreamTime && (!f.seen[r.NamespaceID] || f.times[r.NamespaceID] != streamTime) {
			t.Fatalf("run %d, event %d: stream time %d, dedup %d", seed, n, f.times[r.NamespaceID], streamTime)
		}
		if wrote := verdict == dedup.Unique || verdict == dedup.AfterWindow; wrote != j.wrote {
			t.Fatalf("run %d, event %d: %s wrote a row: %t", seed, n, j.verdict, j.wrote)
		} else if wrote {
			compareRows(t, fmt.Sprintf("run %d, event %d", seed, n), rows, made, stores)
		}
		if verdict == dedup.Duplicate && j.first.first != prior.First {
			t.Fatalf("run %d, event %d: first seen at %d, dedup %d", seed, n, j.first.first, prior.First)
		}
	}
}

// changeBoth goes over to another window, in the fold and in package dedup.
func changeBoth(rng *rand.Rand, f *fold, r *Route, span dedup.Window, streamTime int64) dedup.Window {
	f.dropWhole()
	if span.Changed != (len(f.spans.known) > 0) && !span.IsWhole(streamTime) {
		panic("the fold has dropped a change that has an effect")
	}
	number := f.spans.set + 1
	if f.spans.of == nil { // the set from which both begin
		f.adopt([]Set{{number, []NamespaceWindow{{r.NamespaceID, span.Size, span.Grace}}}}, number)
		number++
	}
	next := span
	next.Size, next.Grace = rng.Int64N(90), rng.Int64N(30)
	f.adopt([]Set{{number, []NamespaceWindow{{r.NamespaceID, next.Size, next.Grace}}}}, number)
	return span.ChangeTo(next, streamTime)
}

// TestPartitionsAreKafkas compares with the client's default partitioner.
func TestPartitionsAreKafkas(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	theirs := kgo.StickyKeyPartitioner(nil).ForTopic("t")
	for n := range 2000 {
		key := make([]byte, n%40)
		for i := range key {
			key[i] = byte(rng.Uint32())
		}
		partitions := 1 + rng.IntN(50)
		o := builder{cfg: &Config{Emissions: map[string]Emission{"t": {Partitions: int32(partitions)}}}}
		got, want := o.partition(&Record{Topic: "t", Key: key}, nil), theirs.Partition(&kgo.Record{Key: key}, partitions)
		if int(got) != want {
			t.Fatalf("key %x of %d partitions: %d, franz-go %d", key, partitions, got, want)
		}
	}
}

// TestGoldenEncodings pins the encodings, byte for byte.
func TestGoldenEncodings(t *testing.T) {
	digestBytes, key := bytes.Repeat([]byte{0xd1}, 16), bytes.Repeat([]byte{0x4e}, 32)
	// No flags, route, topic 256, partition 3, timestamp 100, offset 300, time 104 earlier
	b := append(append([]byte{2, 0, 7}, "signals"...), 0x80, 0x02, 0x03, 0, 0, 0, 0, 0, 0, 0, 100, 0xac, 0x02, 0xcf, 0x01)
	b = slices.Concat(b, digestBytes, key)
	e, err := openEnvelope(&Record{envelope: b}, 0)
	if err != nil || e.digest != digest(digestBytes) || e.key != [32]byte(key) || e.time != -4 || e.timestamp != 100 ||
		e.from != (position{256, 3, 300}) || string(e.route) != "signals" {
		t.Errorf("envelope %+v, error %v", e, err)
	}
	for n := range b {
		if _, err := openEnvelope(&Record{envelope: b[:n]}, 0); err == nil {
			t.Errorf("%d bytes of an envelope were read", n)
		}
	}
	// Record key "k", bytes 2 to 3 of the value are hashed
	hashed := slices.Concat([]byte{2, 3}, b[2:len(b)-len(key)], []byte{2, 1, 'k'})
	r := unwrapped(Record{Key: hashed, Value: []byte("abc")})
	e, err = openEnvelope(r, 0)
	if err != nil || string(r.Key) != "k" || e.key != sha256.Sum256([]byte("c")) || e.time != -4 || string(e.route) != "signals" {
		t.Errorf("record key %q, envelope %+v, error %v", r.Key, e, err)
	}
	for name, r := range map[string]*Record{
		"outside the value": {Key: hashed, Value: []byte("ab")},
		"version 1":         {Key: append([]byte{1}, b[1:]...)},
		"an unknown flag":   {Key: append([]byte{2, 0x80, 4}, b[2:]...)},
	} {
		r := unwrapped(*r)
		if _, err := openEnvelope(r, 0); err == nil || r.Key != nil {
			t.Errorf("%s: record key %q, error %v", name, r.Key, err)
		}
	}
	if r := unwrapped(Record{Key: hashed[:len(hashed)-1], Value: []byte("abc")}); r.Key == nil || len(r.Key) > 0 {
		t.Errorf("an empty record key is %q", r.Key)
	}
	stored := row{first: 100, at: position{256, 3, 300}, namespaceID: 7}
	if got, want := stored.value(nil), []byte{1, 0, 7, 0, 0xc8, 0x01, 0x80, 0x02, 0x03, 0xac, 0x02}; !bytes.Equal(got, want) {
		t.Errorf("row %x, want %x", got, want)
	}
	// next 100, epoch 2, sequence 9, 3 rows, namespace id 1 at 100, namespace id 200 at -4
	c, err := openCheckpoint([]byte{3, 0, 0xc8, 0x01, 0x04, 0x12, 3, 1, 0xc8, 0x01, 200, 0x07})
	if err != nil || c.next != 100 || c.sequence != 9 || !c.seen[1] || c.times[1] != 100 || !c.seen[200] || c.times[200] != -4 || c.seen[2] {
		t.Errorf("checkpoint next %d, sequence %d, error %v", c.next, c.sequence, err)
	}
	for _, b := range [][]byte{nil, {2, 2, 2, 2}, {1, 0, 2, 2, 2, 2}, {3}, {3, 0, 2, 2}, {3, 0, 2, 2, 2}, {3, 2, 2, 2, 2, 2}, {3, 0, 2, 2, 2, 2, 1}, {3, 0, 2, 2, 2, 2, 1, 0x80}} {
		if _, err := openCheckpoint(b); err == nil {
			t.Errorf("%x was read as a checkpoint", b)
		}
	}
}

// TestImportsAreOfTheStandardLibrary keeps the oracle independent: it must not use the code that it checks.
func TestImportsAreOfTheStandardLibrary(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil || strings.Contains(path, ".") || strings.HasPrefix(path, "oncebus") {
				t.Errorf("%s imports %s: only the standard library is allowed", name, path)
			}
		}
	}
}
