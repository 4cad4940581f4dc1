package oracle

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// A page is what a ledger reads of an app that judged some events: one list for each stream.
type page struct {
	cfg       LedgerConfig
	inputs    []LedgerInput
	log       []ChangelogItem
	emissions []LedgerEmission
	outcomes  []LedgerOutcome
	replies   []LedgerReply
	stream    int64
	// lateBefore is that of a changed window, and front what the sources have come to; 0 for none.
	lateBefore, front int64
	// ends of the range: below them inputs were judged; 0 for all.
	from, to int64
}

const (
	plain, dropping, claiming = 0, 1, 2
	hour                      = int64(3600_000)
)

func newPage() *page {
	return &page{stream: 100 * hour, cfg: LedgerConfig{
		Names: []string{"raw", "repartition"}, Repartition: 1, HasRepartition: true,
		Routes: []LedgerRoute{
			{Name: "plain", NamespaceID: 0, Window: hour, Grace: hour / 6, Duplicates: To, Late: DeadLetter, MissingKey: DeadLetter},
			{Name: "dropping", NamespaceID: 1, Window: hour, Grace: hour / 6, Duplicates: Drop, Late: Drop, MissingKey: Drop},
			{Name: "claiming", NamespaceID: 2, Window: hour, Grace: hour / 6, Duplicates: Drop, Late: DeadLetter, MissingKey: DeadLetter, Claims: true},
		},
	}}
}

func (p *page) InRange(at Position) bool { return at.Topic == 0 && at.Offset >= p.from }
func (p *page) Judged(at Position) bool {
	return p.InRange(at) && (p.to == 0 || at.Offset < p.to)
}
func (p *page) StreamTime(Position, uint8) (int64, bool)        { return p.stream, true }
func (p *page) Reached(Position, uint8, Position) (int64, bool) { return p.front, p.front != 0 }
func (p *page) LateBefore(Position, uint8) (int64, bool)        { return p.lateBefore, p.lateBefore != 0 }

func keyed(route int32, id string) [16]byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d/%s", route, id))
	return [16]byte(sum[:16])
}

func contentOf(id string) uint64 { return uint64(len(id))*31 + uint64(id[len(id)-1]) }

// send adds an input and returns its position.
func (p *page) send(route int32, id string, time int64) Position {
	at := Position{Offset: int64(len(p.inputs))}
	p.inputs = append(p.inputs, LedgerInput{At: at, Route: route, Digests: [][16]byte{keyed(route, id)}, Time: time, Content: contentOf(id)})
	return at
}

func (p *page) place(topic string) string { return fmt.Sprintf("%s/0/%d", topic, len(p.emissions)) }

// store adds the row of an event.
func (p *page) store(route int32, id string, time int64, at Position, attempt uint32) {
	where := fmt.Sprintf("changelog/0/%d", len(p.log))
	row := LedgerRow{Digest: keyed(route, id), Space: uint8(route), First: time, At: at, Attempt: attempt, Certain: true, Where: where}
	p.log = append(p.log, ChangelogItem{Rows: []LedgerRow{row}, Next: -1, Where: where})
}

// emit adds the output of a first event.
func (p *page) emit(route int32, id string, time int64, at Position, attempt uint32) {
	p.emissions = append(p.emissions, LedgerEmission{
		Where: p.place("out"), Route: route, Verdict: "unique", Digests: [][16]byte{keyed(route, id)}, Keys: []LedgerKey{{keyed(route, id), time, route}},
		Claim: attempt > 0, ClaimAt: at, Attempt: attempt, Content: contentOf(id),
	})
}

// about adds a record that names an event.
func (p *page) about(route int32, id, verdict, reason string, at Position, _ int64) {
	p.emissions = append(p.emissions, LedgerEmission{
		Where: p.place("about"), Route: route, Verdict: verdict, Named: true, Source: at, SourceLast: at.Offset, Dead: verdict != "duplicate", Reason: reason,
		Digests: [][16]byte{keyed(route, id)},
	})
}

func attemptOf(route int32) uint32 {
	if route == claiming {
		return 1
	}
	return 0
}

// first judges an event unique.
func (p *page) first(route int32, id string, time int64) Position {
	at := p.send(route, id, time)
	p.store(route, id, time, at, attemptOf(route))
	p.emit(route, id, time, at, attemptOf(route))
	return at
}

// earlier judges an event unique that lies before the window of its key's row.
func (p *page) earlier(route int32, id string, time int64) {
	at := p.send(route, id, time)
	p.store(route, id, time, at, 0)
	p.log[len(p.log)-1].Rows[0].Earlier = true
	p.emit(route, id, time, at, 0)
}

// again judges an event a duplicate.
func (p *page) again(route int32, id string, time int64) {
	if at := p.send(route, id, time); route == plain {
		p.about(route, id, "duplicate", "duplicate", at, time)
	}
}

// lives adds an ordinary life of n keys of each route.
func (p *page) lives(name string, n int) {
	for i := range n {
		for route := range int32(3) {
			id, now := fmt.Sprintf("%s-%d", name, i), p.stream+int64(i)
			p.first(route, id, now)
			for copies := range 1 + i%4 {
				p.again(route, id, now+5+int64(copies))
				p.again(route, id, now-hour/2)
			}
			if route != claiming {
				p.first(route, id, now+hour+1) // after its window
			}
		}
	}
	at := p.send(plain, name+" late", p.stream-2*hour)
	p.about(plain, name+" late", "late", "event time cannot be judged", at, p.stream-2*hour)
	p.send(dropping, name+" late", p.stream-2*hour)
	for route := range int32(3) {
		p.missingKey(route, route != dropping)
	}
	at = p.first(claiming, name+" result", p.stream)
	digest := keyed(claiming, name+" result")
	p.outcomes = append(p.outcomes, LedgerOutcome{Digest: digest, Attempt: 1, Content: 7})
	p.store(claiming, name+" result", p.stream, at, 1) // completed
	p.replies = append(p.replies, LedgerReply{Where: "replies/0/0", Route: claiming, Digests: [][16]byte{digest}, Attempt: 1, Content: 7})
	earlier := name + " earlier"
	p.first(plain, earlier, p.stream+3*hour)
	p.earlier(plain, earlier, p.stream)
	p.again(plain, earlier, p.stream+5)
	p.again(plain, earlier, p.stream+3*hour)
	erased := name + " erased"
	p.first(plain, erased, p.stream)
	p.log = append(p.log, ChangelogItem{Next: -1, Rows: []LedgerRow{{Digest: keyed(plain, erased), First: p.stream, Freed: true}}})
	p.first(plain, erased, p.stream+1)
}

func (p *page) missingKey(route int32, emitted bool) {
	at := Position{Offset: int64(len(p.inputs))}
	p.inputs = append(p.inputs, LedgerInput{At: at, Route: route, Missing: true, Time: p.stream})
	if emitted {
		p.emissions = append(p.emissions, LedgerEmission{Where: p.place("dead"), Route: route, Verdict: "missing_key", Named: true, Source: at, SourceLast: at.Offset, Dead: true, Reason: "no key"})
	}
}

// read has a ledger read the page, the streams in any order but each in its own.
func (p *page) read(l *Ledger, rng *rand.Rand) {
	l.Begin(p, false)
	steps := []func(int){
		func(i int) { l.Input(&p.inputs[i]) }, func(i int) { l.Changelog(&p.log[i]) }, func(i int) { l.Emitted(&p.emissions[i]) },
		func(i int) { l.Outcome(&p.outcomes[i]) }, func(i int) { l.Reply(&p.replies[i]) },
	}
	ends := []int{len(p.inputs), len(p.log), len(p.emissions), len(p.outcomes), len(p.replies)}
	at := make([]int, len(ends))
	for left := true; left; {
		n := rng.IntN(len(steps))
		for range 1 + rng.IntN(40) {
			if at[n] < ends[n] {
				steps[n](at[n])
				at[n]++
			}
		}
		left = !slices.Equal(at, ends)
	}
}

// audit returns the findings as text, "K1 place", sorted.
func (p *page) audit(l *Ledger, rng *rand.Rand) []string {
	p.read(l, rng)
	l.Close()
	var found []string
	for _, f := range l.Findings() {
		found = append(found, f.Invariant+" "+f.At)
	}
	slices.Sort(found)
	return found
}

// TestLedgerFindsNothingInCleanPages: in whatever order between the streams.
func TestLedgerFindsNothingInCleanPages(t *testing.T) {
	for seed := range uint64(200) {
		p := newPage()
		p.lives("a", 20)
		if found := p.audit(NewLedger(p.cfg), rand.New(rand.NewPCG(seed, 0))); len(found) > 0 {
			t.Fatalf("run %d: %v", seed, found)
		}
	}
}

// TestLedgerFindsWhatIsPlanted: each violation, in whatever order between the streams, and
// nothing else.
func TestLedgerFindsWhatIsPlanted(t *testing.T) {
	last := func(p *page) string { return p.emissions[len(p.emissions)-1].Where }
	input := func(p *page) string { return fmt.Sprintf("raw/0/%d", len(p.inputs)-1) }
	row := func(p *page) string { return fmt.Sprintf("changelog/0/%d", len(p.log)-1) }
	for name, plant := range map[string]func(p *page) string{
		"an event is lost": func(p *page) string { p.send(plain, "x", p.stream); return "K2 " + input(p) },
		"an output is lost": func(p *page) string {
			p.store(plain, "x", p.stream, p.send(plain, "x", p.stream), 0)
			return "K2 " + row(p)
		},
		"an output comes twice": func(p *page) string {
			p.emit(plain, "x", p.stream, p.first(plain, "x", p.stream), 0)
			return "K1 " // either one
		},
		"an output without an event": func(p *page) string { p.emit(plain, "x", p.stream, Position{}, 0); return "K1 " + last(p) },
		"a duplicate is judged unique": func(p *page) string {
			p.first(plain, "x", p.stream)
			p.first(plain, "x", p.stream+5)
			return "K1 " + row(p)
		},
		"a duplicate is dropped without a first event": func(p *page) string { p.send(dropping, "x", p.stream); return "K2 " + input(p) },
		"a duplicate is dropped after the window of its first event": func(p *page) string {
			p.first(dropping, "x", p.stream)
			p.send(dropping, "x", p.stream+hour+1)
			return "K2 " + input(p)
		},
		"an event of an earlier window comes out twice": func(p *page) string {
			p.first(plain, "x", p.stream+3*hour)
			p.earlier(plain, "x", p.stream)
			p.emit(plain, "x", p.stream, Position{}, 0)
			return "K1 out"
		},
		"an event within the window of a later one is taken for one of an earlier window": func(p *page) string {
			p.first(plain, "x", p.stream+hour)
			p.earlier(plain, "x", p.stream)
			return "K1 " + row(p)
		},
		"a duplicate is missing in its topic": func(p *page) string {
			p.first(plain, "x", p.stream)
			p.send(plain, "x", p.stream+5)
			return "K2 " + input(p)
		},
		"a duplicate in its topic without a first event": func(p *page) string {
			p.about(plain, "x", "duplicate", "duplicate", p.send(plain, "x", p.stream), p.stream)
			return "K2 " + last(p)
		},
		"a dead letter that was not late": func(p *page) string {
			p.about(plain, "x", "late", "event time cannot be judged", p.send(plain, "x", p.stream), p.stream)
			return "K2 " + input(p)
		},
		"a dead letter without a cause": func(p *page) string {
			p.about(plain, "x", "missing_key", "no key", p.send(plain, "x", p.stream), p.stream)
			return "K2 " + last(p)
		},
		"a dead letter of a unique event": func(p *page) string {
			p.about(plain, "x", "missing_key", "no key", p.first(plain, "x", p.stream), p.stream)
			return "K1 " + last(p)
		},
		"a dead letter comes twice": func(p *page) string {
			at := p.send(plain, "x", p.stream-2*hour)
			p.about(plain, "x", "late", "event time cannot be judged", at, p.stream-2*hour)
			p.about(plain, "x", "late", "event time cannot be judged", at, p.stream-2*hour)
			return "K1 " + last(p)
		},
		"an event without a key is lost": func(p *page) string { p.missingKey(plain, false); return "K2 " + input(p) },
		"a value is changed": func(p *page) string {
			p.first(plain, "x", p.stream)
			p.emissions[len(p.emissions)-1].Content++
			return "K3 " // event or output, whichever came second
		},
		"an attempt is dispatched twice": func(p *page) string {
			p.emit(claiming, "x", p.stream, p.first(claiming, "x", p.stream), 1)
			return "K1 "
		},
		"an attempt is never dispatched": func(p *page) string {
			p.store(claiming, "x", p.stream, p.send(claiming, "x", p.stream), 1)
			return "K2 " + row(p)
		},
		"a dispatch without a claim": func(p *page) string { p.emit(claiming, "x", p.stream, Position{}, 1); return "K1 " + last(p) },
		"a claim is kept for its outcome, and dispatched twice": func(p *page) string {
			at := p.first(claiming, "x", p.stream)
			next := p.send(claiming, "x", p.stream+hour+1)
			former := formerDigest(keyed(claiming, "x"), 1)
			p.log = append(p.log, ChangelogItem{Next: -1, Rows: []LedgerRow{
				{Digest: former, Space: claiming, First: p.stream, At: at, Attempt: 1, Certain: true},
				{Digest: keyed(claiming, "x"), Space: claiming, First: p.stream + hour + 1, At: next, Attempt: 2, Certain: true},
				{Digest: former, Space: claiming, First: p.stream, At: at, Attempt: 1, Certain: true},
			}})
			p.emit(claiming, "x", p.stream+hour+1, next, 2)
			p.emit(claiming, "x", p.stream, at, 1)
			return "K1 "
		},
		"a reply has another result": func(p *page) string { p.replies[0].Content++; return "K3 replies/0/0" },
		"a checkpoint goes back": func(p *page) string {
			p.log = append(p.log, ChangelogItem{Next: 7}, ChangelogItem{Next: 6})
			return "K10 "
		},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(50) {
				p := newPage()
				p.lives("a", 10)
				want := plant(p)
				p.lives("b", 10)
				found := p.audit(NewLedger(p.cfg), rand.New(rand.NewPCG(seed, 1)))
				if len(found) != 1 || !strings.HasPrefix(found[0], want) {
					t.Fatalf("run %d: found %q, want one that begins with %q", seed, found, want)
				}
			}
		})
	}
}

// TestLedgerProvesALateEventByItsSource: an event before stream time is late if its own source had
// come much further, and its duplicates are none the less duplicates.
func TestLedgerProvesALateEventByItsSource(t *testing.T) {
	for seed := range uint64(50) {
		for _, front := range []int64{hour + hour/6, hour + hour/6 + 1} {
			p := newPage()
			p.front = p.stream + front
			p.lives("a", 10)
			at := p.send(plain, "x", p.stream)
			p.about(plain, "x", "late", "its source had come to", at, p.stream)
			found := p.audit(NewLedger(p.cfg), rand.New(rand.NewPCG(seed, 12)))
			if proved := front > hour+hour/6; proved != (len(found) == 0) || !proved && (len(found) != 1 || !strings.HasPrefix(found[0], "K2 raw")) {
				t.Fatalf("run %d: the source was %d ms later: found %q", seed, front, found)
			}
		}
	}
}

// TestLedgerGoesOnFromItsState: a range ends anywhere, with records of it still to follow.
func TestLedgerGoesOnFromItsState(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 2))
		p := newPage()
		p.lives("a", 10)
		all := *p
		// The rows reach further than the outputs, and those further than the inputs.
		cut := len(all.inputs) / 2
		p.to = int64(cut)
		rows := slices.IndexFunc(all.log, func(item ChangelogItem) bool { return len(item.Rows) > 0 && item.Rows[0].At.Offset >= int64(cut)+10 })
		outs := slices.IndexFunc(all.emissions, func(e LedgerEmission) bool { return max(e.ClaimAt.Offset, e.Source.Offset) >= int64(cut)+5 })
		p.inputs, p.log, p.emissions = all.inputs[:cut], all.log[:rows], all.emissions[:outs]
		for i := range p.log {
			for j := range p.log[i].Rows {
				row := &p.log[i].Rows[j]
				row.Certain = row.At.Offset < int64(cut)
			}
		}
		l := NewLedger(all.cfg)
		if found := p.audit(l, rng); len(found) > 0 {
			t.Fatalf("run %d, first range: %v", seed, found)
		}
		var horizons [256]int64
		l, err := RestoreLedger(all.cfg, l.AppendState(nil, &horizons))
		if err != nil {
			t.Fatal(err)
		}
		formers := 0
		for _, firsts := range l.former {
			formers += len(firsts)
		}
		if l.open != l.Report().Carried || l.formers != formers {
			t.Fatalf("run %d: %d records wait of %d, %d former times of %d", seed, l.open, l.Report().Carried, l.formers, formers)
		}
		next := &page{cfg: all.cfg, stream: all.stream, from: int64(cut), inputs: all.inputs[cut:], log: all.log[rows:], emissions: all.emissions[outs:]}
		for i := range next.log {
			for j := range next.log[i].Rows {
				next.log[i].Rows[j].Certain = true
			}
		}
		if found := next.audit(l, rng); len(found) > 0 {
			t.Fatalf("run %d, second range: %v", seed, found)
		}
	}
}

// TestLedgerCarriesDeadLettersAheadOfTheirEvents: the dead letter is in the range of one audit, and
// its event in that of the next.
func TestLedgerCarriesDeadLettersAheadOfTheirEvents(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 4))
	p := newPage()
	p.lives("a", 3)
	cut := len(p.inputs)
	p.missingKey(plain, true)
	all := *p
	p.to, p.inputs = int64(cut), all.inputs[:cut]
	l := NewLedger(all.cfg)
	if found := p.audit(l, rng); len(found) > 0 || len(l.fates) != 1 {
		t.Fatalf("first range: %v, %d records wait for their events", found, len(l.fates))
	}
	var horizons [256]int64
	l, err := RestoreLedger(all.cfg, l.AppendState(nil, &horizons))
	if err != nil {
		t.Fatal(err)
	}
	next := &page{cfg: all.cfg, stream: all.stream, from: int64(cut), inputs: all.inputs[cut:]}
	if found := next.audit(l, rng); len(found) > 0 {
		t.Errorf("second range: %v", found)
	}
}

// TestLedgerFollowsASampleBeyondItsBound: it finds nothing in a clean page, stays within its
// bound, and still matches all outputs.
func TestLedgerFollowsASampleBeyondItsBound(t *testing.T) {
	for seed := range uint64(20) {
		p := newPage()
		p.cfg.Keys = 50
		p.lives("a", 100)
		p.emit(plain, "x", p.stream, p.first(plain, "x", p.stream), 0)
		p.lives("b", 100)
		l := NewLedger(p.cfg)
		found := p.audit(l, rand.New(rand.NewPCG(seed, 3)))
		if len(found) != 1 || !strings.HasPrefix(found[0], "K1 out") {
			t.Errorf("run %d: %v", seed, found)
		}
		if r := l.Report(); r.Keys > 50 || r.OneIn < 8 || r.OneInMatched != 1 {
			t.Errorf("run %d: %+v", seed, r)
		}
	}
}

// TestLedgerBoundsWhatWaits: even if a topic is empty.
func TestLedgerBoundsWhatWaits(t *testing.T) {
	p := newPage()
	p.cfg.Open = 100
	p.lives("a", 1000)
	p.emissions = nil
	l := NewLedger(p.cfg)
	p.read(l, rand.New(rand.NewPCG(1, 4)))
	if l.open > 150 || l.Report().OneInMatched < 8 {
		t.Errorf("%d records wait, %+v", l.open, l.Report())
	}
	l.Close()
	if l.counts["K2"] == 0 {
		t.Error("no output at all, and no finding")
	}
}

// TestLedgerReadsTheRowsOfTheOracle: packs and single rows.
func TestLedgerReadsRowsAndPacks(t *testing.T) {
	earlier := ofEarlier(digest(bytes16("a")), row{first: 12000, at: position{3, 2, 78}, namespaceID: 4, link: beforeKnown, before: 9})
	item := ReadChangelog(&Record{Topic: "log", Offset: 8, Key: earlier.digest[:], Value: earlier.row.value(nil)}, Position{})
	if item.Wrong != "" || len(item.Rows) != 1 || !item.Rows[0].Earlier || item.Rows[0].Digest != digest(bytes16("a")) || item.Rows[0].First != 12000 {
		t.Errorf("%+v", item)
	}
	earlier.row.again = true
	if item := ReadChangelog(&Record{Key: earlier.digest[:], Value: earlier.row.value(nil)}, Position{}); item.Wrong != "" || len(item.Rows) > 0 {
		t.Errorf("a row that was stored before: %+v", item)
	}
	want := row{first: 12345, at: position{3, 2, 77}, namespaceID: 4}
	single := &Record{Topic: "log", Offset: 9, Key: bytes16("a"), Value: want.value(nil)}
	item = ReadChangelog(single, Position{})
	if item.Wrong != "" || len(item.Rows) != 1 || item.Rows[0].First != 12345 || item.Rows[0].At != (Position{3, 2, 77}) || item.Rows[0].Where != "log/0/9" {
		t.Errorf("%+v", item)
	}
	for _, bad := range []*Record{{Key: []byte("short"), Value: []byte{1}}, {Key: bytes16("a"), Value: []byte{2, 0, 0, 0, 0}}, {Key: []byte("rows/123456789012"), Value: []byte{1, 2}}, {Key: []byte("checkpoint"), Value: []byte{9}}} {
		if item := ReadChangelog(bad, Position{}); item.Wrong == "" {
			t.Errorf("%q=%x was read: %+v", bad.Key, bad.Value, item)
		}
	}
	if _, err := RestoreLedger(LedgerConfig{}, []byte{1, 2, 3}); err == nil {
		t.Error("a cut state was read")
	}
}

func bytes16(s string) []byte { return []byte(strings.Repeat(s, 16)) }

// BenchmarkLedger has one event of which each 3rd is a duplicate, read in step.
func BenchmarkLedger(b *testing.B) {
	p := newPage()
	l := NewLedger(p.cfg)
	l.Begin(p, false)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		id := n - n%3/2*2 // each third one is the one before the one before
		digest := sha256.Sum256(fmt.Appendf(nil, "%d", id))
		at := Position{Offset: int64(n)}
		in := LedgerInput{At: at, Digests: [][16]byte{[16]byte(digest[:16])}, Time: p.stream, Content: 1, Route: dropping}
		l.Input(&in)
		if id != n {
			continue
		}
		item := ChangelogItem{Next: -1, Rows: []LedgerRow{{Digest: in.Digests[0], Space: dropping, First: p.stream, At: at, Certain: true}}}
		l.Changelog(&item)
		out := LedgerEmission{Route: dropping, Verdict: "unique", Digests: in.Digests, Keys: []LedgerKey{{in.Digests[0], p.stream, dropping}}, Content: 1}
		l.Emitted(&out)
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/float64(len(l.keys)), "heap-B/key")
	if l.Close(); len(l.found) > 0 {
		b.Error(l.found[0])
	}
}

// TestLedgerEndsWhenFewerKeysDropNothing: dead letters of events without a key are in every
// sample, however many of them come before their events.
func TestLedgerEndsWhenFewerKeysDropNothing(t *testing.T) {
	p := newPage()
	p.cfg.Open = 20
	for range 100 {
		p.missingKey(plain, true)
	}
	p.lives("a", 100)
	l := NewLedger(p.cfg)
	l.Begin(p, false)
	for i := range p.emissions {
		l.Emitted(&p.emissions[i])
	}
	for i := range p.inputs {
		l.Input(&p.inputs[i])
	}
	for i := range p.log {
		l.Changelog(&p.log[i])
	}
	if r := l.Close(); len(l.Findings()) > 0 || r.OneInMatched > 1<<10 {
		t.Errorf("%v, %+v", l.Findings(), r)
	}
}

// TestLedgerCountsTheCopiesOfAKeyThatItDrops: many of one key wait for its row.
func TestLedgerCountsTheCopiesOfAKeyThatItDrops(t *testing.T) {
	p := newPage()
	p.cfg.Open = 50
	for route := range int32(2) {
		p.first(route, "hot", p.stream)
		for range 200 {
			p.again(route, "hot", p.stream+1)
		}
	}
	p.lives("a", 5)
	l := NewLedger(p.cfg)
	l.Begin(p, false)
	for i := range p.inputs {
		l.Input(&p.inputs[i])
		if counted := l.open; i%50 == 0 {
			if l.recount(); l.open != counted {
				t.Fatalf("%d records were counted after input %d, and %d wait", counted, i, l.open)
			}
		}
	}
	for i := range p.log {
		l.Changelog(&p.log[i])
	}
	for i := range p.emissions {
		l.Emitted(&p.emissions[i])
	}
	if r := l.Close(); len(l.Findings()) > 0 || r.OneInMatched > 1<<10 {
		t.Errorf("%v, %+v", l.Findings(), r)
	}
}

// TestLedgerTakesARejectedEventAfterItsWindow: it has no row, and a first event whose row was
// kept. Without the setting it is lost.
func TestLedgerTakesARejectedEventAfterItsWindow(t *testing.T) {
	for seed := range uint64(100) {
		p := newPage()
		p.lives("a", 20)
		for _, route := range []int32{plain, dropping, claiming} {
			p.cfg.Routes[route].RejectsAfterWindow = seed%2 == 0
			id := fmt.Sprintf("again-%d", route)
			p.first(route, id, p.stream)
			p.again(route, id, p.stream+3*hour/2)
		}
		l := NewLedger(p.cfg)
		p.read(l, rand.New(rand.NewPCG(seed, 23)))
		l.Close()
		if found := l.Findings(); (len(found) == 0) != (seed%2 == 0) {
			t.Fatalf("run %d: %v", seed, found)
		}
	}
}

// TestLedgerMatchesAnOutputOfTwoRoutes: a record of it has a key by each route, and may have another time. Its row says whose it is, also
// where only a sample of the keys is followed.
func TestLedgerMatchesAnOutputOfTwoRoutes(t *testing.T) {
	for seed := range uint64(100) {
		p := newPage()
		if seed%2 == 1 {
			p.cfg.Open = 20
		}
		for n := range 100 {
			route, id := int32(n%2), fmt.Sprintf("k%d", n)
			p.first(route, id, p.stream+int64(n))
			out, other := &p.emissions[len(p.emissions)-1], 1-route
			out.Route = plain // the first that derives a key
			out.Keys = append(out.Keys, LedgerKey{keyed(other, id), p.stream - hour, other}, LedgerKey{keyed(route, id), p.stream - hour, route})
			out.Digests = append(out.Digests, keyed(other, id))
			slices.SortFunc(out.Keys, func(a, b LedgerKey) int { return cmp.Compare(a.Route, b.Route) })
		}
		l := NewLedger(p.cfg)
		p.read(l, rand.New(rand.NewPCG(seed, 21)))
		r := l.Close()
		if found := l.Findings(); len(found) > 0 {
			t.Fatalf("run %d: %v", seed, found)
		}
		if r.OneInMatched == 1 && (r.Routes[plain].Unique != 50 || r.Routes[dropping].Unique != 50) {
			t.Fatalf("run %d: %+v", seed, r.Routes[:2])
		}
		if r.Routes[plain].Unique+r.Routes[dropping].Unique != 100 {
			t.Fatalf("run %d: an output was not counted, or twice: %+v", seed, r.Routes[:2])
		}
	}
}

// TestLedgerTakesAnEventBeforeItsKey: it is late for a later event of its key, and by what was read it may have been a duplicate of an
// earlier one. An event that came out is not late too.
func TestLedgerTakesAnEventBeforeItsKey(t *testing.T) {
	for seed := range uint64(100) {
		for _, cameOut := range []bool{false, true} {
			p := newPage()
			p.cfg.Routes[dropping].Late = DeadLetter
			first := p.first(dropping, "x", p.stream)
			p.first(dropping, "x", p.stream+2*hour)
			at := p.send(dropping, "x", p.stream)
			if cameOut {
				at = first
			}
			reason := fmt.Sprintf("event time %d cannot be judged: the first event under the key has time %d, window 1h0m0s", p.stream, p.stream+2*hour)
			p.about(dropping, "x", "late", reason, at, p.stream)
			l := NewLedger(p.cfg)
			found := p.audit(l, rand.New(rand.NewPCG(seed, 22)))
			got := l.Report().Routes[dropping]
			switch {
			case cameOut && (len(found) != 1 || !strings.HasPrefix(found[0], "K1")):
				t.Fatalf("run %d: found %q of an event with two fates", seed, found)
			case !cameOut && (len(found) > 0 || got.DeadLetters != 1 || got.Duplicates != 0):
				t.Fatalf("run %d: %v, %+v", seed, found, got)
			}
		}
	}
}

// TestLedgerReadsAFormerState: a position that the build before this one saved is no reason to begin again.
func TestLedgerReadsAFormerState(t *testing.T) {
	p := newPage()
	p.first(plain, "x", p.stream)
	l := NewLedger(p.cfg)
	p.audit(l, rand.New(rand.NewPCG(1, 1)))
	state := l.AppendState(nil, &[256]int64{})
	state[0] = ledgerVersion - 1 // without a row in former they are alike
	restored, err := RestoreLedger(p.cfg, state)
	if err != nil || len(restored.keys) != 1 {
		t.Fatalf("%v, %+v", err, restored)
	}
	state[0] = ledgerVersion - 2
	if _, err := RestoreLedger(p.cfg, state); err == nil {
		t.Error("a state of an unknown version was read")
	}
}
