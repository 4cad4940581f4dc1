package app

import (
	"strconv"
	"strings"

	"oncebus/processor/kafka"
)

// The keys of an app are in one generation of partitions: the repartition topic, with its
// changelog. 'oncebus move' puts the next one in force, with another number of partitions. The
// manifest says which one is in force: its topic has roleRepartition. Earlier ones have
// roleForwarded, and roleFinished once their topics are deleted.

// generation is the generation of partitions in force.
type generation struct {
	number    int64
	forwarded []string // the repartition topics of earlier ones that may still get records
}

// RepartitionName returns the repartition topic of a generation, from 1.
func RepartitionName(app string, number int64) string {
	if number <= 1 {
		return app + "-repartition"
	}
	return app + "-repartition-" + strconv.FormatInt(number, 10)
}

// GenerationOf returns the generation whose repartition topic has a name; 0 for another topic.
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

// generation returns the generation in force. The manifest's topics are in the order in which
// they were added, so the last repartition topic is that of the newest one.
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
		}
	}
	return on
}

// moveTo puts a generation in force. starts are the offsets from which on the records of the
// repartition topic so far are forwarded, by partition.
func (m *Manifest) moveTo(next manifestTopic, starts []int64) error {
	for i := range m.Topics {
		if t := &m.Topics[i]; t.Role == roleRepartition {
			if len(starts) != int(t.Partitions) {
				return kafka.OperatorErrorf("topic %s has %d partitions, %d were closed", t.Name, t.Partitions, len(starts))
			}
			t.Role, t.Starts = roleForwarded, starts
			next.Role, next.Starts = roleRepartition, make([]int64, next.Partitions)
			m.Topics = append(m.Topics, next)
			return nil
		}
	}
	return kafka.OperatorErrorf("the manifest has no repartition topic")
}

// compareForwarded compares the topic of an earlier generation with the broker's.
func (have manifestTopic) compareForwarded(want manifestTopic) []error {
	switch want.ID {
	case have.ID:
		return nil
	case "":
		return []error{kafka.OperatorErrorf("topic %s was deleted before the app had forwarded all of its records, which 'oncebus move --finish' checks: recreate the topic, and accept that it was recreated", have.Name)}
	}
	return []error{kafka.OperatorErrorf("topic %s was deleted and recreated (id %s, was %s): records that were not forwarded are lost; run: oncebus move --finish", have.Name, want.ID, have.ID)}
}
