package processor

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// topicInfo is what the broker says about a topic.
type topicInfo struct {
	id         [16]byte
	partitions int32
}

// topology is the set of topics the routes ask for, and what they are like.
type topology struct {
	app, cluster           string
	routed, prepartitioned []string // inputs
	emissions              []string // output, duplicates and dead-letter topics
	deadLetters            map[string]bool
	repartition, manifest  string // repartition is "" if nothing is routed
	verdicts               string // "" if no event comes in by HTTP
	retention              time.Duration
	topics                 map[string]topicInfo
	limits                 map[string]topicLimits
	// starts holds, for ONCEBUS_START=latest, where each input topic ends
	// now, by partition; nil for earliest.
	starts map[string][]int64
}

// changelogName names the changelog of a topic whose partitions are tasks.
func changelogName(app, topic string) string {
	if topic == app+"-repartition" {
		return topic + "-changelog"
	}
	return app + "-" + topic + "-changelog"
}

func newTopology(app string, routes *rules.Routes) *topology {
	t := &topology{app: app, manifest: app + "-manifest", topics: map[string]topicInfo{}, deadLetters: map[string]bool{}}
	t.routed, t.prepartitioned = routes.Inputs()
	if len(t.routed) > 0 {
		t.repartition = app + "-repartition"
	}
	seen := map[string]bool{}
	for _, r := range routes.Routes {
		for _, topic := range []string{r.Output, r.Duplicates.Topic, r.DeadLetter, r.Claim.Replies} {
			if topic != "" && !seen[topic] {
				seen[topic] = true
				t.emissions = append(t.emissions, topic)
			}
		}
		t.deadLetters[r.DeadLetter] = true
		if r.HTTP != nil {
			t.verdicts = app + "-verdicts"
		}
		// A changelog row may be asked for until retention has passed in
		// event time; a day of slack covers the difference to broker time.
		t.retention = max(t.retention, time.Duration(r.RetentionMS())*time.Millisecond+24*time.Hour)
	}
	return t
}

// taskTopics returns the topics whose partitions are tasks.
func (t *topology) taskTopics() []string {
	if t.repartition == "" {
		return t.prepartitioned
	}
	return append([]string{t.repartition}, t.prepartitioned...)
}

// taskTopicOf returns the topic of the tasks that judge a route's events.
func (t *topology) taskTopicOf(r *rules.Route) string {
	if r.Prepartitioned {
		return r.Topics[0] // and only one
	}
	return t.repartition
}

// internal returns the names of all internal topics.
func (t *topology) internal() []string {
	names := []string{t.manifest}
	if t.repartition != "" {
		names = append(names, t.repartition)
	}
	if t.verdicts != "" {
		names = append(names, t.verdicts)
	}
	for _, topic := range t.taskTopics() {
		names = append(names, changelogName(t.app, topic))
	}
	return names
}

// written returns the topics whose limits the processor has to know. Of an
// input nothing is asked that takes a further right.
func (t *topology) written() []string { return append(t.internal(), t.emissions...) }

func (t *topology) external() []string {
	return slices.Concat(t.routed, t.prepartitioned, t.emissions)
}

func (t *topology) manifestTopics() []manifestTopic {
	var topics []manifestTopic
	for _, name := range t.routed {
		topics = append(topics, manifestTopic{Name: name, Role: roleRouted, Starts: t.starts[name]})
	}
	for _, name := range t.taskTopics() {
		role := rolePrepartitioned
		if name == t.repartition {
			role = roleHop
		}
		topics = append(topics, manifestTopic{
			Name: name, Role: role, Partitions: t.topics[name].partitions, Starts: t.starts[name],
			ID: topicIDText(t.topics[name].id), ChangelogID: topicIDText(t.topics[changelogName(t.app, name)].id),
		})
	}
	return topics
}

// topicIDText writes a topic id; "" for the zero id of a topic that is not there.
func topicIDText(id [16]byte) string {
	if id == [16]byte{} {
		return ""
	}
	return hex.EncodeToString(id[:])
}

// settleTopics looks at every topic, creates the missing ones it may create,
// and refuses, with all mistakes at once, what would break a promise.
func (s *setup) settleTopics(ctx context.Context) (*topology, error) {
	t := newTopology(s.cfg.AppID, s.routes)
	if err := t.namesApart(); err != nil {
		return nil, err
	}
	if err := t.checkRights(ctx, s.client); err != nil {
		return nil, err
	}
	if err := t.describe(ctx, s.admin); err != nil {
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
	if err := t.readConfigs(ctx, s.admin, t.written()...); err != nil {
		return nil, err
	}
	if s.cfg.Start == StartLatest {
		if err := t.findEnds(ctx, s.admin); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// findEnds notes where the input topics end. The manifest keeps it for topics
// it sees for the first time: "latest" then means one moment for all workers
// and all restarts, and a partition added later is read from its beginning.
func (t *topology) findEnds(ctx context.Context, admin *kadm.Client) error {
	t.starts = map[string][]int64{}
	inputs := slices.Concat(t.routed, t.prepartitioned)
	ends, err := admin.ListEndOffsets(ctx, inputs...)
	if err != nil {
		return fmt.Errorf("list the ends of the input topics: %w", err)
	}
	for _, topic := range inputs {
		for partition := range t.topics[topic].partitions {
			o, ok := ends.Lookup(topic, partition)
			if !ok || o.Err != nil {
				return fmt.Errorf("list the end of %s/%d: %w", topic, partition, cmp.Or(o.Err, error(kerr.UnknownTopicOrPartition)))
			}
			t.starts[topic] = append(t.starts[topic], o.Offset)
		}
	}
	return nil
}

// namesApart refuses routes whose topics would be mistaken for internal ones.
func (t *topology) namesApart() error {
	var mistakes []error
	internal := map[string]bool{}
	for _, name := range t.internal() {
		if internal[name] {
			mistakes = append(mistakes, kafka.OperatorErrorf("two internal topics would be called %s: rename a prepartitioned topic or use another ONCEBUS_APP_ID", name))
		}
		internal[name] = true
	}
	for _, name := range t.external() {
		if internal[name] {
			mistakes = append(mistakes, kafka.OperatorErrorf("routes name topic %s, which is internal to app %s: use another topic or ONCEBUS_APP_ID", name, t.app))
		}
	}
	return errors.Join(mistakes...)
}

// describe fills in the topics that exist.
func (t *topology) describe(ctx context.Context, admin *kadm.Client) error {
	meta, err := admin.Metadata(ctx, append(t.internal(), t.external()...)...)
	if err != nil {
		return fmt.Errorf("ask for topics: %w", err)
	}
	t.cluster = meta.Cluster
	for name, detail := range meta.Topics {
		switch {
		case errors.Is(detail.Err, kerr.UnknownTopicOrPartition):
		case detail.Err != nil:
			return fmt.Errorf("describe topic %s: %w", name, kafka.Denied(detail.Err, "Describe", kafka.ResourceTopic, name))
		default:
			t.topics[name] = topicInfo{id: detail.ID, partitions: int32(len(detail.Partitions))}
		}
	}
	return nil
}

func (s *setup) refuseMissing(t *topology) error {
	var mistakes []error
	if !s.cfg.CreateTopics {
		for _, name := range t.external() {
			if _, ok := t.topics[name]; !ok {
				mistakes = append(mistakes, kafka.OperatorErrorf("topic %s does not exist: create it, or set ONCEBUS_CREATE_TOPICS=true", name))
			}
		}
	}
	if hop, ok := t.topics[t.repartition]; ok && hop.partitions != s.cfg.Partitions {
		mistakes = append(mistakes, kafka.OperatorErrorf("topic %s has %d partitions, ONCEBUS_PARTITIONS says %d: a key must keep its partition, so the count is fixed at creation; set ONCEBUS_PARTITIONS=%d, or use another ONCEBUS_APP_ID",
			t.repartition, hop.partitions, s.cfg.Partitions, hop.partitions))
	}
	for _, name := range t.taskTopics() {
		topic, ok := t.topics[name]
		changelog, hasChangelog := t.topics[changelogName(t.app, name)]
		if ok && hasChangelog && topic.partitions != changelog.partitions {
			mistakes = append(mistakes, kafka.OperatorErrorf("topic %s has %d partitions, its changelog %s has %d: a key must keep its partition; put the old count back, or use another ONCEBUS_APP_ID",
				name, topic.partitions, changelogName(t.app, name), changelog.partitions))
		}
	}
	return errors.Join(mistakes...)
}

// createMissing creates internal topics, and external ones if asked to.
func (s *setup) createMissing(ctx context.Context, t *topology) error {
	create := func(name string, partitions int32, configs map[string]string) error {
		if _, ok := t.topics[name]; ok {
			return nil
		}
		values := make(map[string]*string, len(configs))
		for k, v := range configs {
			values[k] = &v
		}
		resp, err := s.admin.CreateTopic(ctx, partitions, s.cfg.ReplicationFactor, values, name)
		if err == nil {
			err = resp.Err
		}
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", name, kafka.Denied(err, "Create", kafka.ResourceTopic, name))
		}
		s.log.Info("topic created", "topic", name, "partitions", partitions)
		return nil
	}
	for _, name := range slices.Concat(t.routed, t.prepartitioned) {
		if err := create(name, s.cfg.Partitions, nil); err != nil {
			return err
		}
	}
	for _, name := range t.emissions {
		if err := create(name, s.cfg.Partitions, emissionConfigs()); err != nil {
			return err
		}
	}
	if err := create(t.manifest, 1, manifestConfigs()); err != nil {
		return err
	}
	if t.repartition != "" {
		if err := create(t.repartition, s.cfg.Partitions, repartitionConfigs()); err != nil {
			return err
		}
	}
	if t.verdicts != "" {
		if err := create(t.verdicts, s.cfg.Partitions, verdictsConfigs()); err != nil {
			return err
		}
	}
	if err := s.awaitTopics(ctx, t, append(t.external(), t.repartition)); err != nil {
		return err
	}
	for _, name := range t.taskTopics() {
		if err := create(changelogName(t.app, name), t.topics[name].partitions, t.changelogConfigs()); err != nil {
			return err
		}
	}
	return s.awaitTopics(ctx, t, t.internal())
}

// awaitTopics waits until the broker's metadata shows the topics it created.
func (s *setup) awaitTopics(ctx context.Context, t *topology, names []string) error {
	for {
		if err := t.describe(ctx, s.admin); err != nil {
			return err
		}
		if !slices.ContainsFunc(names, func(name string) bool {
			_, ok := t.topics[name]
			return name != "" && !ok
		}) {
			return nil
		}
		if err := kafka.Pause(ctx, kafka.ReadRetryPause); err != nil {
			return err
		}
	}
}

const forever = math.MaxInt64

// deadLetterMinBytes is room for a dead letter without key and value: our
// headers, of which names of topics and the reason are the longest.
const deadLetterMinBytes = 8 << 10

// internalMaxMessage lets a record through that was as large as its input
// topic allowed, with our header added.
const internalMaxMessage = 64 << 20

func emissionConfigs() map[string]string {
	return map[string]string{"message.timestamp.after.max.ms": strconv.Itoa(forever)}
}

func manifestConfigs() map[string]string {
	return map[string]string{"cleanup.policy": "compact", "retention.ms": "-1", "message.timestamp.type": "LogAppendTime"}
}

// repartitionConfigs: records are purged below the checkpoints, never by age
// (G6), and stamped by the broker.
func repartitionConfigs() map[string]string {
	return map[string]string{
		"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1",
		"message.timestamp.type": "LogAppendTime", "max.message.bytes": strconv.Itoa(internalMaxMessage),
	}
}

// verdictsConfigs: a verdict is of use for as long as somebody waits for it.
func verdictsConfigs() map[string]string {
	return map[string]string{
		"cleanup.policy": "delete", "retention.ms": strconv.FormatInt(time.Hour.Milliseconds(), 10),
		"segment.ms":             strconv.FormatInt((10 * time.Minute).Milliseconds(), 10),
		"message.timestamp.type": "LogAppendTime", "max.message.bytes": strconv.Itoa(internalMaxMessage),
	}
}

// changelogConfigs: the checkpoint row is rewritten in every transaction, so
// segments must roll and be cleaned often enough for a restore to stay short.
func (t *topology) changelogConfigs() map[string]string {
	return map[string]string{
		"cleanup.policy": "compact,delete", "retention.ms": strconv.FormatInt(t.retention.Milliseconds(), 10), "retention.bytes": "-1",
		"message.timestamp.type": "LogAppendTime", "max.message.bytes": strconv.Itoa(internalMaxMessage),
		"segment.ms": strconv.FormatInt(time.Hour.Milliseconds(), 10), "min.cleanable.dirty.ratio": "0.3",
	}
}

// topicLimits is what a topic accepts.
type topicLimits struct {
	maxBytes                int32
	beforeMaxMS, afterMaxMS int64 // how far a timestamp may be off the broker's clock
	appendTime              bool  // the broker replaces timestamps
	compacted               bool  // a record needs a key
}

// readConfigs reads the limits of topics we produce to and checks the internal
// ones.
func (t *topology) readConfigs(ctx context.Context, admin *kadm.Client, topics ...string) error {
	described, err := admin.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return fmt.Errorf("ask for topic settings: %w", err)
	}
	t.limits = map[string]topicLimits{}
	var mistakes []error
	for _, topic := range described {
		if topic.Err != nil {
			return fmt.Errorf("describe the settings of topic %s: %w", topic.Name, kafka.Denied(topic.Err, "DescribeConfigs", kafka.ResourceTopic, topic.Name))
		}
		values := map[string]string{}
		for _, c := range topic.Configs {
			values[c.Key] = c.MaybeValue()
		}
		t.limits[topic.Name] = topicLimits{
			maxBytes:    int32(configInt(values, "max.message.bytes", 1<<20)),
			beforeMaxMS: configInt(values, "message.timestamp.before.max.ms", forever),
			afterMaxMS:  configInt(values, "message.timestamp.after.max.ms", forever),
			appendTime:  values["message.timestamp.type"] == "LogAppendTime",
			compacted:   strings.Contains(values["cleanup.policy"], "compact"),
		}
		mistakes = append(mistakes, t.checkConfigs(topic.Name, values)...)
	}
	return errors.Join(mistakes...)
}

func configInt(values map[string]string, name string, otherwise int64) int64 {
	if v, err := strconv.ParseInt(values[name], 10, 64); err == nil {
		return v
	}
	return otherwise
}

// checkConfigs refuses an internal topic that would lose what we stand on.
func (t *topology) checkConfigs(name string, values map[string]string) []error {
	var want map[string]string
	switch {
	case name == t.manifest:
		want = map[string]string{"cleanup.policy": "compact"}
	case name == t.repartition:
		want = map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "LogAppendTime"}
	case name == t.verdicts:
		want = map[string]string{"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
	case slices.Contains(t.internal(), name):
		want = map[string]string{"retention.bytes": "-1", "message.timestamp.type": "LogAppendTime"}
	case t.deadLetters[name] && configInt(values, "max.message.bytes", forever) < deadLetterMinBytes:
		return []error{kafka.OperatorErrorf("dead-letter topic %s has max.message.bytes=%s, too little for where a record stands and why it was refused: give it at least %d", name, values["max.message.bytes"], deadLetterMinBytes)}
	default:
		return nil
	}
	var mistakes []error
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if values[key] != want[key] {
			mistakes = append(mistakes, kafka.OperatorErrorf("internal topic %s has %s=%s, it must be %s: alter it with kafka-configs.sh --alter --entity-type topics --entity-name %s --add-config %s=%s",
				name, key, values[key], want[key], name, key, want[key]))
		}
	}
	if name == t.manifest || name == t.repartition || name == t.verdicts {
		return mistakes
	}
	if policy := values["cleanup.policy"]; policy != "compact,delete" && policy != "delete,compact" {
		mistakes = append(mistakes, kafka.OperatorErrorf("changelog %s has cleanup.policy=%s, it must be compact,delete", name, policy))
	}
	if have := configInt(values, "retention.ms", 0); have >= 0 && have < t.retention.Milliseconds() {
		mistakes = append(mistakes, kafka.OperatorErrorf("changelog %s has retention.ms=%d, the longest window needs %d: alter it with kafka-configs.sh --alter --entity-type topics --entity-name %s --add-config retention.ms=%d",
			name, have, t.retention.Milliseconds(), name, t.retention.Milliseconds()))
	}
	return mistakes
}
