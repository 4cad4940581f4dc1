//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/processor/kafkatest"
)

// brokerBackMax limits the time from the return of the last broker until the app processes events. In this time
// members rejoin the group, and open transactions time out.
const brokerBackMax = 30 * time.Second

// brokerFaults are rows b1 to b5: faults of Kafka.
var brokerFaults = []*fault{
	{row: "b1", name: "broker-kill", weight: 2, broker: true, apply: brokerDown((*kafkatest.Node).Kill, 0, time.Second)},
	{row: "b2", name: "broker-freeze", weight: 2, broker: true, apply: brokerFreeze},
	{row: "b2", name: "broker-down", broker: true, apply: brokerDown((*kafkatest.Node).Kill, 10*time.Second, 60*time.Second)},
	{row: "b2", name: "broker-restart", broker: true, apply: brokerDown((*kafkatest.Node).Stop, 0, time.Second)},
	{row: "b3", name: "transaction-version", broker: true, kafka4: true, apply: transactionVersion},
	{row: "b5", name: "aggressive-compaction", slots: 1, broker: true, apply: aggressiveCompaction},
	{row: "b1", name: "leader-kill", weight: 4, nodes: 3, broker: true, apply: leaderKill},
	{row: "b2", name: "rolling-brokers", nodes: 3, broker: true, apply: rollingBrokers},
	{row: "b3", name: "coordinator-moves", weight: 2, nodes: 3, broker: true, apply: coordinatorMoves},
	{row: "b4", name: "min-isr-lost", weight: 2, nodes: 3, broker: true, apply: minISRLost},
}

// brokerDown stops a broker for some time. It may be the only broker.
func brokerDown(end func(*kafkatest.Node) error, low, high time.Duration) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) error {
		// In a short run the time is at most a twentieth of the run, because a minute would be too long.
		d := max(k.h.cluster.downMin(), min(k.between(low, high), k.h.set.duration/20))
		k.note("down for %v", d.Round(time.Millisecond))
		brokers := k.h.cluster.kafka.Brokers()
		if err := errors.Join(end(brokers[k.rng.IntN(len(brokers))]), kafkatest.Pause(ctx, d), k.h.cluster.revive(ctx)); err != nil {
			return err
		}
		return k.recovers(ctx, time.Now(), brokerBackMax)
	}
}

// brokerFreeze pauses one broker. The broker's connections stay open.
func brokerFreeze(ctx context.Context, k *strike) error {
	brokers := k.h.cluster.kafka.Brokers()
	n := brokers[k.rng.IntN(len(brokers))]
	d := k.between(time.Second, k.h.cluster.pauseMax())
	k.note("%v", d.Round(time.Millisecond))
	if err := errors.Join(n.Pause(), kafkatest.Pause(ctx, d), n.Resume(), k.h.cluster.awaitInSync(ctx)); err != nil {
		return err
	}
	return k.recovers(ctx, time.Now(), brokerBackMax)
}

// transactionVersion downgrades the cluster's feature transaction.version to the version before KIP-890 and
// upgrades it again, under load.
func transactionVersion(ctx context.Context, k *strike) error {
	if err := k.h.cluster.kafka.SetTransactionVersion(ctx, 1); err != nil {
		return err
	}
	err := kafkatest.Pause(ctx, k.between(2*time.Second, 6*time.Second))
	if err := errors.Join(err, k.h.cluster.kafka.SetTransactionVersion(ctx, 2)); err != nil {
		return err
	}
	return k.recovers(ctx, time.Now(), brokerBackMax)
}

// compactionConfigs make Kafka roll and clean the segments of the changelog as fast as possible, and delete
// tombstones at once. The lag gives the observer time to read records before they are compacted.
var compactionConfigs = map[string]string{
	"segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "2000", "delete.retention.ms": "100",
}

// aggressiveCompaction cleans the changelog while one process is stopped. The process then restarts either with a
// store whose position is in the cleaned part, or without a store.
func aggressiveCompaction(ctx context.Context, k *strike) error {
	s := k.slots[0]
	if err := s.kill(); err != nil {
		return err
	}
	lost := k.rng.IntN(2) == 0
	if lost {
		if err := loseStores(s); err != nil {
			return err
		}
	}
	if err := k.app.configureChangelog(ctx, compactionConfigs, false); err != nil {
		return errors.Join(err, s.start(ctx))
	}
	cleanedErr := k.awaitCleaned(ctx)
	k.note("stores lost: %v", lost)
	if err := errors.Join(s.start(ctx), s.awaitReady(ctx)); err != nil {
		return err
	}
	started := time.Now()
	err := k.recovers(ctx, started, takeOverMax)
	return errors.Join(err, cleanedErr, k.app.configureChangelog(ctx, compactionConfigs, true))
}

// configureChangelog sets settings of the app's changelog topic, or resets them if undo is set.
func (a *app) configureChangelog(ctx context.Context, configs map[string]string, undo bool) error {
	var alter []kadm.AlterConfig
	for name, value := range configs {
		c := kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value}
		if undo {
			// The app itself sets two of these settings, so undo must restore the app's values of them.
			switch name {
			case "segment.ms":
				*c.Value = "3600000"
			case "min.cleanable.dirty.ratio":
				*c.Value = "0.3"
			default:
				c.Op, c.Value = kadm.DeleteConfig, nil
			}
		}
		alter = append(alter, c)
	}
	resp, err := a.h.admin.AlterTopicConfigs(ctx, alter, a.changelog())
	if err != nil {
		return fmt.Errorf("change the settings of %s: %w", a.changelog(), err)
	}
	for _, r := range resp {
		if r.Err != nil {
			return fmt.Errorf("change the settings of %s: %w: %s", r.Name, r.Err, r.ErrMessage)
		}
	}
	return nil
}

// awaitCleaned waits until the log cleaner has processed every partition of the changelog again, according to its
// checkpoint file.
func (k *strike) awaitCleaned(ctx context.Context) error {
	before, err := k.cleaned()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err = kafkatest.Await(ctx, "the changelog is cleaned", func(context.Context) error {
		now, err := k.cleaned()
		if err != nil {
			return err
		}
		for p := range partitions {
			place := fmt.Sprintf("%s %d", k.app.changelog(), p)
			if now[place] == "" || now[place] == before[place] {
				return fmt.Errorf("%s: cleaned up to %s", place, now[place])
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errNotStruck, err)
	}
	return nil
}

// cleaned returns the offsets up to which the brokers' log cleaners have cleaned. The keys are "topic partition".
func (k *strike) cleaned() (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(k.h.dir, "kafka", "*", "cleaner-offset-checkpoint"))
	if err != nil {
		return nil, err
	}
	more, err := filepath.Glob(filepath.Join(k.h.dir, "kafka", "*", "*", "cleaner-offset-checkpoint"))
	if err != nil {
		return nil, err
	}
	at := map[string]string{}
	for _, file := range append(files, more...) {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(content)) {
			if f := strings.Fields(line); len(f) == 3 {
				at[f[0]+" "+f[1]] += f[2] + ";"
			}
		}
	}
	return at, nil
}

// leaderKill kills the leader of one of the app's partitions and restarts it.
func leaderKill(ctx context.Context, k *strike) error {
	topics := []string{k.app.repartition(), k.app.changelog(), k.app.topic("signals.unique"), "__consumer_offsets", "__transaction_state"}
	n, topic, err := k.someLeader(ctx, topics)
	if err != nil {
		return err
	}
	d := k.between(time.Second, 8*time.Second)
	k.note("leader %d of %s for %v", n.ID(), topic, d.Round(time.Millisecond))
	if err := errors.Join(n.Kill(), kafkatest.Pause(ctx, d), k.h.cluster.revive(ctx)); err != nil {
		return err
	}
	return k.recovers(ctx, time.Now(), brokerBackMax)
}

// someLeader returns the broker that leads a random partition of one of these topics.
func (k *strike) someLeader(ctx context.Context, topics []string) (n *kafkatest.Node, topic string, err error) {
	topic = topics[k.rng.IntN(len(topics))]
	meta, err := k.h.admin.Metadata(ctx, topic)
	if err != nil {
		return nil, "", err
	}
	details := meta.Topics[topic].Partitions
	if n = k.h.cluster.node(details[int32(k.rng.IntN(len(details)))].Leader); n == nil {
		return nil, "", fmt.Errorf("%w: a partition of %s has no leader now", errNotStruck, topic)
	}
	return n, topic, nil
}

// rollingBrokers restarts one broker after the other.
func rollingBrokers(ctx context.Context, k *strike) error {
	for _, n := range k.h.cluster.kafka.Brokers() {
		if err := errors.Join(n.Stop(), k.h.cluster.revive(ctx), kafkatest.Pause(ctx, 2*time.Second)); err != nil {
			return err
		}
	}
	return k.recovers(ctx, time.Now(), brokerBackMax)
}

// coordinatorMoves stops the broker that coordinates the app's group or one of its transactions. Another broker must
// take over.
func coordinatorMoves(ctx context.Context, k *strike) error {
	var moved []string
	for range 2 {
		found := k.h.admin.FindGroupCoordinators(ctx, k.app.group("dedup"))
		if k.rng.IntN(2) == 0 {
			found = k.h.admin.FindTxnCoordinators(ctx, k.app.id+"-dedup-0/"+k.base[0].name)
		}
		for _, c := range found {
			n := k.h.cluster.node(c.NodeID)
			if c.Err != nil || n == nil {
				return fmt.Errorf("%w: no coordinator of %s now: %w", errNotStruck, c.Name, c.Err)
			}
			moved = append(moved, fmt.Sprintf("%s from %d", c.Name, n.ID()))
			if err := errors.Join(n.Stop(), kafkatest.Pause(ctx, k.between(time.Second, 3*time.Second)), k.h.cluster.revive(ctx)); err != nil {
				return err
			}
		}
	}
	k.note("%s", strings.Join(moved, ", "))
	return k.recovers(ctx, time.Now(), brokerBackMax)
}

// minISRLost stops two of three brokers: writes with acks=all fail until one of the two returns.
func minISRLost(ctx context.Context, k *strike) error {
	brokers := k.h.cluster.kafka.Brokers()
	k.rng.Shuffle(len(brokers), func(i, j int) { brokers[i], brokers[j] = brokers[j], brokers[i] })
	d := k.between(2*time.Second, 10*time.Second)
	k.note("only broker %d for %v", brokers[2].ID(), d.Round(time.Millisecond))
	if err := errors.Join(brokers[0].Kill(), brokers[1].Kill(), kafkatest.Pause(ctx, d), k.h.cluster.revive(ctx)); err != nil {
		return err
	}
	return k.recovers(ctx, time.Now(), brokerBackMax)
}
