package oracle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// clamping returns a page whose routes set events from the far future back.
func clamping() *page {
	p := newPage()
	for i := range p.cfg.Routes {
		p.cfg.Routes[i].Clamp, p.cfg.Routes[i].Skew = true, hour/60
	}
	return p
}

// setBack judges an event unique whose route set its time back.
func (p *page) setBack(route int32, id string, own, back int64) Position {
	at := p.send(route, id, own)
	p.store(route, id, back, at, attemptOf(route))
	p.emit(route, id, own, at, attemptOf(route))
	return at
}

// differs gives the last event and its output a content of their own.
func (p *page) differs(content uint64) {
	p.inputs[len(p.inputs)-1].Content, p.emissions[len(p.emissions)-1].Content = content, content
}

// TestLedgerTakesDuplicatesOfAnEventThatWasSetBack: by their own time they are a year after its row.
func TestLedgerTakesDuplicatesOfAnEventThatWasSetBack(t *testing.T) {
	for seed := range uint64(100) {
		p := clamping()
		p.lives("a", 10)
		now := p.stream + 4*hour
		year := now + 365*24*hour
		for _, route := range []int32{plain, dropping, claiming} {
			p.setBack(route, "x", year, now)
			p.again(route, "x", year)
			p.again(route, "x", now+hour)
			p.first(route, "y", now)
			p.again(route, "y", year) // set back into the window of an event that was not
		}
		p.lives("b", 10)
		l := NewLedger(p.cfg)
		if found := p.audit(l, rand.New(rand.NewPCG(seed, 31))); len(found) > 0 {
			t.Fatalf("run %d: %v", seed, l.Findings())
		}
	}
}

// TestLedgerMatchesOutputsOfEventsThatWereSetBack: a key has several windows, with another event in each, and the rows do not
// have the times of the outputs. Events by HTTP have no raw record that says which is whose.
func TestLedgerMatchesOutputsOfEventsThatWereSetBack(t *testing.T) {
	for seed := range uint64(100) {
		for _, http := range []bool{false, true} {
			p := clamping()
			for window := range int64(4) {
				now := p.stream + 4*window*hour
				p.setBack(plain, "x", now+5*hour, now)
				p.differs(uint64(window))
				p.first(plain, "y", now)
				p.differs(uint64(window))
				p.setBack(plain, "y", now+100*hour, now+hour+1)
				p.differs(uint64(window + 100))
			}
			if http {
				p.inputs = nil
				for i := range p.log {
					p.log[i].Rows[0].At.Topic = p.cfg.Repartition
				}
			}
			rng := rand.New(rand.NewPCG(seed, 32))
			if seed%2 == 1 { // outputs of a key may be in several partitions
				slices.SortStableFunc(p.emissions, func(a, b LedgerEmission) int { return int(a.Content%2) - int(b.Content%2) })
			}
			l := NewLedger(p.cfg)
			if found := p.audit(l, rng); len(found) > 0 {
				t.Fatalf("run %d, by HTTP %v: %v", seed, http, l.Findings())
			}
			if r := l.Report(); r.Routes[plain].Unique != 12 || r.Carried != 0 {
				t.Fatalf("run %d, by HTTP %v: %+v", seed, http, r)
			}
		}
	}
}

// TestLedgerFindsWhatIsPlantedWhereEventsAreSetBack: that a route sets events back excuses no event that it cannot have set back.
func TestLedgerFindsWhatIsPlantedWhereEventsAreSetBack(t *testing.T) {
	last := func(p *page) string { return p.emissions[len(p.emissions)-1].Where }
	input := func(p *page) string { return fmt.Sprintf("raw/0/%d", len(p.inputs)-1) }
	for name, plant := range map[string]func(p *page) string{
		"an event is lost":                 func(p *page) string { p.send(dropping, "x", p.stream); return "K2 " + input(p) },
		"an event from the future is lost": func(p *page) string { p.send(dropping, "x", p.stream+100*hour); return "K2 " + input(p) },
		"an event is lost whose key had an event a window before": func(p *page) string {
			p.first(dropping, "x", p.stream-hour)
			p.first(dropping, "y", p.stream+disorderMax+1)
			p.send(dropping, "x", p.stream+disorderMax+1)
			return "K2 " + input(p)
		},
		"a duplicate of an event that was set back is missing in its topic": func(p *page) string {
			p.setBack(plain, "x", p.stream+100*hour, p.stream)
			p.send(plain, "x", p.stream+100*hour)
			return "K2 " + input(p)
		},
		"the output of an event that was set back comes twice": func(p *page) string {
			p.setBack(plain, "x", p.stream+100*hour, p.stream)
			p.emit(plain, "x", p.stream+100*hour, Position{}, 0)
			return "K1 out"
		},
		"a value of an event that was set back is changed": func(p *page) string {
			p.setBack(plain, "x", p.stream+100*hour, p.stream)
			p.emissions[len(p.emissions)-1].Content++
			return "K3 "
		},
		"an output of an event that was not set back": func(p *page) string {
			p.emit(plain, "x", p.stream, Position{}, 0)
			return "K1 " + last(p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(50) {
				p := clamping()
				want := plant(p)
				found := p.audit(NewLedger(p.cfg), rand.New(rand.NewPCG(seed, 33)))
				if len(found) != 1 || !strings.HasPrefix(found[0], want) {
					t.Fatalf("run %d: found %q, want one that begins with %q", seed, found, want)
				}
			}
		})
	}
}

// TestLedgerKeepsFewAdvances: however many events a partition has, and in whatever order their rows are read.
func TestLedgerKeepsFewAdvances(t *testing.T) {
	p := clamping()
	rng := rand.New(rand.NewPCG(1, 34))
	l := NewLedger(p.cfg)
	for n := range int64(100_000) {
		offset := max(0, n+rng.Int64N(2000)-1000)
		l.advance(&LedgerRow{Space: plain, At: Position{Offset: offset}, First: 100*hour + 36*offset})
	}
	list := l.advanced[Position{}]
	if len(list) < 50 || len(list) > 61 {
		t.Errorf("%d entries for an hour", len(list))
	}
	for i := 1; i < len(list); i++ {
		if a, b := list[i-1], list[i]; b.offset <= a.offset || b.first < a.first+advanceStep {
			t.Errorf("%+v is before %+v", a, b)
		}
	}
}
