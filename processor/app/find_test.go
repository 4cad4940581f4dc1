package app

import (
	"slices"
	"testing"

	"oncebus/dedup/rules"
)

// TestFindAsksForNoOutputs: the ingress and the inspector have no rights on output,
// duplicates and dead-letter topics.
func TestFindAsksForNoOutputs(t *testing.T) {
	routes, err := rules.ParseRoutes("routes.yaml", []byte(`routes:
  - {name: a, topics: [in], key: [raw], window: 1h, output: out, duplicates: {to: again}, dead_letter: dead}
`))
	if err != nil {
		t.Fatal(err)
	}
	if got := newFound("app", routes).Topology.external(); !slices.Equal(got, []string{"in"}) {
		t.Errorf("Find asks for %v, want the input alone", got)
	}
}
