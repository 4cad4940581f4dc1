package app

import (
	"slices"
	"testing"

	"oncebus/dedup/rules"
)

// TestFindReadsInputsOnly requires no rights on output, duplicates and dead-letter
// topics, because the ingress and the inspector have none.
func TestFindReadsInputsOnly(t *testing.T) {
	routes, err := rules.ParseRoutes("routes.yaml", []byte(`routes:
  - {name: a, topics: [in], key: [raw], window: 1h, output: out, duplicates: {to: again}, dead_letter: dead}
`))
	if err != nil {
		t.Fatal(err)
	}
	if got := newFound("app", routes).Topology.external(); !slices.Equal(got, []string{"in"}) {
		t.Errorf("Find reads the metadata of %v, want the input alone", got)
	}
}
