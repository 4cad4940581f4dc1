//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/proxy"
)

// machineFaults are rows b2 and s5: brokers and disks that stop responding but do not end.
var machineFaults = []*fault{
	{row: "b2", name: "freeze-in-commit", weight: 2, broker: true, apply: freezeInCommit},
	{row: "b2", name: "freeze-controller", nodes: 3, broker: true, apply: freezeController},
	{row: "b2", name: "freeze-leader", nodes: 3, broker: true, apply: freezeLeader},
	{row: "b2", name: "freeze-group-coordinator", nodes: 3, broker: true, apply: freezeCoordinator(groupCoordinator)},
	{row: "b2", name: "freeze-transaction-coordinator", nodes: 3, broker: true, apply: freezeCoordinator(transactionCoordinator)},
	{row: "s5", name: "slow-state-disk", slots: 1, loop: true, apply: slowStateDisk},
	{row: "s5", name: "slow-broker-disk", broker: true, apply: slowBrokerDisk},
}

// requestTimeout is how long the client waits for the response of a broker that has stopped. It is franz-go's
// default.
const requestTimeout = 10 * time.Second

// freezeTime returns how long to pause a broker. If other brokers can take over, it is longer than the timeouts of
// sessions, transactions and requests.
func (k *strike) freezeTime() time.Duration {
	c := k.h.cluster
	if c.alone() {
		return k.between(time.Second, c.pauseMax())
	}
	return k.between(max(sessionTimeout, transactionTimeout, requestTimeout)+2*time.Second, c.pauseMax())
}

// freezeNode pauses a node and waits until the app has recovered.
func (k *strike) freezeNode(ctx context.Context, n *kafkatest.Node, d time.Duration) error {
	if err := errors.Join(n.Pause(), kafkatest.Pause(ctx, d), n.Resume(), k.h.cluster.awaitInSync(ctx)); err != nil {
		return err
	}
	return k.recovers(ctx, time.Now(), brokerBackMax)
}

// freezeController pauses the controller. While it is paused, no partition gets a new leader.
func freezeController(ctx context.Context, k *strike) error {
	d := k.between(time.Second, k.h.cluster.pauseMax())
	k.note("%v", d.Round(time.Millisecond))
	return k.freezeNode(ctx, k.h.cluster.kafka.Controller(), d)
}

// freezeLeader pauses the leader of one of the app's partitions.
func freezeLeader(ctx context.Context, k *strike) error {
	topics := append([]string{k.app.repartition(), k.app.changelog()}, k.app.outputs()...)
	n, topic, err := k.someLeader(ctx, topics)
	if err != nil {
		return err
	}
	d := k.freezeTime()
	k.note("leader %d of %s for %v", n.ID(), topic, d.Round(time.Millisecond))
	return k.freezeNode(ctx, n, d)
}

// freezeCoordinator pauses a broker that coordinates the app's group or one of its transactions.
func freezeCoordinator(find func(context.Context, *strike) (*kafkatest.Node, string, error)) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) error {
		n, of, err := find(ctx, k)
		if err != nil {
			return err
		}
		d := k.freezeTime()
		k.note("coordinator %d of %s for %v", n.ID(), of, d.Round(time.Millisecond))
		return k.freezeNode(ctx, n, d)
	}
}

func groupCoordinator(ctx context.Context, k *strike) (*kafkatest.Node, string, error) {
	return k.coordinator(k.h.admin.FindGroupCoordinators(ctx, k.app.group("dedup")))
}

func transactionCoordinator(ctx context.Context, k *strike) (*kafkatest.Node, string, error) {
	return k.coordinator(k.h.admin.FindTxnCoordinators(ctx, k.transactionalID()))
}

// transactionalID returns the transactional id of a worker in the dedup stage.
func (k *strike) transactionalID() string {
	return fmt.Sprintf("%s-dedup-%d/%s", k.app.id, k.rng.IntN(2), k.base[k.rng.IntN(len(k.base))].name)
}

// coordinator returns the broker that a response names, and the name of the group or the transactional id that
// this broker coordinates.
func (k *strike) coordinator(found kadm.FindCoordinatorResponses) (*kafkatest.Node, string, error) {
	for _, c := range found {
		n := k.h.cluster.node(c.NodeID)
		if c.Err != nil || n == nil {
			return nil, "", fmt.Errorf("%w: no coordinator of %s now: %w", errNotStruck, c.Name, c.Err)
		}
		return n, c.Name, nil
	}
	return nil, "", fmt.Errorf("%w: no response names a coordinator", errNotStruck)
}

// freezeInCommit pauses the coordinator of a transaction while the transaction ends. The EndTxn request either
// arrives just before the pause, or waits in the broker's socket and is handled after the pause.
func freezeInCommit(ctx context.Context, k *strike) error {
	n, id, err := transactionCoordinator(ctx, k)
	if err != nil {
		return err
	}
	arrives := time.Millisecond + time.Duration(k.rng.IntN(4))*50*time.Millisecond
	f, err := k.h.cluster.proxy.Add(proxy.Rule{
		Match: proxy.Match{APIs: apis(kmsg.EndTxn), Where: func(r kmsg.Request) bool {
			end, ok := r.(*kmsg.EndTxnRequest)
			return ok && end.Commit && end.TransactionalID == id
		}},
		Action: proxy.DelayRequest, Delay: arrives, Count: 1,
	})
	if err != nil {
		return err
	}
	defer f.Remove()
	waiting, cancel := context.WithTimeout(ctx, ruleMax)
	defer cancel()
	if f.Wait(waiting, 1) != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%w: transaction %s did not end in %v", errNotStruck, id, ruleMax))
	}
	d := k.freezeTime()
	k.note("coordinator %d of %s, EndTxn %v after the pause, for %v", n.ID(), id, arrives, d.Round(time.Millisecond))
	return k.freezeNode(ctx, n, d)
}

const (
	// slowFor is the shortest time for which a disk is slow.
	slowFor = 8 * time.Second
	// slowMax limits how long a disk stays slow. The disk is slow until the app has processed events that were made
	// after it became slow.
	slowMax = takeOverMax + slowFor
)

// slow applies stall again and again. Meanwhile the app must process events that are made after the start of
// slow, although most writes wait. Then slow applies one stall that lasts longer than the transaction timeout.
func (k *strike) slow(ctx context.Context, stall func(context.Context, time.Duration) error, longest time.Duration) error {
	began := time.Now()
	slow, end := context.WithCancel(ctx)
	stalled := make(chan error, 1)
	stalls := 0
	short, gap := max(time.Second, longest/4), 100*time.Millisecond
	var pauses []time.Duration
	for range 400 {
		pauses = append(pauses, k.between(short/4, short))
	}
	go func() {
		for _, d := range pauses {
			err := errors.Join(stall(slow, d), kafkatest.Pause(slow, gap))
			if slow.Err() != nil {
				err = nil
			}
			if stalls++; err != nil || slow.Err() != nil {
				stalled <- err
				return
			}
		}
		stalled <- nil
	}()
	err := errors.Join(kafkatest.Pause(ctx, slowFor), k.recovers(ctx, began, slowMax))
	end()
	if err := errors.Join(err, <-stalled); err != nil {
		return fmt.Errorf("while the disk was slow: %w", err)
	}
	k.note("%d stalls of up to %v in %v, then %v", stalls, short, time.Since(began).Round(time.Second), longest.Round(time.Millisecond))
	return stall(ctx, longest)
}

// stallTime returns a time longer than a transaction may take.
func (k *strike) stallTime() time.Duration {
	return k.between(transactionTimeout+time.Second, transactionTimeout+4*time.Second)
}

// blockTime returns how long a broker's disk blocks: longer than a transaction may take. A single broker must
// keep its session in that time (KAFKA-20734, see startCluster): with a session timeout of 6 s, the broker lost
// its partitions when its disk blocked for 8 s.
func (k *strike) blockTime() time.Duration {
	if k.h.cluster.alone() {
		return k.between(transactionTimeout+200*time.Millisecond, aloneSession-2*time.Second)
	}
	return k.stallTime()
}

// slowStateDisk moves the state of one process to a disk on which writes block most of the time. The process must not
// end, and must not lose its tasks for good.
func slowStateDisk(ctx context.Context, k *strike) (err error) {
	s := k.slots[0]
	if err := s.kill(); err != nil {
		return err
	}
	disk, err := moveToLoopDisk(s.stateDir())
	if err != nil {
		return errors.Join(err, s.start(ctx))
	}
	defer func() {
		err = errors.Join(err, s.kill(), disk.moveBack())
		if ctx.Err() == nil {
			err = errors.Join(err, s.start(ctx), s.awaitReady(ctx))
		}
	}()
	if err := errors.Join(s.start(ctx), s.awaitReady(ctx)); err != nil {
		return err
	}
	proc := s.current()
	if err := k.slow(ctx, disk.block, k.stallTime()); err != nil {
		return err
	}
	if err := k.recovers(ctx, time.Now(), takeOverMax); err != nil {
		return err
	}
	return proc.Ended()
}

// slowBrokerDisk makes the disk of a broker slow. The broker's process runs and keeps its session, while produce
// requests, offset commits and the ends of transactions wait. On a machine without loop disks the process itself is
// paused instead.
func slowBrokerDisk(ctx context.Context, k *strike) error {
	c := k.h.cluster
	brokers := c.kafka.Brokers()
	n := brokers[k.rng.IntN(len(brokers))]
	stall, longest := pauseNode(n), k.between(time.Second, c.pauseMax())
	if loopDisks() == nil {
		disk, err := c.loopDisk(ctx, n)
		if err != nil {
			return err
		}
		stall, longest = disk.block, k.blockTime()
	}
	if err := errors.Join(k.slow(ctx, stall, longest), c.awaitInSync(ctx)); err != nil {
		return err
	}
	return k.recovers(ctx, time.Now(), brokerBackMax)
}

// pauseNode returns a stall that pauses a broker's process.
func pauseNode(n *kafkatest.Node) func(context.Context, time.Duration) error {
	return func(ctx context.Context, d time.Duration) error {
		if err := n.Pause(); err != nil {
			return err
		}
		return errors.Join(kafkatest.Pause(ctx, d), n.Resume())
	}
}

// loopDisk returns the loop disk with a broker's data. The first call stops the broker and moves the data to the loop
// disk, where the data stays.
func (c *cluster) loopDisk(ctx context.Context, n *kafkatest.Node) (*loopDisk, error) {
	if disk := c.disks[n.ID()]; disk != nil {
		return disk, nil
	}
	if err := errors.Join(n.Kill(), kafkatest.Pause(ctx, c.downMin())); err != nil {
		return nil, err
	}
	disk, err := moveToLoopDisk(filepath.Join(filepath.Dir(n.LogPath()), "data"))
	if err != nil {
		return nil, errors.Join(err, c.revive(ctx))
	}
	c.disks[n.ID()] = disk
	return disk, c.revive(ctx)
}
