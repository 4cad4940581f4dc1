package oracle

import (
	"slices"
	"strings"
	"testing"
)

// A plant is a fault put into the story, and the invariants that have to
// convict it: these and no others. says is part of one of the messages, which
// have to name the place.
type plant struct {
	name  string
	world func(w *world)   // while the history is made, or in all readings of it
	seen  func(h *History) // in what was observed
	want  []string
	says  string
}

// history is the story with the plant in it.
func (p *plant) history() (*world, *History) {
	w := story()
	if p.world != nil {
		p.world(w)
	}
	h := w.end()
	if p.seen != nil {
		p.seen(h)
	}
	return w, h
}

func convict(t *testing.T, plants []plant) {
	t.Helper()
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			w, h := p.history()
			report, violations := Check(w.cfg, h)
			if got := ids(t, violations); !slices.Equal(got, p.want) {
				t.Errorf("convicted by %v, want %v", got, p.want)
			}
			if !slices.ContainsFunc(violations, func(v Violation) bool { return strings.Contains(v.Message, p.says) }) {
				t.Errorf("no message says %q", p.says)
			}
			for _, id := range p.want {
				if report.Violations[id] == 0 {
					t.Errorf("the report counts none of %s", id)
				}
			}
		})
	}
}

// acquit checks that what looks like a fault but is not passes.
func acquit(t *testing.T, plants []plant) {
	t.Helper()
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			w, h := p.history()
			if report, violations := Check(w.cfg, h); len(violations) > 0 {
				t.Errorf("convicted by %v; %v", ids(t, violations), report)
			}
		})
	}
}
