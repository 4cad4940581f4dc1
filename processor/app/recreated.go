package app

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// AcceptRecreated stores in the manifest the present id of a topic that was deleted and recreated: the input of
// tasks, or a changelog. The tasks of a recreated input begin at its start. The tasks of a recreated changelog
// have no state, and each of them waits for an operator's decision. No process of the app may run meanwhile.
func AcceptRecreated(ctx context.Context, c Conn, cfg Config, routes *rules.Routes, topic string) error {
	found, err := Find(ctx, c.Client, cfg.AppID, routes)
	if err != nil {
		return err
	}
	t := found.Topology
	s := &setup{Conn: c, cfg: cfg, routes: routes}
	return s.editManifest(ctx, t, func(m *Manifest) error { return s.adopt(ctx, t, m, topic) })
}

// adopt changes the manifest's entry of a recreated topic.
func (s *setup) adopt(ctx context.Context, t *Topology, m *Manifest, topic string) error {
	for i := range m.Topics {
		entry := &m.Topics[i]
		if entry.Role == roleRouted {
			continue
		}
		changelog := ChangelogName(t.App, entry.Name)
		if topic != entry.Name && topic != changelog {
			continue
		}
		present, ok := t.Topics[topic]
		switch {
		case !ok:
			return kafka.OperatorErrorf("topic %s does not exist: create it with %d partitions first", topic, entry.Partitions)
		case present.Partitions != entry.Partitions:
			return kafka.OperatorErrorf("topic %s has %d partitions, the app has state for %d: recreate it with %d", topic, present.Partitions, entry.Partitions, entry.Partitions)
		}
		id := TopicIDText(present.ID)
		if topic == changelog {
			if entry.ChangelogID == id {
				return kafka.OperatorErrorf("topic %s was not recreated: the manifest has its id", topic)
			}
			entry.ChangelogID, entry.StateLost = id, true
			return nil
		}
		if entry.ID == id {
			return kafka.OperatorErrorf("topic %s was not recreated: the manifest has its id", topic)
		}
		err := t.listStarts(ctx, s.Admin, StartEarliest, []string{topic})
		entry.ID, entry.Starts = id, t.starts[topic]
		entry.Generation++
		return cmp.Or(err, t.unlisted[topic])
	}
	var names []string
	for _, entry := range m.Topics {
		if entry.Role != roleRouted {
			names = append(names, entry.Name, ChangelogName(t.App, entry.Name))
		}
	}
	return kafka.OperatorErrorf("no tasks read or write topic %s; the topics are %s", topic, strings.Join(names, ", "))
}

// editManifest changes the manifest under the manifest's transactional id, which fences a process that starts at
// the same time. It writes rows in the same transaction.
func (s *setup) editManifest(ctx context.Context, t *Topology, edit func(*Manifest) error, rows ...*kgo.Record) error {
	return s.writeFenced(ctx, t, func() ([]*kgo.Record, error) {
		m, err := readManifest(ctx, s.Client, t)
		if err != nil {
			return nil, err
		}
		if m == nil {
			return nil, kafka.OperatorErrorf("%s has no manifest: app %s has never started", t.Manifest, t.App)
		}
		if err := edit(m); err != nil {
			return nil, err
		}
		return manifestRows(m, rows)
	})
}

// manifestRows returns the record of the manifest, followed by rows.
func manifestRows(m *Manifest, rows []*kgo.Record) ([]*kgo.Record, error) {
	rec, err := encodeRow(ManifestKey, m)
	if err != nil {
		return nil, fmt.Errorf("encode the manifest: %w", err)
	}
	return append([]*kgo.Record{rec}, rows...), nil
}
