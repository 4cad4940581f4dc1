package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"oncebus/dedup/routesets"
)

// readTopics compares the existing topics with the topics that a start would create. Kafka only validates the
// requests, and creates nothing.
func (f *Facts) readTopics(ctx context.Context, c Conn) error {
	s := &setup{Conn: c, validate: true, cfg: f.Config, routes: f.Routes}
	counted := *f.topology // a start works with added partitions; judgeManifest reports them
	if counted.Topics = maps.Clone(counted.Topics); f.manifest != nil {
		f.manifest.limitToTasks(&counted)
	}
	for _, err := range slices.Concat(parts(f.topology.checkNames()), parts(s.refuseMissing(f.topology)), parts(s.refuseCounts(&counted))) {
		if !f.aboutDenied(err) {
			f.refused = append(f.refused, err)
		}
	}
	replication := f.Config.replication(f.topology.brokers)
	for _, topic := range append(s.firstTopics(f.topology), s.changelogs(f.topology)...) {
		_, exists := f.topology.Topics[topic.name]
		if topic.name == "" || exists || f.denied[topic.name] || !f.Config.CreateTopics && slices.Contains(f.topology.external(), topic.name) {
			continue
		}
		topic.configs = replication.add(topic.configs)
		if err := s.createTopic(ctx, topic, replication.factor); err != nil {
			f.refused = append(f.refused, fmt.Errorf("topic %s does not exist: %s", topic.name, plain(err)))
		} else {
			f.creates = append(f.creates, topic.name)
		}
	}
	return nil
}

// aboutDenied reports whether an error is about a topic that the user may not describe. Such a topic may exist,
// so the error shows only a missing right, which judgeRights reports.
func (f *Facts) aboutDenied(err error) bool {
	for name := range f.denied {
		if strings.Contains(err.Error(), "topic "+name+" ") || strings.Contains(err.Error(), "changelog "+name+" ") {
			return true
		}
	}
	return false
}

func (f *Facts) judgeTopics() []Finding {
	findings := failures(errors.Join(f.refused...))
	if len(f.creates) > 0 {
		findings = append(findings, Finding{Text: "a start creates " + strings.Join(f.creates, ", ")})
	}
	if len(findings) == 0 {
		findings = append(findings, Finding{Text: fmt.Sprintf("%d of the app's %d topics exist", len(f.present(f.topology.all())), len(f.topology.all()))})
	}
	return findings
}

// readManifest reads the manifest, unless readBrokers has read it.
func (f *Facts) readManifest(ctx context.Context, c Conn) error {
	t := f.topology
	if f.manifest != nil {
		return nil // readBrokers has read it
	}
	if _, ok := t.Topics[t.Manifest]; ok {
		var err error
		if f.manifest, err = readManifest(ctx, c.Client, t); err != nil || f.manifest != nil {
			return err
		}
	}
	return (&setup{Conn: c, cfg: f.Config, routes: f.Routes}).refuseOrphanedState(ctx, t)
}

// judgeManifest compares routes and topics with what the manifest pins.
func (f *Facts) judgeManifest() []Finding {
	m := f.manifest
	if m == nil {
		return []Finding{{Text: "none: the first start of app " + f.Config.AppID + " writes it"}}
	}
	pins := fmt.Sprintf("cluster %s, %s, hash %s, row encoding %d, envelope %d", m.Cluster, m.pinnedTopics(), m.Hash, m.RowVersion, m.EnvelopeVersion)
	grown := f.grownTopics() // before reconcile limits them to their tasks
	compared := *m           // because reconcile adds to it
	compared.Topics, compared.Namespaces = slices.Clone(m.Topics), slices.Clone(m.Namespaces)
	changed, err := compared.reconcile(f.topology, f.Routes, f.Config.KeySecret.Bytes())
	if findings := failures(err); len(findings) > 0 {
		return findings
	}
	findings := slices.Concat(grown, []Finding{{Text: "pins " + pins}})
	for _, n := range m.Namespaces {
		findings = append(findings, Finding{Text: fmt.Sprintf("pins namespace %s: mode %s, key %s", n.Name, n.Mode, strings.Join(strings.Fields(n.KeyRule), " "))})
	}
	if changed {
		added := map[string]bool{}
		for _, n := range compared.Namespaces[len(m.Namespaces):] {
			added["namespace "+n.Name] = true
		}
		for _, topic := range compared.Topics[len(m.Topics):] {
			added["topic "+topic.Name] = true
		}
		findings = append(findings, Finding{Text: "the next start adds " + strings.Join(slices.Sorted(maps.Keys(added)), ", ")})
	}
	return findings
}

// grownTopics returns a finding for each prepartitioned topic to which partitions were added.
func (f *Facts) grownTopics() (findings []Finding) {
	for _, have := range f.manifest.grown(f.topology) {
		why, way, _ := strings.Cut(AddedPartitionText(have.Name, have.Partitions, have.Partitions), "; ")
		findings = append(findings, Finding{Level: Fails, Text: why, Action: way})
	}
	return findings
}

// pinnedTopics lists the topics with pinned partition counts as text.
func (m *Manifest) pinnedTopics() string {
	var texts []string
	for _, t := range m.Topics {
		if t.Role != roleRouted {
			texts = append(texts, fmt.Sprintf("%d partitions of %s", t.Partitions, t.Name))
		}
	}
	return strings.Join(texts, ", ")
}

// judgeRoutes compares the routes file with the route set in force, as a start does, and names the routes that
// are switched off.
func (f *Facts) judgeRoutes() (findings []Finding) {
	number := f.plan.InForce
	switch p := f.plan; {
	case number == 0:
	case f.Config.CheckSecret(f.Routes.NeedsSecret()) != nil:
		findings = failures(errSetNeedsSecret(number, f.Config.CheckSecret(f.Routes.NeedsSecret())))
	case p.Behind > 0:
		findings = []Finding{{
			Level: Note, Text: fmt.Sprintf("the routes file is route set %d, and the app runs with set %d", p.Behind, number),
			Action: "give the processes the newer file: oncebus plan shows what differs",
		}}
	case len(p.Changes) > 0 && p.Worst() == routesets.Harmless:
		findings = []Finding{{Text: "the next start applies the routes file, it changes nothing but what is harmless:\n" + p.Text()}}
	case len(p.Changes) > 0:
		findings = failures(p.refuse(f.Config.AppID))
	}
	off := f.Routes.Off()
	if len(off) == 0 {
		return append(findings, Finding{Text: "all are switched on"})
	}
	return append(findings, Finding{
		Level: Note, Text: "switched off, so that each event is forwarded with its copies, and nothing is stored: " + strings.Join(off, ", "),
		Action: "take `enabled: false` out of the routes file, and apply it",
	})
}
