package app

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// Topic is the broker's description of a topic.
type Topic struct {
	ID         [16]byte
	Partitions int32
	// Replicas and InSync are the smallest numbers of any partition.
	Replicas, InSync int
	Leaderless       int // partitions without a leader
}

// newTopicOf converts a broker's description of a topic.
func newTopicOf(detail kadm.TopicDetail) Topic {
	t := Topic{ID: detail.ID, Partitions: int32(len(detail.Partitions))}
	for n, p := range detail.Partitions.Sorted() {
		if n == 0 {
			t.Replicas, t.InSync = len(p.Replicas), len(p.ISR)
		}
		t.Replicas, t.InSync = min(t.Replicas, len(p.Replicas)), min(t.InSync, len(p.ISR))
		if p.Leader < 0 {
			t.Leaderless++
		}
	}
	return t
}

// Topology has the topics that the routes need, and the broker's description of them.
type Topology struct {
	App, Cluster           string
	Routed, Prepartitioned []string // inputs
	emissions              []string // output, duplicates and dead-letter topics
	deadLetters            map[string]bool
	outcomes               []string // outcomes topics, which executors write and the app reads; each topic once
	// executors are the groups of executors that routes name, each with the output topics that it reads.
	executors             map[string][]string
	Repartition, Manifest string // Repartition is "" without a routed topic
	// Generation is the generation of the repartition topic's partitions; the first one is 1. Forwarded are the
	// repartition topics of earlier generations. They are in Routed, too, because the routing stage forwards
	// records that still reach them.
	Generation int64
	Forwarded  []string
	// Moved are the routed topics that were prepartitioned until a move and whose changelogs are not deleted
	// yet.
	Moved    []string
	Verdicts string // "" without a route with an http part
	Topics   map[string]Topic
	limits   map[string]TopicLimits
	// settings has the settings of topics, as far as the user may read them.
	settings map[string]map[string]string
	// brokers is the number of brokers, including brokers that are down if the cluster lists them.
	brokers int
	// BatchMax bounds the size of batches of internal topics, in bytes: MaxDecompressedBatchBytes. No process
	// may write a larger batch than the processes that read it decompress. 0 means no bound.
	BatchMax int
	// former are the existing topics to which only routes of older sets write.
	former []string
	// starts has, by partition, the first offset to read of each input topic, in case the topic is new.
	starts map[string][]int64
	// unlisted has the input topics for which starts lacks a partition, and why.
	unlisted map[string]error
}

// ManifestName returns the topic of an app's manifest. The writers of the manifest use the same name as
// transactional id.
func ManifestName(app string) string { return app + "-manifest" }

// ChangelogName returns the name of the changelog of a topic whose partitions are tasks.
func ChangelogName(app, topic string) string {
	if GenerationOf(app, topic) > 0 {
		return topic + "-changelog"
	}
	return app + "-" + topic + "-changelog"
}

// newTopology returns the topology of an app that has only these routes, with the first generation of
// partitions.
func newTopology(app string, routes *rules.Routes) *Topology {
	t := &Topology{App: app, Generation: 1, Manifest: ManifestName(app), Topics: map[string]Topic{}, settings: map[string]map[string]string{}, deadLetters: map[string]bool{}, executors: map[string][]string{}}
	t.Routed, t.Prepartitioned = routes.Inputs()
	if len(t.Routed) > 0 {
		t.Repartition = RepartitionName(app, 1)
	}
	seen := map[string]bool{}
	for _, r := range routes.Routes {
		for _, topic := range emissionsOf(r) {
			if !seen[topic] {
				seen[topic] = true
				t.emissions = append(t.emissions, topic)
			}
		}
		t.deadLetters[r.DeadLetter] = true
		if outcomes := r.Claim.Outcomes; outcomes != "" && !slices.Contains(t.outcomes, outcomes) {
			t.outcomes = append(t.outcomes, outcomes)
		}
		if group := r.Claim.Group; group != "" && !slices.Contains(t.executors[group], r.Output) {
			t.executors[group] = append(t.executors[group], r.Output)
		}
		if r.HTTP != nil {
			t.Verdicts = app + "-verdicts"
		}
	}
	return t
}

// topologyOf returns the topology of an app with its set in force, or of these routes for an app without sets.
// If an older set needed the repartition or verdicts topic, the topic stays: records of the older set may still
// come.
func topologyOf(app string, routes *rules.Routes, sets *Sets, on generation) *Topology {
	t := newTopology(app, routes)
	for _, f := range sets.formerOutcomes() {
		if !slices.Contains(t.Routed, f.Topic) {
			t.Routed = append(t.Routed, f.Topic)
			t.outcomes = append(t.outcomes, f.Topic)
		}
	}
	for _, r := range sets.retired() {
		if !r.Prepartitioned {
			t.Repartition = RepartitionName(app, 1)
		}
		if r.HTTP != nil {
			t.Verdicts = app + "-verdicts"
		}
	}
	if t.Repartition != "" && on.number > 1 {
		t.Generation, t.Repartition = on.number, RepartitionName(app, on.number)
	}
	t.Forwarded, t.Moved = on.forwarded, on.moved
	t.Routed = append(slices.Clone(t.Routed), on.forwarded...)
	return t
}

// describeFormer finds the topics to which only routes of older sets write. It leaves out a topic that was
// deleted, or that the user may not describe any more.
func (t *Topology) describeFormer(ctx context.Context, admin *kadm.Client, retired []*rules.Route) error {
	var names []string
	known := t.Written()
	for _, r := range retired {
		for _, topic := range emissionsOf(r) {
			if !slices.Contains(known, topic) && !slices.Contains(names, topic) {
				names = append(names, topic)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	meta, err := admin.Metadata(ctx, names...)
	if err != nil {
		return fmt.Errorf("read the metadata of topics: %w", err)
	}
	for _, name := range names {
		if detail := meta.Topics[name]; detail.Err == nil && len(detail.Partitions) > 0 {
			t.Topics[name], t.former = newTopicOf(detail), append(t.former, name)
		}
	}
	return nil
}

// emissionsOf returns the topics to which a route writes.
func emissionsOf(r *rules.Route) (topics []string) {
	for _, topic := range []string{r.Output, r.Duplicates.Topic, r.DeadLetter, r.Claim.Replies, r.Claim.Answers} {
		if topic != "" {
			topics = append(topics, topic)
		}
	}
	return topics
}

// TaskTopics returns the topics whose partitions are tasks.
func (t *Topology) TaskTopics() []string {
	if t.Repartition == "" {
		return t.Prepartitioned
	}
	return append([]string{t.Repartition}, t.Prepartitioned...)
}

// HadTasks reports whether a topic had tasks once and has none now, because a move has put another generation of
// partitions in force for the topic's keys.
func (t *Topology) HadTasks(topic string) bool {
	if number := GenerationOf(t.App, topic); number > 0 {
		return number < t.Generation
	}
	return slices.Contains(t.Routed, topic)
}

// TaskTopicOf returns the topic of the tasks that judge a route's events.
func (t *Topology) TaskTopicOf(r *rules.Route) string {
	if r.Prepartitioned {
		return r.Topics[0] // a prepartitioned route has one topic
	}
	return t.Repartition
}

// HasState reports whether a topic contains stored state, or stored state depends on its offsets: changelogs
// and the repartition topic.
func (t *Topology) HasState(topic string) bool {
	return topic == t.Repartition || slices.ContainsFunc(t.TaskTopics(), func(task string) bool { return topic == ChangelogName(t.App, task) })
}

// internal returns the names of all internal topics.
func (t *Topology) internal() []string {
	names := []string{t.Manifest}
	if t.Repartition != "" {
		names = append(names, t.Repartition)
	}
	if t.Verdicts != "" {
		names = append(names, t.Verdicts)
	}
	for _, topic := range t.TaskTopics() {
		names = append(names, ChangelogName(t.App, topic))
	}
	return names
}

// Written returns the topics to which oncebus produces, and whose limits it therefore reads. On an input topic
// the user needs no right but Read, unless it is an outcomes topic.
func (t *Topology) Written() []string {
	return slices.Concat(t.internal(), t.emissions, t.former)
}

// Inputs returns the topics that the routes read.
func (t *Topology) Inputs() []string { return slices.Concat(t.Routed, t.Prepartitioned) }

// StageTopics returns the topics that the workers of a stage read.
func (t *Topology) StageTopics(stage string) []string {
	if stage == StageRoute {
		return t.Routed
	}
	return t.TaskTopics()
}

// Partitions returns the partitions of topics, for topics whose description was read.
func (t *Topology) Partitions(topics []string) kadm.TopicsSet {
	all := kadm.TopicsSet{}
	for _, name := range topics {
		for p := range t.Topics[name].Partitions {
			all.Add(name, p)
		}
	}
	return all
}

// Numbers returns the partitions of topics in the form that [kafka.StableOffsets] takes.
func (t *Topology) Numbers(topics []string) map[string][]int32 {
	numbers := map[string][]int32{}
	for _, name := range topics {
		for p := range t.Topics[name].Partitions {
			numbers[name] = append(numbers[name], p)
		}
	}
	return numbers
}

func (t *Topology) external() []string {
	return slices.Concat(t.Routed, t.Prepartitioned, t.emissions)
}

// manifestTopics returns the topics as the manifest should have them.
func (t *Topology) manifestTopics() []manifestTopic {
	var topics []manifestTopic
	for _, name := range t.Routed {
		role := roleRouted
		if slices.Contains(t.Forwarded, name) {
			role = roleForwarded
		}
		topics = append(topics, manifestTopic{Name: name, Role: role, ID: TopicIDText(t.Topics[name].ID), Starts: t.starts[name]})
	}
	for _, name := range t.TaskTopics() {
		role, starts := rolePrepartitioned, t.starts[name]
		if name == t.Repartition {
			role, starts = roleRepartition, make([]int64, t.Topics[name].Partitions) // from offset 0: all of its records are the app's
		}
		topics = append(topics, manifestTopic{
			Name: name, Role: role, Partitions: t.Topics[name].Partitions, Starts: starts,
			ID: TopicIDText(t.Topics[name].ID), ChangelogID: TopicIDText(t.Topics[ChangelogName(t.App, name)].ID),
		})
	}
	return topics
}

// TopicIDText returns a topic id as hex digits; "" for the zero id of a missing topic.
func TopicIDText(id [16]byte) string {
	if id == [16]byte{} {
		return ""
	}
	return hex.EncodeToString(id[:])
}

// listStarts sets the first offset to read of each partition of input topics: its end with ONCEBUS_START=latest,
// otherwise its start. The manifest stores these offsets for new topics. So all workers begin at the same
// offsets, also after a restart, and the app notices if records are deleted before it has read them. If a
// partition has no leader, its offset is unknown. That matters only for a new topic, whose setup must wait for
// the offset (unlisted).
func (t *Topology) listStarts(ctx context.Context, admin *kadm.Client, start string, inputs []string) error {
	list := admin.ListStartOffsets
	if start == StartLatest {
		list = admin.ListEndOffsets
	}
	listed, err := list(ctx, inputs...)
	if err != nil && len(listed) == 0 {
		return fmt.Errorf("list the offsets of the input topics: %w", err)
	}
	t.starts, t.unlisted = map[string][]int64{}, map[string]error{}
	for _, topic := range inputs {
		starts := []int64{}
		for partition := range t.Topics[topic].Partitions {
			o, ok := listed.Lookup(topic, partition)
			if !ok || o.Err != nil {
				t.unlisted[topic] = fmt.Errorf("list the offsets of %s/%d: %w", topic, partition, cmp.Or(o.Err, err, error(kerr.LeaderNotAvailable)))
				break
			}
			starts = append(starts, o.Offset)
		}
		t.starts[topic] = starts
	}
	return nil
}

// CheckNames returns an error if a topic of the routes has the name of an internal topic of the app.
func CheckNames(app string, routes *rules.Routes) error { return newTopology(app, routes).checkNames() }

// checkNames returns an error if a topic of the routes has the name of an internal topic, or if two internal
// topics have the same name.
func (t *Topology) checkNames() error {
	var mistakes []error
	internal := map[string]bool{}
	for _, name := range t.internal() {
		if internal[name] {
			mistakes = append(mistakes, kafka.OperatorErrorf("two internal topics would have the name %s: rename a prepartitioned topic or use another ONCEBUS_APP_ID", name))
		}
		internal[name] = true
	}
	for _, name := range t.external() {
		if internal[name] {
			mistakes = append(mistakes, kafka.OperatorErrorf("routes name topic %s, which is internal to app %s: use another topic or ONCEBUS_APP_ID", name, t.App))
		}
	}
	return errors.Join(mistakes...)
}

// describe reads the metadata, and sets Topics to the existing topics.
func (t *Topology) describe(ctx context.Context, admin *kadm.Client) error {
	meta, err := admin.Metadata(ctx, append(t.internal(), t.external()...)...)
	if err != nil {
		return fmt.Errorf("read the metadata of topics: %w", err)
	}
	t.Cluster, t.brokers = meta.Cluster, max(t.brokers, len(meta.Brokers))
	return describeTopics(meta, t.Topics)
}

// DescribeTopics returns those of the topics that exist.
func DescribeTopics(ctx context.Context, admin *kadm.Client, names ...string) (map[string]Topic, error) {
	meta, err := admin.Metadata(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("read the metadata of topics: %w", err)
	}
	topics := map[string]Topic{}
	return topics, describeTopics(meta, topics)
}

// describeTopics adds the existing topics of the broker's response to a map.
func describeTopics(meta kadm.Metadata, to map[string]Topic) error {
	for name, detail := range meta.Topics {
		switch {
		case errors.Is(detail.Err, kerr.UnknownTopicOrPartition):
		case detail.Err != nil:
			return fmt.Errorf("describe topic %s: %w", name, kafka.Denied(detail.Err, "Describe", kafka.ResourceTopic, name))
		default:
			to[name] = newTopicOf(detail)
		}
	}
	return nil
}
