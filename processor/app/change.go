package app

import (
	"context"
	"errors"
	"slices"

	"oncebus/dedup/routesets"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// ApplyOptions is what an operator says about a routes file to apply.
type ApplyOptions struct {
	Yes    bool     // also apply changes that an operator has to confirm
	Forget []string // namespaces whose stored keys the operator gives up
	By     string   // who applies the file, for people to read
	// OpenClaims returns the numbers of open claims by namespace. Apply calls it only if a route that is no
	// longer in force has an outcomes topic that may not be needed any more. If OpenClaims is nil or returns a
	// nil map, all such topics stay.
	OpenClaims func(context.Context) (map[string]uint64, error)
}

// Applied is the result of Apply, or of a plan.
type Applied struct {
	Plan
	// Set is the number of the set in force. Written reports whether Apply wrote this set.
	Set     int64 `json:"set"`
	Written bool  `json:"written"`
	// Windows says from when on changed windows are fully in force. Only a plan has it.
	Windows []WindowPlan `json:"windows,omitempty"`
	// Former are the outcomes topics of former routes that the app still reads, until their claims end.
	Former []FormerOutcomes `json:"former_outcomes,omitempty"`
}

// Plan returns what the caller's routes file would change, and changes nothing. It returns an error where Apply
// would refuse the settings or the topics.
func (f *Found) Plan(ctx context.Context, c Conn, cfg Config, o ApplyOptions) (*Applied, error) {
	m := f.Manifest
	if err := m.refuseWithoutSets(f.Topology.App); err != nil {
		return nil, err
	}
	a := &Applied{Plan: m.plan(f.file, o.Forget), Set: m.sets.inForce}
	if a.Worst() == routesets.Refused {
		return a, nil
	}
	var err error
	if len(a.Changes) > 0 {
		var next *setup
		if next, err = (&setup{Conn: c, cfg: cfg}).applying(m, newRouteSet(a.Set+1, f.file, o.By)); err == nil {
			err = next.checkTopics(ctx, next.topology())
		}
	}
	if err == nil {
		a.Former, err = m.outcomesAfter(ctx, f.file, o)
	}
	return a, err
}

// readSetsOrRefuse reads the manifest, and returns an operator error if the app has no route sets.
func (s *setup) readSetsOrRefuse(ctx context.Context) (*Manifest, error) {
	m, err := s.readSets(ctx)
	if err == nil {
		err = m.refuseWithoutSets(s.cfg.AppID)
	}
	return m, err
}

// refuseWithoutSets returns an operator error for an app that has never run or has no route sets.
func (m *Manifest) refuseWithoutSets(app string) error {
	switch {
	case m == nil:
		return errNeverRan(app)
	case !m.hasSets():
		return kafka.OperatorErrorf("app %s is at level %d and has no route sets: run oncebus finalize once all processes have this build", app, m.level())
	}
	return nil
}

// Apply puts a routes file in force as a new route set. If the plan has changes that the options do not allow,
// Apply returns the plan and writes nothing. If another command wrote a set meanwhile, Apply plans again.
func Apply(ctx context.Context, c Conn, cfg Config, routes *rules.Routes, o ApplyOptions) (*Applied, error) {
	for {
		s := &setup{Conn: c, cfg: cfg, routes: routes}
		m, err := s.readSetsOrRefuse(ctx)
		if err != nil {
			return nil, err
		}
		a := &Applied{Plan: m.plan(routes, o.Forget), Set: m.sets.inForce}
		if worst := a.Worst(); worst == routesets.Refused || worst == routesets.Confirm && !o.Yes {
			return a, nil
		}
		if a.Former, err = m.outcomesAfter(ctx, routes, o); err != nil {
			return nil, err
		}
		if len(a.Changes) == 0 && slices.Equal(a.Former, m.sets.formerOutcomes()) {
			return a, nil
		}
		err = s.apply(ctx, m, routes, a.Former, o.By)
		if err == nil {
			a.Set, a.Written = m.sets.inForce+1, true
		}
		if !errors.Is(err, errSetsChanged) || kafka.Pause(ctx, fencedPause) != nil {
			return a, err
		}
	}
}

// outcomesAfter returns the outcomes topics of former routes that the app still has to read after it puts these
// routes in force. The result always contains the outcomes topics of the routes that are in force now: after the
// claims were counted, an event that is already routed may still open a claim. It contains the outcomes topics
// of earlier routes while these have open claims. The result is never nil.
func (m *Manifest) outcomesAfter(ctx context.Context, routes *rules.Routes, o ApplyOptions) ([]FormerOutcomes, error) {
	kept := []FormerOutcomes{}
	add := func(f FormerOutcomes) {
		if !slices.Contains(kept, f) && !readsOutcomes(routes, f.Topic) {
			kept = append(kept, f)
		}
	}
	former := slices.DeleteFunc(slices.Clone(m.sets.formerOutcomes()), func(f FormerOutcomes) bool { return readsOutcomes(routes, f.Topic) })
	var open map[string]uint64 // nil if it is unknown
	if len(former) > 0 && o.OpenClaims != nil {
		var err error
		if open, err = o.OpenClaims(ctx); err != nil {
			return nil, err
		}
	}
	for _, f := range former {
		if route := m.route(f.Route); open == nil || route != nil && open[route.Namespace] > 0 {
			add(f)
		}
	}
	for _, r := range m.sets.current().routes.Routes {
		if r.Mode == rules.ClaimMode {
			add(FormerOutcomes{r.Claim.Outcomes, r.Name})
		}
	}
	return kept, nil
}

// readsOutcomes reports whether a topic is the outcomes topic of one of these routes.
func readsOutcomes(routes *rules.Routes, topic string) bool {
	return slices.ContainsFunc(routes.Routes, func(r *rules.Route) bool { return r.Mode == rules.ClaimMode && r.Claim.Outcomes == topic })
}

// route returns the newest route with a name in any set; nil if no set has it.
func (m *Manifest) route(name string) *rules.Route {
	for _, set := range m.sets.olderThan(m.sets.inForce + 1) {
		if r := set.routes.Route(name); r != nil {
			return r
		}
	}
	return nil
}
