package oracle

import (
	"slices"
	"strings"
	"testing"
)

// A plant is a fault in the story, with the invariants that must find it, and no
// others.
type plant struct {
	name    string
	change  func(w *scenario) // of the story, in all readings of it
	observe func(h *History)  // a change of one reading
	want    []string
	message string // part of one message, which names the record
}

// history returns the story with the plant in it.
func (p *plant) history() (*scenario, *History) {
	w := story()
	if p.change != nil {
		p.change(w)
	}
	h := w.end()
	if p.observe != nil {
		p.observe(h)
	}
	return w, h
}

func wantFindings(t *testing.T, plants []plant) {
	t.Helper()
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			w, h := p.history()
			report, violations := Check(w.cfg, h)
			if got := ids(t, violations); !slices.Equal(got, p.want) {
				t.Errorf("findings %v, want %v", got, p.want)
			}
			if !slices.ContainsFunc(violations, func(v Violation) bool { return strings.Contains(v.Message, p.message) }) {
				t.Errorf("no message contains %q", p.message)
			}
			for _, id := range p.want {
				if report.Violations[id] == 0 {
					t.Errorf("the report counts none of %s", id)
				}
			}
		})
	}
}

// wantNoFinding checks that Check finds nothing in histories that only look faulty.
func wantNoFinding(t *testing.T, plants []plant) {
	t.Helper()
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			w, h := p.history()
			if report, violations := Check(w.cfg, h); len(violations) > 0 {
				t.Errorf("findings %v; %v", ids(t, violations), report)
			}
		})
	}
}
