package app

import (
	"slices"
	"testing"

	"oncebus/dedup/rules"
)

// TestOutcomesOfFormerRoutesAreRead: a topology of a set has the outcomes topics of routes that
// are no more in it, because their claims may be open.
func TestOutcomesOfFormerRoutesAreRead(t *testing.T) {
	set := newRouteSet(2, &rules.Routes{}, "test")
	set.Outcomes = []FormerOutcomes{{Topic: "payments.outcomes", Route: "payments"}}
	s := &Sets{inForce: 2, all: map[int64]*RouteSet{2: set}}
	if got := s.formerOutcomes(); !slices.Equal(got, set.Outcomes) {
		t.Errorf("outcomes topics of former routes: %v, want %v", got, set.Outcomes)
	}
}
