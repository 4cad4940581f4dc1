//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// brokerHeapMiB is the size of the broker's Java heap in MiB, the same as in Kafka's start script.
const brokerHeapMiB = 1024

// Broker is an Apache Kafka broker for one run of a benchmark.
type Broker struct {
	*kafkatest.Broker

	// Dir is the temporary directory of the run. The state of the contenders is below it, too.
	Dir string
}

// StartBroker starts a broker in a temporary directory named after the
// benchmark; the caller calls Close.
func StartBroker(ctx context.Context, name string) (*Broker, error) {
	dir, err := os.MkdirTemp("", "oncebus-"+name+"-")
	if err != nil {
		return nil, err
	}
	b := &Broker{Dir: dir}
	if b.Broker, err = kafkatest.StartBroker(ctx, filepath.Join(dir, "kafka"), kafkatest.WithHeapMiB(brokerHeapMiB)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return b, nil
}

// Close ends the broker and removes the run's directory.
func (b *Broker) Close() error { return errors.Join(b.Broker.Close(), os.RemoveAll(b.Dir)) }

// Usage returns the resources that the broker's process has used.
func (b *Broker) Usage() (program.Usage, error) { return program.UsageOf(b.Brokers()[0].PID()) }

// CreateTopics creates the topics and waits until every client can see them.
func (b *Broker) CreateTopics(ctx context.Context, partitions int, topics ...string) error {
	resp, err := b.Admin().CreateTopics(ctx, int32(partitions), 1, nil, topics...)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		return fmt.Errorf("create %v: %w", topics, err)
	}
	return kafkatest.Await(ctx, fmt.Sprintf("clients see %v", topics), func(ctx context.Context) error {
		listed, err := b.Admin().ListTopics(ctx, topics...)
		if err == nil {
			err = listed.Error()
		}
		return err
	})
}

// DeleteApp deletes all topics whose names begin with app and a dash: the topics of a contender, including those that
// it created itself.
func (b *Broker) DeleteApp(ctx context.Context, app string) error {
	listed, err := b.Admin().ListTopics(ctx)
	if err != nil {
		return err
	}
	listed.FilterInternal()
	var topics []string
	for _, topic := range listed.Names() {
		if strings.HasPrefix(topic, app+"-") {
			topics = append(topics, topic)
		}
	}
	if len(topics) == 0 {
		return nil
	}
	resp, err := b.Admin().DeleteTopics(ctx, topics...)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		return fmt.Errorf("delete %v: %w", topics, err)
	}
	return nil
}

// Ends returns the sum of the last stable offsets of a topic's partitions. This is the number of committed records,
// plus one control record for each transaction in each partition that the transaction wrote to.
func (b *Broker) Ends(ctx context.Context, topic string) (sum int64, err error) {
	ends, err := b.Admin().ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	ends.Each(func(o kadm.ListedOffset) { sum += o.Offset })
	return sum, err
}

// Committed returns the sum of the offsets that a group has committed in a topic. An Input has no transactions, so
// for an Input this is the number of processed events.
func (b *Broker) Committed(ctx context.Context, group, topic string) (sum int64, err error) {
	committed, err := b.Admin().FetchOffsets(ctx, group)
	for _, at := range committed[topic] {
		sum += max(0, at.At)
	}
	return sum, err
}
