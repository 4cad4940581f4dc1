package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// AcceptRecreated makes the manifest name the present id of a topic that was deleted and
// recreated: the input of tasks or a changelog. Tasks of a recreated input begin at its
// start. Tasks of a recreated changelog have no state and wait for a decision each. No
// process of the app may run.
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
		starts, err := listStarts(ctx, s.Admin, StartEarliest, []string{topic})
		entry.ID, entry.Starts = id, starts[topic]
		entry.Generation++
		return err
	}
	var names []string
	for _, entry := range m.Topics {
		if entry.Role != roleRouted {
			names = append(names, entry.Name, ChangelogName(t.App, entry.Name))
		}
	}
	return kafka.OperatorErrorf("no tasks read or write topic %s; the topics are %s", topic, strings.Join(names, ", "))
}

// editManifest changes the manifest under its transactional id, which fences a process
// that starts at the same time. It writes rows with it.
func (s *setup) editManifest(ctx context.Context, t *Topology, edit func(*Manifest) error, rows ...*kgo.Record) error {
	client, err := s.manifestWriter(ctx, t)
	if err != nil {
		return err
	}
	defer client.Close()
	m, err := readManifest(ctx, s.Client, t)
	if err == nil && m == nil {
		err = kafka.OperatorErrorf("%s has no manifest: app %s has never started", t.Manifest, t.App)
	}
	if err == nil {
		err = edit(m)
	}
	if err != nil {
		return err
	}
	return commitManifest(ctx, client, m, rows...)
}

// manifestWriter returns a client with the transactional id of the manifest.
func (s *setup) manifestWriter(ctx context.Context, t *Topology) (*kgo.Client, error) {
	opts := append(slices.Clone(s.Options), kgo.TransactionalID(s.cfg.AppID+"-manifest"), kgo.DefaultProduceTopic(t.Manifest),
		kgo.TransactionTimeout(s.cfg.TransactionTimeout))
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	if _, _, err := client.ProducerID(ctx); err != nil {
		client.Close()
		return nil, kafka.Denied(err, "Write", kafka.ResourceTransactionalID, s.cfg.AppID+"-manifest")
	}
	return client, nil
}

// commitManifest writes the manifest, and rows with it, in one transaction.
func commitManifest(ctx context.Context, client *kgo.Client, m *Manifest, rows ...*kgo.Record) error {
	value, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode the manifest: %w", err)
	}
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	rows = append([]*kgo.Record{{Key: []byte(ManifestKey), Value: value}}, rows...)
	if err := client.ProduceSync(ctx, rows...).FirstErr(); err != nil {
		return errors.Join(err, client.EndTransaction(ctx, kgo.TryAbort))
	}
	return client.EndTransaction(ctx, kgo.TryCommit)
}
