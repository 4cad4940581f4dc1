package demo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// broker is the Kafka cluster of the demo: an embedded broker, or a given cluster on which all topics and
// consumer groups of the demo have a prefix.
type broker struct {
	addrs    []string
	prefix   string // of every topic and group; "" on the embedded broker
	embedded *kfake.Cluster
}

// openBroker starts the embedded broker, unless addrs name a cluster.
func openBroker(addrs []string) (*broker, error) {
	if len(addrs) > 0 {
		return &broker{addrs: addrs, prefix: "oncebus-demo-" + strconv.FormatInt(time.Now().UnixMilli(), 36) + "-"}, nil
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{
		// kfake's compaction can remove rows of open transactions, which Kafka's compaction does not. So
		// compaction is switched off; a demo ends long before it would need it.
		"log.cleaner.backoff.ms": strconv.FormatInt((24 * time.Hour).Milliseconds(), 10),
		"log.segment.bytes":      strconv.Itoa(1 << 20),
	}))
	if err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	cluster.ControlKey(kmsg.Fetch.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		// If kfake cuts off a fetch response because of its total size, the response lacks the list of aborted
		// transactions, so readers would get aborted records. Therefore the demo removes the limit of the total
		// size; the limit of each partition stays.
		cluster.KeepControl()
		if fetch, ok := req.(*kmsg.FetchRequest); ok {
			fetch.MaxBytes = math.MaxInt32
		}
		return nil, nil, false
	})
	return &broker{addrs: cluster.ListenAddrs(), embedded: cluster}, nil
}

// create creates the input topics. They have at most as many replicas as the cluster has brokers. create sends
// the first request to the cluster, so it fails if no broker responds at the address.
func (b *broker) create(ctx context.Context, admin *kadm.Client, replication int16, topics ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	cluster, err := admin.BrokerMetadata(ctx)
	var made kadm.CreateTopicResponses
	if err == nil {
		made, err = admin.CreateTopics(ctx, inputPartitions, min(replication, int16(len(cluster.Brokers))), nil, topics...)
	}
	if err == nil {
		err = made.Error()
	}
	if err != nil {
		return fmt.Errorf("create the input topics on %s: %w", strings.Join(b.addrs, ","), err)
	}
	return nil
}

// stop stops the embedded broker.
func (b *broker) stop() {
	if b.embedded != nil {
		b.embedded.Close()
	}
}

// remove deletes all topics and consumer groups with the demo's prefix, if the demo runs on a given cluster.
func (b *broker) remove(ctx context.Context, admin *kadm.Client) error {
	if b.embedded != nil {
		return nil
	}
	// The topics and groups must be removed even if the demo was interrupted and ctx is done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	ours := func(names []string) []string {
		return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, b.prefix) })
	}
	groups, groupsErr := admin.ListGroups(ctx)
	removeErr := removeGroups(ctx, admin, ours(groups.Groups()))
	topics, topicsErr := admin.ListTopics(ctx)
	gone, goneErr := admin.DeleteTopics(ctx, ours(topics.Names())...)
	if err := errors.Join(groupsErr, removeErr, topicsErr, goneErr, gone.Error()); err != nil {
		return fmt.Errorf("remove the demo's topics and groups (prefix %s): %w", b.prefix, err)
	}
	return nil
}

// removeGroups deletes consumer groups. It removes their static members first: a static member stays in its
// group until the session timeout, and Kafka cannot delete a group that has members.
func removeGroups(ctx context.Context, admin *kadm.Client, names []string) error {
	groups, err := admin.DescribeGroups(ctx, names...)
	errs := []error{err, groups.Error()}
	for _, group := range groups {
		var members []string
		for _, member := range group.Members {
			if member.InstanceID != nil {
				members = append(members, *member.InstanceID)
			}
		}
		if len(members) > 0 {
			left, err := admin.LeaveGroup(ctx, kadm.LeaveGroup(group.Group).InstanceIDs(members...))
			errs = append(errs, err, left.Error())
		}
	}
	deleted, err := admin.DeleteGroups(ctx, names...)
	return errors.Join(append(errs, err, deleted.Error())...)
}

// readTopics reads topics as a read_committed consumer does, from their start to the end that they have at the
// time of the call, and passes every record to each. It compares offsets with the end offset instead of waiting
// for a last record, because a partition may end with control records.
func readTopics(ctx context.Context, admin *kadm.Client, opts []kgo.Opt, each func(*kgo.Record), topics ...string) error {
	ends, err := admin.ListEndOffsets(ctx, topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("list the end offsets of %s: %w", strings.Join(topics, ", "), err)
	}
	unread, starts := unreadPartitions(ends)
	if len(unread) == 0 {
		return nil
	}
	client, err := kgo.NewClient(append(opts[:len(opts):len(opts)], kgo.ConsumePartitions(starts), kgo.KeepControlRecords(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset()))...)
	if err != nil {
		return err
	}
	defer client.Close()
	for len(unread) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return fmt.Errorf("read the output topics, with %v unread: %w", unread, err)
		}
		for _, e := range fetches.Errors() {
			return fmt.Errorf("read %s/%d: %w", e.Topic, e.Partition, e.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				each(r)
			}
			if p := (topicPartition{r.Topic, r.Partition}); r.Offset+1 >= unread[p] {
				delete(unread, p)
			}
		})
	}
	return nil
}

type topicPartition struct {
	topic     string
	partition int32
}

// unreadPartitions returns the end offsets of the partitions that are not empty, and the offsets at which a
// consumer begins to read them.
func unreadPartitions(ends kadm.ListedOffsets) (map[topicPartition]int64, map[string]map[int32]kgo.Offset) {
	unread := map[topicPartition]int64{}
	starts := map[string]map[int32]kgo.Offset{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset == 0 {
			return
		}
		if starts[o.Topic] == nil {
			starts[o.Topic] = map[int32]kgo.Offset{}
		}
		starts[o.Topic][o.Partition] = kgo.NewOffset().AtStart()
		unread[topicPartition{o.Topic, o.Partition}] = o.Offset
	})
	return unread, starts
}
