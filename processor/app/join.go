package app

import (
	"context"
	"fmt"
	"strings"

	"oncebus/dedup/routesets"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// readSets reads the manifest of an app before the app's topics are known. It returns nil before the app's
// first start, and if the user may not read the manifest topic.
func (s *setup) readSets(ctx context.Context) (*Manifest, error) {
	t := newTopology(s.cfg.AppID, s.routes)
	topics, err := DescribeTopics(ctx, s.Admin, t.Manifest)
	if err != nil || topics[t.Manifest].Partitions == 0 {
		return nil, err
	}
	t.Topics[t.Manifest] = topics[t.Manifest]
	return readManifest(ctx, s.Client, t)
}

// join starts a process of an app that has route sets. The routes file of the process is only a proposal, and
// the set in force decides. If the file differs from that set only by harmless changes, join puts the file in
// force as the next set.
func (s *setup) join(ctx context.Context, m *Manifest) (*App, error) {
	file, number := s.routes, m.sets.inForce
	plan := m.plan(file, nil)
	switch {
	case plan.Behind > 0:
		s.Log.Warn("routes file is behind: the app runs with a newer route set", "file", plan.Behind, "in_force", number)
	case len(plan.Changes) == 0:
	case plan.Worst() == routesets.Harmless:
		if err := s.apply(ctx, m, file, nil, s.cfg.InstanceID); err != nil {
			return nil, err
		}
		s.Log.Info("routes file applied, it changes nothing but what is harmless", "set", number+1, "changes", plan.Text())
		return nil, errSetsChanged // read again what is in force now
	default:
		return nil, plan.refuse(s.cfg.AppID)
	}
	s = m.setupBy(s.Conn, s.cfg, m.sets, m.sets.current().routes)
	if err := s.cfg.CheckSecret(s.routes.NeedsSecret()); err != nil {
		return nil, errSetNeedsSecret(number, err)
	}
	t, err := s.setUpTopics(ctx)
	if err != nil {
		return nil, err
	}
	changed, err := m.reconcile(t, s.routes, s.cfg.KeySecret.Bytes())
	if err != nil {
		return nil, err
	}
	if changed {
		err := s.editManifest(ctx, t, func(now *Manifest) error {
			if now.sets.inForce != number || now.generation().number != m.generation().number {
				return errSetsChanged
			}
			_, err := now.reconcile(t, s.routes, s.cfg.KeySecret.Bytes())
			return err
		})
		if err != nil && !isFenced(err) {
			return nil, err
		}
		return nil, errSetsChanged
	}
	rt, err := s.newApp(ctx, t, m)
	if err == nil {
		rt.FileBehind = plan.Behind
	}
	return rt, err
}

// errSetNeedsSecret returns the operator error of a process that lacks the secret of the route set in force.
func errSetNeedsSecret(number int64, err error) error {
	return kafka.OperatorErrorf("route set %d: %w", number, err)
}

// apply puts a routes file in force as the next route set. outcomes are the outcomes topics of former routes
// that the app still reads; nil keeps those of the current set. apply first creates missing topics. It returns
// errSetsChanged if another process put a set in force meanwhile.
func (s *setup) apply(ctx context.Context, m *Manifest, file *rules.Routes, outcomes []FormerOutcomes, by string) error {
	set := newRouteSet(m.sets.inForce+1, file, by)
	set.Outcomes = outcomes
	if outcomes == nil {
		set.Outcomes = m.sets.current().Outcomes
	}
	next, err := s.applying(m, set)
	if err != nil {
		return err
	}
	t, err := next.setUpTopics(ctx)
	if err != nil {
		return err
	}
	rows, err := setRows(set)
	if err != nil {
		return err
	}
	err = next.editManifest(ctx, t, func(now *Manifest) error {
		if now.sets.inForce != m.sets.inForce || now.generation().number != m.generation().number {
			return errSetsChanged
		}
		now.extendKeys(file)
		_, err := now.reconcile(t, file, s.cfg.KeySecret.Bytes())
		return err
	}, rows...)
	if isFenced(err) {
		return errSetsChanged
	}
	return err
}

// applying returns the setup of an app as it will be with its next route set.
func (s *setup) applying(m *Manifest, set *RouteSet) (*setup, error) {
	if err := s.cfg.CheckSecret(set.routes.NeedsSecret()); err != nil {
		return nil, kafka.OperatorErrorf("routes file: %w", err)
	}
	return m.setupBy(s.Conn, s.cfg, m.sets.with(set), set.routes), nil
}

// Plan is what a routes file would change for an app with route sets.
type Plan struct {
	// InForce is the number of the set in force. Behind is the number of the older set that equals the file; 0
	// if no older set does.
	InForce int64              `json:"in_force"`
	Behind  int64              `json:"behind,omitempty"`
	Changes []routesets.Change `json:"changes"`
}

// plan compares a routes file with the sets of the app. forget are the namespaces whose keys the operator gives
// up.
func (m *Manifest) plan(file *rules.Routes, forget []string) Plan {
	current := m.sets.current()
	p := Plan{InForce: current.Number}
	if current.Digest == file.Digest {
		return p
	}
	p.Changes = routesets.Compare(current.routes, file, m.history(), forget)
	for _, set := range m.sets.olderThan(current.Number) {
		if set.Digest == file.Digest && p.Behind == 0 && len(p.Changes) > 0 {
			p.Behind = set.Number
		}
	}
	return p
}

// Worst returns the highest kind of the changes.
func (p *Plan) Worst() routesets.Kind { return routesets.Worst(p.Changes) }

// Text returns the changes, one line for each.
func (p *Plan) Text() string {
	var lines []string
	for _, c := range p.Changes {
		line := fmt.Sprintf("%v: route %s: %s", c.Kind, c.Route, c.What)
		if c.Why != "" {
			line += ": " + c.Why
		}
		if len(c.Steps) > 0 {
			line += "; " + strings.Join(c.Steps, "; ")
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// refuse returns the error of a start whose routes file has changes that an operator has to apply.
func (p *Plan) refuse(app string) error {
	command := "oncebus apply --yes"
	if p.Worst() == routesets.Refused {
		command = "oncebus plan"
	}
	return kafka.OperatorErrorf("the routes file differs from route set %d, which app %s has in force; run: %s\n%s", p.InForce, app, command, p.Text())
}
