package oracle

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// checkpoint adds a whole checkpoint of a set, which ends a transaction.
func (p *page) checkpoint(set int64, known ...knownSince) {
	p.log = append(p.log, ChangelogItem{Next: int64(len(p.inputs)), whole: true, set: set, known: known})
}

// TestLedgerFollowsAChangedWindow: set 2 makes the window of a namespace three hours instead of
// one. Which of two events of a key is allowed depends on the set of the checkpoint and on what
// it says the task knows.
func TestLedgerFollowsAChangedWindow(t *testing.T) {
	sets := []Set{
		{Number: 1, Windows: []NamespaceWindow{{0, hour, hour / 6}}},
		{Number: 2, Windows: []NamespaceWindow{{0, 3 * hour, hour / 6}}},
	}
	for name, c := range map[string]struct {
		plant func(p *page)
		want  string // how the one finding begins; "" for none
	}{
		"two hours apart, before the change": {func(p *page) {
			p.first(plain, "x", p.stream)
			p.first(plain, "x", p.stream+2*hour)
			p.checkpoint(1)
		}, ""},
		"two hours apart, after the change": {func(p *page) {
			p.first(plain, "x", p.stream)
			p.checkpoint(2)
			p.first(plain, "x", p.stream+2*hour)
			p.log = append(p.log, ChangelogItem{Next: int64(len(p.inputs))}) // a partial one
		}, "K1 changelog"},
		"two hours apart, in the first transaction after the change": {func(p *page) {
			p.first(plain, "x", p.stream)
			p.checkpoint(1)
			p.first(plain, "x", p.stream+2*hour)
			p.checkpoint(2)
		}, "K1 changelog"},
		"the row was not known": {func(p *page) {
			p.first(plain, "x", p.stream)
			p.checkpoint(1)
			p.first(plain, "x", p.stream+2*hour)
			p.checkpoint(2, knownSince{0, p.stream + 1, p.stream + 1})
		}, ""},
		"the row was just known": {func(p *page) {
			p.first(plain, "x", p.stream)
			p.checkpoint(1)
			p.first(plain, "x", p.stream+2*hour)
			p.checkpoint(2, knownSince{0, p.stream, p.stream})
		}, "K1 changelog"},
		"a duplicate two hours later": {func(p *page) {
			p.first(plain, "x", p.stream)
			p.checkpoint(2)
			p.again(plain, "x", p.stream+2*hour)
		}, ""},
		"a duplicate after both windows": {func(p *page) {
			p.first(plain, "x", p.stream)
			p.checkpoint(2)
			p.again(plain, "x", p.stream+4*hour)
		}, "K2 about"},
		"late by the former window": {func(p *page) {
			p.lateBefore = p.stream - hour
			at := p.send(plain, "x", p.stream-2*hour)
			p.about(plain, "x", "late", "the window has changed", at, p.stream-2*hour)
		}, ""},
		"late for its own source by the former window": {func(p *page) {
			p.front = p.stream + 3*hour
			at := p.send(plain, "x", p.stream+hour)
			p.about(plain, "x", "late", "its source had come to", at, p.stream+hour)
			p.checkpoint(1)
			p.checkpoint(2)
		}, ""},
		"late by neither": {func(p *page) {
			at := p.send(plain, "x", p.stream-2*hour)
			p.about(plain, "x", "late", "the window has changed", at, p.stream-2*hour)
		}, "K2 raw"},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(50) {
				p := newPage()
				p.cfg.Sets = sets
				p.cfg.Routes[plain].Window = 3 * hour
				c.plant(p)
				found := p.audit(NewLedger(p.cfg), rand.New(rand.NewPCG(seed, 3)))
				if c.want == "" && len(found) > 0 || c.want != "" && (len(found) != 1 || !strings.HasPrefix(found[0], c.want)) {
					t.Fatalf("run %d: found %q, want %q", seed, found, c.want)
				}
			}
		})
	}
}

// TestLedgerCountsAnEventOnceWhereWindowsDiffer: an event two hours after the first one of its key was
// unique by the shorter window. It is no duplicate as well, in whatever order row and event are read.
func TestLedgerCountsAnEventOnceWhereWindowsDiffer(t *testing.T) {
	for seed := range uint64(50) {
		p := newPage()
		p.cfg.Sets = []Set{{1, []NamespaceWindow{{dropping, hour, hour / 6}}}, {2, []NamespaceWindow{{dropping, 3 * hour, hour / 6}}}}
		p.first(dropping, "x", p.stream)
		p.first(dropping, "x", p.stream+2*hour)
		p.checkpoint(1)
		p.again(dropping, "x", p.stream+2*hour+1)
		p.checkpoint(2)
		l := NewLedger(p.cfg)
		if found := p.audit(l, rand.New(rand.NewPCG(seed, 6))); len(found) > 0 {
			t.Fatalf("run %d: found %q", seed, found)
		}
		if got := l.routes[dropping]; got.Inputs != 3 || got.Unique != 2 || got.Duplicates != 1 {
			t.Fatalf("run %d: counted %+v, want 3 inputs, 2 unique and a duplicate", seed, got)
		}
	}
}

// TestLedgerTakesSeeds: the row of a seed has neither an event nor an output, and its copies are
// duplicates.
func TestLedgerTakesSeeds(t *testing.T) {
	for seed := range uint64(50) {
		p := newPage()
		p.store(plain, "x", p.stream, Position{Topic: seedTopic, Offset: 7}, 0)
		p.again(plain, "x", p.stream+5)
		p.first(plain, "x", p.stream+2*hour)
		if found := p.audit(NewLedger(p.cfg), rand.New(rand.NewPCG(seed, 4))); len(found) > 0 {
			t.Fatalf("run %d: found %q", seed, found)
		}
	}
	item := ReadChangelog(&Record{Key: []byte("seeds/0123456789abcdef0123"), Value: []byte{1, 0, 0, 0, 0, 0, 0}}, Position{})
	if item.Wrong != "" || len(item.Rows) > 0 {
		t.Errorf("counts of seeds: %+v", item)
	}
}

// TestLedgerKeepsRoutesByName: the state of a ledger is read by one whose routes are in another
// order, and what it knows of a task is kept.
func TestLedgerKeepsRoutesByName(t *testing.T) {
	p := newPage()
	p.to = 1
	p.about(dropping, "x", "late", "event time cannot be judged", Position{Offset: 3}, p.stream-2*hour)
	p.checkpoint(4, knownSince{1, 5, -6})
	l := NewLedger(p.cfg)
	if found := p.audit(l, rand.New(rand.NewPCG(1, 5))); len(found) > 0 {
		t.Fatal(found)
	}
	next := p.cfg
	next.Routes = []LedgerRoute{p.cfg.Routes[dropping], p.cfg.Routes[plain]}
	var horizons [256]int64
	l, err := RestoreLedger(next, l.AppendState(nil, &horizons))
	if err != nil {
		t.Fatal(err)
	}
	if f := l.fates[Position{Offset: 3}]; f == nil || f.Route != 0 {
		t.Errorf("the record that waits: %+v", f)
	}
	if task := l.tasks[Position{}]; task == nil || task.set != 4 || len(task.known) != 1 || task.known[0] != (knownSince{1, 5, -6}) {
		t.Errorf("the task: %+v", task)
	}
}
