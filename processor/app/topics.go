package app

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"

	"oncebus/processor/kafka"
)

// settleTopics looks at every topic, creates the missing ones it may create,
// and refuses, with all mistakes at once, what would break a promise.
func (s *setup) settleTopics(ctx context.Context) (*Topology, error) {
	t := newTopology(s.cfg.AppID, s.routes)
	if err := t.namesApart(); err != nil {
		return nil, err
	}
	if err := t.checkRights(ctx, s.Client); err != nil {
		return nil, err
	}
	if err := t.describe(ctx, s.Admin); err != nil {
		return nil, err
	}
	if err := s.refuseMissing(t); err != nil {
		return nil, err
	}
	if err := s.refuseChanged(ctx, t); err != nil {
		return nil, err
	}
	if err := s.createMissing(ctx, t); err != nil {
		return nil, err
	}
	if err := t.readConfigs(ctx, s.Admin, t.Written()...); err != nil {
		return nil, err
	}
	if s.cfg.Start == StartLatest {
		if err := t.findEnds(ctx, s.Admin); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (s *setup) refuseMissing(t *Topology) error {
	var mistakes []error
	if !s.cfg.CreateTopics {
		for _, name := range t.external() {
			if _, ok := t.Topics[name]; !ok {
				mistakes = append(mistakes, kafka.OperatorErrorf("topic %s does not exist: create it, or set ONCEBUS_CREATE_TOPICS=true", name))
			}
		}
	}
	if hop, ok := t.Topics[t.Repartition]; ok && hop.Partitions != s.cfg.Partitions {
		mistakes = append(mistakes, kafka.OperatorErrorf("topic %s has %d partitions, ONCEBUS_PARTITIONS says %d: a key must keep its partition, so the count is fixed at creation; set ONCEBUS_PARTITIONS=%d, or use another ONCEBUS_APP_ID",
			t.Repartition, hop.Partitions, s.cfg.Partitions, hop.Partitions))
	}
	for _, name := range t.TaskTopics() {
		topic, ok := t.Topics[name]
		changelog, hasChangelog := t.Topics[ChangelogName(t.App, name)]
		if ok && hasChangelog && topic.Partitions != changelog.Partitions {
			mistakes = append(mistakes, kafka.OperatorErrorf("topic %s has %d partitions, its changelog %s has %d: a key must keep its partition; put the old count back, or use another ONCEBUS_APP_ID",
				name, topic.Partitions, ChangelogName(t.App, name), changelog.Partitions))
		}
	}
	return errors.Join(mistakes...)
}

// createMissing creates internal topics, and external ones if asked to.
func (s *setup) createMissing(ctx context.Context, t *Topology) error {
	create := func(name string, partitions int32, configs map[string]string) error {
		if _, ok := t.Topics[name]; ok {
			return nil
		}
		values := make(map[string]*string, len(configs))
		for k, v := range configs {
			values[k] = &v
		}
		resp, err := s.Admin.CreateTopic(ctx, partitions, s.cfg.ReplicationFactor, values, name)
		if err == nil {
			err = resp.Err
		}
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", name, kafka.Denied(err, "Create", kafka.ResourceTopic, name))
		}
		s.Log.Info("topic created", "topic", name, "partitions", partitions)
		return nil
	}
	for _, name := range slices.Concat(t.Routed, t.Prepartitioned) {
		if err := create(name, s.cfg.Partitions, nil); err != nil {
			return err
		}
	}
	for _, name := range t.emissions {
		if err := create(name, s.cfg.Partitions, emissionConfigs()); err != nil {
			return err
		}
	}
	if err := create(t.Manifest, 1, manifestConfigs()); err != nil {
		return err
	}
	if t.Repartition != "" {
		if err := create(t.Repartition, s.cfg.Partitions, repartitionConfigs()); err != nil {
			return err
		}
	}
	if t.Verdicts != "" {
		if err := create(t.Verdicts, s.cfg.Partitions, verdictsConfigs()); err != nil {
			return err
		}
	}
	if err := s.awaitTopics(ctx, t, append(t.external(), t.Repartition)); err != nil {
		return err
	}
	for _, name := range t.TaskTopics() {
		if err := create(ChangelogName(t.App, name), t.Topics[name].Partitions, t.changelogConfigs()); err != nil {
			return err
		}
	}
	return s.awaitTopics(ctx, t, t.internal())
}

// awaitTopics waits until the broker's metadata shows the topics it created.
func (s *setup) awaitTopics(ctx context.Context, t *Topology, names []string) error {
	for {
		if err := t.describe(ctx, s.Admin); err != nil {
			return err
		}
		if !slices.ContainsFunc(names, func(name string) bool {
			_, ok := t.Topics[name]
			return name != "" && !ok
		}) {
			return nil
		}
		if err := kafka.Pause(ctx, kafka.ReadRetryPause); err != nil {
			return err
		}
	}
}
