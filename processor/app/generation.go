package app

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/processor/kafka"
)

// The keys of an app are in one generation of partitions: a repartition topic with its changelog. 'oncebus
// move' puts the next generation in force, with another number of partitions. The manifest says which
// generation is in force: the role of its topic is roleRepartition. The topic of an earlier generation has
// roleForwarded, and roleFinished once it is deleted.

// generation says which generation of partitions is in force, and what is left of earlier ones.
type generation struct {
	number int64
	// forwarded are the repartition topics of earlier generations, which may still get records.
	forwarded []string
	// moved are the topics that were prepartitioned once and are routed now, as long as their changelogs are not
	// deleted.
	moved []string
}

// RepartitionName returns the name of the repartition topic of a generation; the first generation has number 1.
func RepartitionName(app string, number int64) string {
	if number <= 1 {
		return app + "-repartition"
	}
	return app + "-repartition-" + strconv.FormatInt(number, 10)
}

// GenerationOf returns the generation whose repartition topic has a name; 0 for any other topic.
func GenerationOf(app, topic string) int64 {
	if topic == RepartitionName(app, 1) {
		return 1
	}
	rest, _ := strings.CutPrefix(topic, RepartitionName(app, 1))
	number, err := strconv.ParseInt(strings.TrimPrefix(rest, "-"), 10, 64)
	if err != nil || number < 2 || RepartitionName(app, number) != topic {
		return 0
	}
	return number
}

// generation returns the generation in force. The manifest lists topics in the order in which they were added,
// so the last repartition topic belongs to the newest generation.
func (m *Manifest) generation() (on generation) {
	on.number = 1
	if m == nil {
		return on
	}
	for _, t := range m.Topics {
		switch t.Role {
		case roleRepartition:
			if n, err := strconv.ParseInt(t.Name[strings.LastIndexByte(t.Name, '-')+1:], 10, 64); err == nil && n > 1 {
				on.number = n
			}
		case roleForwarded:
			on.forwarded = append(on.forwarded, t.Name)
		case roleRouted:
			if t.ChangelogID != "" {
				on.moved = append(on.moved, t.Name)
			}
		}
	}
	return on
}

// moveTo puts a generation in force. starts are the offsets, by partition, from which on the records of the
// present repartition topic are forwarded to the new one. starts is empty for an app without a repartition
// topic.
func (m *Manifest) moveTo(next manifestTopic, starts []int64) error {
	at := slices.IndexFunc(m.Topics, func(t manifestTopic) bool { return t.Role == roleRepartition })
	switch {
	case at >= 0 && len(starts) != int(m.Topics[at].Partitions):
		return kafka.OperatorErrorf("topic %s has %d partitions, %d were closed", m.Topics[at].Name, m.Topics[at].Partitions, len(starts))
	case at >= 0:
		m.Topics[at].Role, m.Topics[at].Starts = roleForwarded, starts
	case len(starts) > 0:
		return kafka.OperatorErrorf("the manifest has no repartition topic")
	}
	next.Role, next.Starts = roleRepartition, make([]int64, next.Partitions)
	m.Topics = append(m.Topics, next)
	return nil
}

// routeInput makes a prepartitioned topic a routed one. starts are the offsets, by partition, from which on the
// topic's records are routed. A partition without an entry, which was added later, is routed from its start.
func (m *Manifest) routeInput(in SwitchInput, starts []int64) error {
	at := slices.IndexFunc(m.Topics, func(t manifestTopic) bool { return t.Name == in.Topic && t.Role == rolePrepartitioned })
	if at < 0 || len(starts) != int(m.Topics[at].Partitions) || len(starts) != int(in.Partitions) {
		return kafka.OperatorErrorf("topic %s is not prepartitioned with %d partitions in the manifest", in.Topic, len(starts))
	}
	m.Topics[at].Role, m.Topics[at].Starts = roleRouted, starts
	return nil
}

// limitToTasks gives prepartitioned topics the number of partitions with which the app began. An operator may
// have added partitions since then, but no task reads the added ones.
func (m *Manifest) limitToTasks(t *Topology) {
	for _, have := range m.grown(t) {
		topic := t.Topics[have.Name]
		topic.Partitions = have.Partitions
		t.Topics[have.Name] = topic
	}
}

// grown returns the prepartitioned topics to which partitions were added, with the partition counts that they
// had before.
func (m *Manifest) grown(t *Topology) (all []manifestTopic) {
	for _, have := range m.Topics {
		topic, ok := t.Topics[have.Name]
		if ok && have.Role == rolePrepartitioned && topic.Partitions > have.Partitions && TopicIDText(topic.ID) == have.ID {
			all = append(all, have)
		}
	}
	return all
}

// Prepared returns the app as it will be after a switch that is being prepared, so that processes can restore
// its new tasks before these have owners. It returns nil while the new topics do not exist. The routes, and the
// topics to which they write, are those from before the switch.
func (rt *App) Prepared(ctx context.Context, admin *kadm.Client, number int64) (*App, error) {
	t := *rt.Topology
	t.Generation, t.Repartition = number, RepartitionName(t.App, number)
	changelog := ChangelogName(t.App, t.Repartition)
	found, err := DescribeTopics(ctx, admin, t.Repartition, changelog)
	if err != nil || found[t.Repartition].Partitions == 0 || found[changelog].Partitions == 0 {
		return nil, err
	}
	t.Topics = maps.Clone(t.Topics)
	maps.Copy(t.Topics, found)
	prepared := newApp(&t, rt.Manifest, rt.InForce)
	prepared.Clock = rt.Clock
	return prepared, nil
}

// compareForwarded compares the topic of an earlier generation in the manifest with the broker's topic.
func (have manifestTopic) compareForwarded(want manifestTopic) []error {
	switch want.ID {
	case have.ID:
		return nil
	case "":
		return []error{kafka.OperatorErrorf("topic %s was deleted before the app had forwarded all of its records, which 'oncebus move --finish' checks: recreate the topic, and accept that it was recreated", have.Name)}
	}
	return []error{kafka.OperatorErrorf("topic %s was deleted and recreated (id %s, was %s): records that were not forwarded are lost; run: oncebus move --finish", have.Name, want.ID, have.ID)}
}
