package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"oncebus/processor/kafka"
)

// setUpTopics reads the metadata of every topic, and creates the missing topics that it may create. It returns
// all contradictions together, as operator errors.
func (s *setup) setUpTopics(ctx context.Context) (_ *Topology, err error) {
	t := s.topology()
	if err := t.CheckRights(ctx, s.Client); err != nil {
		return nil, err
	}
	if err := s.checkTopics(ctx, t); err != nil {
		return nil, err
	}
	t.countBrokers(ctx, s.Client)
	if err := s.createMissing(ctx, t); err != nil {
		return nil, err
	}
	if err := t.describeFormer(ctx, s.Admin, s.sets.retired()); err != nil {
		return nil, err
	}
	if err := t.readConfigs(ctx, s.Admin, t.Written()...); err != nil {
		return nil, err
	}
	inputs := slices.Concat(t.Routed, t.Prepartitioned)
	err = t.listStarts(ctx, s.Admin, s.cfg.Start, inputs)
	return t, err
}

func (s *setup) topology() *Topology {
	t := topologyOf(s.cfg.AppID, s.routes, s.sets, s.on)
	t.BatchMax = s.MaxDecompressedBatchBytes
	return t
}

// checkTopics describes the existing topics, and returns an error for what a start would refuse in them. It
// changes nothing, so that a plan can use it to find what the command after the plan would refuse.
func (s *setup) checkTopics(ctx context.Context, t *Topology) error {
	if err := t.checkNames(); err != nil {
		return err
	}
	if err := t.describe(ctx, s.Admin); err != nil {
		return err
	}
	if err := s.refuseMissing(t); err != nil {
		return err
	}
	if err := s.refuseChanged(ctx, t); err != nil {
		return err
	}
	if err := s.refuseCounts(t); err != nil {
		return err
	}
	return s.refuseCompacted(ctx, t)
}

// refuseMissing returns an error for each missing topic that a start must not create.
func (s *setup) refuseMissing(t *Topology) error {
	var mistakes []error
	if !s.cfg.CreateTopics {
		for _, name := range t.external() {
			if _, ok := t.Topics[name]; !ok {
				mistakes = append(mistakes, kafka.OperatorErrorf("topic %s does not exist: create it, or set ONCEBUS_CREATE_TOPICS=true", name))
			}
		}
	}
	return errors.Join(mistakes...)
}

// refuseCounts returns an error for partition counts that do not fit. It must run after refuseChanged, which
// reads in the manifest to which topics partitions were added. After 'oncebus move' the manifest alone decides
// about the repartition topic: the setting is used only for new topics.
func (s *setup) refuseCounts(t *Topology) error {
	var mistakes []error
	if have, ok := t.Topics[t.Repartition]; ok && t.Generation == 1 && have.Partitions != s.cfg.Partitions {
		mistakes = append(mistakes, kafka.OperatorErrorf("topic %s has %d partitions, ONCEBUS_PARTITIONS is %d: a key must stay in its partition, so only 'oncebus move' changes the count; set ONCEBUS_PARTITIONS=%d, or use another ONCEBUS_APP_ID",
			t.Repartition, have.Partitions, s.cfg.Partitions, have.Partitions))
	}
	for _, name := range t.TaskTopics() {
		topic, ok := t.Topics[name]
		changelog, hasChangelog := t.Topics[ChangelogName(t.App, name)]
		if ok && hasChangelog && topic.Partitions != changelog.Partitions {
			mistakes = append(mistakes, kafka.OperatorErrorf("topic %s has %d partitions, its changelog %s has %d: a key must stay in its partition, and Kafka removes none; use another ONCEBUS_APP_ID, which starts without state",
				name, topic.Partitions, ChangelogName(t.App, name), changelog.Partitions))
		}
	}
	return errors.Join(mistakes...)
}

// refuseCompacted returns an error for a compacted outcomes topic, before a start creates any topic.
func (s *setup) refuseCompacted(ctx context.Context, t *Topology) error {
	existing := slices.DeleteFunc(slices.Clone(t.outcomes), func(name string) bool {
		_, ok := t.Topics[name]
		return !ok
	})
	if len(existing) == 0 {
		return nil
	}
	return t.readConfigs(ctx, s.Admin, existing...)
}

// ErrAddedPartition returns the error about a partition that was added to the repartition topic or a changelog.
// A start and a running app give the same advice.
func ErrAddedPartition(topic string, partition, began int32) error {
	return kafka.OperatorErrorf("topic %s has got partition %d, the app began with %d partitions: its producers now send keys to other partitions than their rows, and Kafka removes no partition; "+
		"use another ONCEBUS_APP_ID: it starts without state, so duplicates of earlier events are emitted, and ONCEBUS_START decides whether it reads what the topics have now", topic, partition, began)
}

// AddedPartitionText says why a prepartitioned topic to which a partition was added is paused, and what ends the
// pause.
func AddedPartitionText(topic string, partition, began int32) string {
	return fmt.Sprintf("topic %s has got partition %d, its tasks began with %d partitions: a key may now be in another partition than its row, so no record of the topic is judged; "+
		"to route its keys from now on, leave `prepartitioned` out of its routes, and run: oncebus move --to-routed", topic, partition, began)
}

// newTopic is a topic to create.
type newTopic struct {
	name       string // "" for a topic that the app does not need
	partitions int32
	configs    map[string]string
}

// createMissing creates missing topics. refuseMissing has already returned an error for missing external topics
// without ONCEBUS_CREATE_TOPICS. Changelogs come last, because their partition counts are those of their tasks'
// topics.
func (s *setup) createMissing(ctx context.Context, t *Topology) error {
	if err := s.createTopics(ctx, t, s.firstTopics(t)); err != nil {
		return err
	}
	if err := s.awaitTopics(ctx, t, append(t.external(), t.Repartition)); err != nil {
		return err
	}
	if err := s.createTopics(ctx, t, s.changelogs(t)); err != nil {
		return err
	}
	return s.awaitTopics(ctx, t, t.internal())
}

// firstTopics returns all topics except the changelogs, with the settings with which a start creates them.
func (s *setup) firstTopics(t *Topology) (topics []newTopic) {
	maxMessage := internalMessageBytes(s.MaxDecompressedBatchBytes)
	for _, name := range slices.Concat(t.Routed, t.Prepartitioned) {
		var configs map[string]string
		if slices.Contains(t.outcomes, name) {
			configs = outcomesConfigs()
		}
		topics = append(topics, newTopic{name, s.cfg.Partitions, configs})
	}
	for _, name := range t.emissions {
		topics = append(topics, newTopic{name, s.cfg.Partitions, emissionConfigs()})
	}
	return append(topics, newTopic{t.Manifest, 1, manifestConfigs()},
		newTopic{t.Repartition, s.cfg.Partitions, repartitionConfigs(maxMessage)}, newTopic{t.Verdicts, s.cfg.Partitions, verdictsConfigs(maxMessage)})
}

// changelogs returns the changelogs, with the settings with which a start creates them. For tasks whose topic
// does not exist yet, the partition count comes from the settings.
func (s *setup) changelogs(t *Topology) (topics []newTopic) {
	maxMessage := internalMessageBytes(s.MaxDecompressedBatchBytes)
	for _, name := range t.TaskTopics() {
		partitions := cmp.Or(t.Topics[name].Partitions, s.cfg.Partitions)
		topics = append(topics, newTopic{ChangelogName(t.App, name), partitions, changelogConfigs(maxMessage)})
	}
	return topics
}

// createTopics creates those of the topics that are missing. It is no error if another process creates one at
// the same time.
func (s *setup) createTopics(ctx context.Context, t *Topology, topics []newTopic) error {
	replication := s.cfg.replication(t.brokers)
	announced := false
	for _, topic := range topics {
		if _, ok := t.Topics[topic.name]; ok || topic.name == "" {
			continue
		}
		topic.configs = replication.add(topic.configs)
		if err := s.createTopic(ctx, topic, replication.factor); err != nil {
			return err
		}
		if fewer := replication.factor < s.cfg.ReplicationFactor; fewer && !announced {
			announced = true
			s.Log.Info("fewer brokers than wanted replicas", "brokers", t.brokers, "wanted", s.cfg.ReplicationFactor, "replication", replication)
		}
		s.Log.Info("topic created", "topic", topic.name, "partitions", topic.partitions, "replication", replication)
	}
	return nil
}

// createTopic creates a topic. If the broker refuses a setting without which oncebus works, it leaves the
// setting out. If the broker refuses max.message.bytes, it tries smaller values, down to the broker's default.
func (s *setup) createTopic(ctx context.Context, topic newTopic, factor int16) error {
	configs := maps.Clone(topic.configs)
	var first error // the first error names what oncebus needs; later ones name what it tried
	for {
		values := make(map[string]*string, len(configs))
		for k, v := range configs {
			values[k] = &v
		}
		resp, err := s.requestTopic(ctx, topic, factor, values)
		if err == nil || resp.Err != nil {
			err = resp.Err
		}
		switch {
		case err == nil, errors.Is(err, kerr.TopicAlreadyExists):
			s.logChanged(topic, configs)
			return nil
		case errors.Is(err, kerr.InvalidReplicationFactor):
			return fmt.Errorf("create topic %s with %d replicas: %w; set ONCEBUS_REPLICATION_FACTOR to at most the number of brokers, or start more brokers",
				topic.name, factor, err)
		case !errors.Is(err, kerr.InvalidConfig) && !errors.Is(err, kerr.PolicyViolation):
			return fmt.Errorf("create topic %s: %w", topic.name, kafka.Denied(err, "Create", kafka.ResourceTopic, topic.name))
		case first == nil:
			first = s.refusedTopic(topic, err, resp.ErrMessage)
		}
		if !relax(configs, resp.ErrMessage) {
			return first
		}
	}
}

// requestTopic sends one request to create a topic or, with validate, to only validate the request.
func (s *setup) requestTopic(ctx context.Context, topic newTopic, factor int16, values map[string]*string) (kadm.CreateTopicResponse, error) {
	if !s.validate {
		return s.Admin.CreateTopic(ctx, topic.partitions, factor, values, topic.name)
	}
	validated, err := s.Admin.ValidateCreateTopics(ctx, topic.partitions, factor, values, topic.name)
	return validated[topic.name], err
}

// relax removes or reduces a setting that the broker's message names. If the message names no setting, it
// reduces max.message.bytes, because that may be what the broker refuses. It returns false if no setting is left
// to change.
func relax(configs map[string]string, message string) bool {
	for _, name := range optionalSettings {
		if _, ok := configs[name]; ok && strings.Contains(message, name) {
			delete(configs, name)
			return true
		}
	}
	for name := range configs {
		if name != maxMessageSetting && strings.Contains(message, name) {
			return false
		}
	}
	limit, err := strconv.Atoi(configs[maxMessageSetting])
	if err != nil {
		return false
	}
	if limit /= 2; limit < internalMinMessage {
		delete(configs, maxMessageSetting) // use the broker's default
		return true
	}
	configs[maxMessageSetting] = strconv.Itoa(limit)
	return true
}

// refusedTopic returns the operator error for a topic whose settings the broker refuses, with the broker's
// message.
func (s *setup) refusedTopic(topic newTopic, err error, message string) error {
	create := fmt.Sprintf("kafka-topics.sh --create --topic %s --partitions %d", topic.name, topic.partitions)
	for _, name := range slices.Sorted(maps.Keys(topic.configs)) {
		create += fmt.Sprintf(" --config %s=%s", name, topic.configs[name])
	}
	if message != "" {
		message = " (" + message + ")"
	}
	return kafka.OperatorErrorf("create topic %s: %w%s: the brokers refuse a setting that oncebus needs; permit it, or create the topic with other settings: %s",
		topic.name, err, message, create)
}

// logChanged logs the settings that a topic was created without, or with a smaller value.
func (s *setup) logChanged(topic newTopic, configs map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(topic.configs)) {
		switch got, ok := configs[name]; {
		case !ok:
			s.Log.Info("topic created without a setting", "topic", topic.name, "setting", name, "wanted", topic.configs[name], "reason", "the brokers refuse it")
		case got != topic.configs[name]:
			s.Log.Info("topic created with a smaller setting", "topic", topic.name, "setting", name, "wanted", topic.configs[name], "value", got,
				"reason", "the brokers refuse more", "effect", "larger records go to the dead letters")
		}
	}
}

// awaitTopics waits until the broker's metadata contains the topics.
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
