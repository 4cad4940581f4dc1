//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/proxy"
)

// ruleMax is how long a rule waits for a request that it matches.
const ruleMax = 20 * time.Second

// The requests of a process, grouped by their purpose.
var (
	groupAPIs = apis(kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat, kmsg.OffsetFetch, kmsg.TxnOffsetCommit, kmsg.LeaveGroup)
	txnAPIs   = apis(kmsg.InitProducerID, kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn, kmsg.EndTxn)
	dataAPIs  = apis(kmsg.Produce, kmsg.Fetch)
)

func apis(keys ...kmsg.Key) []int16 {
	var numbers []int16
	for _, k := range keys {
		numbers = append(numbers, k.Int16())
	}
	return numbers
}

// networkFaults are rows n1 to n4: faults of requests and connections.
var networkFaults = slices.Concat(
	lostFaults(), lateFaults(), errorFaults(),
	[]*fault{
		{row: "n4", name: "blackhole", weight: 2, slots: 1, apply: hole(nil, proxy.Both)},
		{row: "n4", name: "blackhole-requests", slots: 1, apply: hole(nil, proxy.ToBroker)},
		{row: "n4", name: "blackhole-responses", slots: 1, apply: hole(nil, proxy.ToClient)},
		{row: "n4", name: "blackhole-group", slots: 1, apply: hole(groupAPIs, proxy.Both)},
		{row: "n4", name: "blackhole-transactions", slots: 1, apply: hole(txnAPIs, proxy.Both)},
		{row: "n4", name: "blackhole-data", slots: 1, apply: hole(dataAPIs, proxy.Both)},
		{row: "n4", name: "swizzle", slots: 1, apply: swizzle},
		{row: "n4", name: "jitter", slots: 1, apply: underRule(proxy.Rule{Action: proxy.DelayResponse, Delay: 50 * time.Millisecond, Jitter: 450 * time.Millisecond}, 10*time.Second)},
		{row: "n4", name: "slow-link", slots: 1, apply: underRule(proxy.Rule{Action: proxy.Throttle, BytesPerSecond: 64 << 10}, 10*time.Second)},
		{row: "n4", name: "resets", weight: 2, slots: 1, apply: resets},
	},
)

// client returns the client id that all Kafka clients of a process have.
func (s *slot) client() string { return s.app.id + "-" + s.name }

// lostFaults are row n1: a connection is cut, and a request or its response is lost.
func lostFaults() []*fault {
	var faults []*fault
	for _, key := range []kmsg.Key{kmsg.EndTxn, kmsg.TxnOffsetCommit, kmsg.Produce, kmsg.InitProducerID, kmsg.JoinGroup, kmsg.SyncGroup} {
		for action, what := range map[proxy.Action]string{proxy.DropRequest: "request", proxy.DropResponse: "response"} {
			f := &fault{row: "n1", name: fmt.Sprintf("%s-%s-lost", key.Name(), what), slots: 1}
			f.apply = func(ctx context.Context, k *strike) error {
				rule := proxy.Rule{Match: proxy.Match{APIs: apis(key)}, Action: action, Count: 1 + k.rng.IntN(3), Reset: k.rng.IntN(2) == 0}
				return k.underCountedRule(ctx, rule, restarts(key))
			}
			if key == kmsg.EndTxn {
				f.weight = 3
			}
			faults = append(faults, f)
		}
	}
	// The faults come from a map. They are sorted, so that a seed always gives the same deck.
	slices.SortFunc(faults, byName)
	return faults
}

// restarts reports whether a process sends this request only when it starts or when its group changes, so that
// the fault must restart the process.
func restarts(key kmsg.Key) bool {
	return key == kmsg.InitProducerID || key == kmsg.JoinGroup || key == kmsg.SyncGroup || key == kmsg.OffsetFetch
}

// underCountedRule applies a rule of the proxy to one process until the rule has struck rule.Count times.
func (k *strike) underCountedRule(ctx context.Context, rule proxy.Rule, restart bool) error {
	s := k.slots[0]
	rule.ClientID = s.client()
	if restart {
		// A process that was disconnected for longer than its session timeout sends all these requests again.
		if err := errors.Join(s.kill(), kafkatest.Pause(ctx, k.between(0, 2*time.Second))); err != nil {
			return err
		}
		rule.Count = 1
	}
	f, err := k.h.cluster.proxy.Add(rule)
	if err != nil {
		return err
	}
	defer f.Remove()
	if restart {
		if err := s.start(ctx); err != nil {
			return err
		}
	}
	waiting, cancel := context.WithTimeout(ctx, ruleMax)
	defer cancel()
	_ = f.Wait(waiting, rule.Count) // the strikes are counted below
	if ctx.Err() != nil {
		return ctx.Err()
	}
	k.note("%d times", f.Struck())
	f.Remove()
	if err := f.Err(); err != nil {
		return fmt.Errorf("the proxy could not apply the rule: %w", err)
	}
	if f.Struck() == 0 {
		return fmt.Errorf("%w: no such request in %v", errNotStruck, ruleMax)
	}
	return k.recovers(ctx, time.Now(), brokerBackMax)
}

// lateFaults are row n2: a request arrives long after its sender's timeout.
func lateFaults() []*fault {
	var faults []*fault
	for _, key := range []kmsg.Key{kmsg.EndTxn, kmsg.TxnOffsetCommit, kmsg.Produce} {
		faults = append(faults, &fault{row: "n2", name: key.Name() + "-late", weight: 2, slots: 1, apply: late(key)})
	}
	return faults
}

func late(key kmsg.Key) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) error {
		held := k.between(time.Second, 8*time.Second)
		if k.rng.IntN(4) == 0 {
			held = k.between(8*time.Second, 30*time.Second)
		}
		rule := proxy.Rule{Match: proxy.Match{APIs: apis(key), ClientID: k.slots[0].client()}, Action: proxy.HoldRequest, Count: 1, Delay: held}
		if key == kmsg.EndTxn {
			rule.Where = func(r kmsg.Request) bool { return r.(*kmsg.EndTxnRequest).Commit }
		}
		f, err := k.h.cluster.proxy.Add(rule)
		if err != nil {
			return err
		}
		defer f.Remove()
		waiting, cancel := context.WithTimeout(ctx, ruleMax+held)
		defer cancel()
		if f.Wait(waiting, 1) != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("%w: no such request in %v", errNotStruck, ruleMax))
		}
		ended, err := f.Late(waiting, 1)
		if err != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("%w: the request was held and never delivered: %w", errNotStruck, err))
		}
		if ended[0].Err != nil {
			// The broker has closed its side of the connection, which also ends a request that the proxy held.
			k.note("held %v, then %v", held.Round(time.Millisecond), ended[0].Err)
		} else {
			k.note("held %v, then response %s", held.Round(time.Millisecond), answered(ended[0].Response))
		}
		return k.recovers(ctx, time.Now(), brokerBackMax)
	}
}

// answered returns the broker's response to a late request as text.
func answered(resp kmsg.Response) string {
	name := func(code int16) string {
		if err := kerr.TypedErrorForCode(code); err != nil {
			return err.Message
		}
		return "done"
	}
	switch r := resp.(type) {
	case *kmsg.EndTxnResponse:
		return name(r.ErrorCode)
	case *kmsg.TxnOffsetCommitResponse:
		for _, t := range r.Topics {
			for _, p := range t.Partitions {
				return name(p.ErrorCode)
			}
		}
	case *kmsg.ProduceResponse:
		for _, t := range r.Topics {
			for _, p := range t.Partitions {
				return name(p.ErrorCode)
			}
		}
	}
	return "nothing"
}

// errorFaults are row n3: the broker returns errors or wrong responses.
func errorFaults() []*fault {
	said := []struct {
		name  string
		key   kmsg.Key
		err   *kerr.Error
		patch bool // the broker executes the request although the response has an error; otherwise it does not
	}{
		{"EndTxn-unknown-but-done", kmsg.EndTxn, kerr.UnknownServerError, true},
		{"EndTxn-unknown", kmsg.EndTxn, kerr.UnknownServerError, false},
		{"EndTxn-concurrent", kmsg.EndTxn, kerr.ConcurrentTransactions, false},
		{"EndTxn-loading", kmsg.EndTxn, kerr.CoordinatorLoadInProgress, false},
		{"EndTxn-not-coordinator", kmsg.EndTxn, kerr.NotCoordinator, false},
		{"TxnOffsetCommit-loading", kmsg.TxnOffsetCommit, kerr.CoordinatorLoadInProgress, false},
		{"TxnOffsetCommit-unknown-member", kmsg.TxnOffsetCommit, kerr.UnknownMemberID, false},
		{"TxnOffsetCommit-illegal-generation", kmsg.TxnOffsetCommit, kerr.IllegalGeneration, false},
		{"Produce-not-leader", kmsg.Produce, kerr.NotLeaderForPartition, false},
		{"Produce-epoch", kmsg.Produce, kerr.InvalidProducerEpoch, false},
		{"Produce-abortable", kmsg.Produce, kerr.TransactionAbortable, false},
		{"Produce-unknown-but-done", kmsg.Produce, kerr.UnknownServerError, true},
		{"InitProducerID-concurrent", kmsg.InitProducerID, kerr.ConcurrentTransactions, false},
		{"Heartbeat-unknown-member", kmsg.Heartbeat, kerr.UnknownMemberID, false},
		{"Heartbeat-fenced", kmsg.Heartbeat, kerr.FencedInstanceID, false},
		{"Heartbeat-rebalance", kmsg.Heartbeat, kerr.RebalanceInProgress, false},
		{"Heartbeat-illegal-generation", kmsg.Heartbeat, kerr.IllegalGeneration, false},
		{"Heartbeat-not-available", kmsg.Heartbeat, kerr.CoordinatorNotAvailable, false},
		{"OffsetFetch-unstable", kmsg.OffsetFetch, kerr.UnstableOffsetCommit, false},
		{"OffsetFetch-loading", kmsg.OffsetFetch, kerr.CoordinatorLoadInProgress, false},
		{"Fetch-unknown", kmsg.Fetch, kerr.UnknownServerError, false},
	}
	var faults []*fault
	for _, s := range said {
		rule := proxy.Rule{Match: proxy.Match{APIs: apis(s.key)}, Action: proxy.Refuse, Error: s.err}
		if s.patch {
			rule.Action = proxy.PatchResponse
		}
		faults = append(faults, &fault{row: "n3", name: s.name, slots: 1, apply: func(ctx context.Context, k *strike) error {
			rule.Count = 1 + k.rng.IntN(3)
			return k.underCountedRule(ctx, rule, restarts(s.key))
		}})
	}
	// To the process the group seems to have no offsets, so the process must take them from the checkpoints of
	// its tasks.
	forgotten := &fault{row: "n3", name: "OffsetFetch-none", weight: 2, slots: 1}
	forgotten.apply = func(ctx context.Context, k *strike) error {
		group := k.app.group("dedup")
		return k.underCountedRule(ctx, proxy.Rule{
			Match: proxy.Match{APIs: apis(kmsg.OffsetFetch), Where: func(r kmsg.Request) bool {
				return slices.ContainsFunc(r.(*kmsg.OffsetFetchRequest).Groups, func(g kmsg.OffsetFetchRequestGroup) bool { return g.Group == group })
			}},
			Action: proxy.PatchResponse, Patch: forgetOffsets,
		}, true)
	}
	return append(faults, forgotten)
}

// forgetOffsets changes a response so that the group seems to have no committed offset.
func forgetOffsets(resp kmsg.Response) {
	r := resp.(*kmsg.OffsetFetchResponse)
	for _, g := range r.Groups {
		for _, t := range g.Topics {
			for i := range t.Partitions {
				t.Partitions[i].Offset, t.Partitions[i].Metadata = -1, nil
			}
		}
	}
}

// hole returns a fault that drops the frames between one process and the brokers for some seconds.
func hole(apis []int16, way proxy.Direction) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) error {
		rule := proxy.Rule{Match: proxy.Match{APIs: apis}, Action: proxy.Blackhole, Direction: way}
		return underRule(rule, k.between(2*time.Second, 10*time.Second))(ctx, k)
	}
}

// underRule returns a fault that applies a rule to one process for a while.
func underRule(rule proxy.Rule, d time.Duration) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) error {
		rule := rule
		rule.ClientID = k.slots[0].client()
		f, err := k.h.cluster.proxy.Add(rule)
		if err != nil {
			return err
		}
		defer f.Remove()
		if err := kafkatest.Pause(ctx, d); err != nil {
			return err
		}
		f.Remove()
		k.note("%v, %d frames", d.Round(time.Millisecond), f.Struck())
		if f.Struck() == 0 {
			return fmt.Errorf("%w: no frame passed in %v", errNotStruck, d)
		}
		return k.recovers(ctx, time.Now(), quietMax)
	}
}

// swizzle stops the requests for group, transactions and data one after the other, and lets them pass again in
// another order.
func swizzle(ctx context.Context, k *strike) error {
	var holes []*proxy.Fault
	defer func() {
		for _, f := range holes {
			f.Remove()
		}
	}()
	for _, i := range k.rng.Perm(3) {
		f, err := k.h.cluster.proxy.Add(proxy.Rule{
			Match: proxy.Match{APIs: [][]int16{groupAPIs, txnAPIs, dataAPIs}[i], ClientID: k.slots[0].client()}, Action: proxy.Blackhole,
		})
		if err != nil {
			return err
		}
		holes = append(holes, f)
		if err := kafkatest.Pause(ctx, k.between(200*time.Millisecond, 2*time.Second)); err != nil {
			return err
		}
	}
	struck := 0
	for _, i := range k.rng.Perm(3) {
		struck += holes[i].Struck()
		holes[i].Remove()
		if err := kafkatest.Pause(ctx, k.between(200*time.Millisecond, 2*time.Second)); err != nil {
			return err
		}
	}
	if struck == 0 {
		return fmt.Errorf("%w: no frame was stopped", errNotStruck)
	}
	return k.recovers(ctx, time.Now(), quietMax)
}

// resets closes all connections of a process by RST, several times in a row.
func resets(ctx context.Context, k *strike) error {
	cut := 0
	for range 2 + k.rng.IntN(6) {
		cut += k.h.cluster.proxy.Cut(proxy.Match{ClientID: k.slots[0].client()}, true)
		if err := kafkatest.Pause(ctx, k.between(100*time.Millisecond, time.Second)); err != nil {
			return err
		}
	}
	k.note("%d connections", cut)
	if cut == 0 {
		return fmt.Errorf("%w: the process had no connection", errNotStruck)
	}
	return k.recovers(ctx, time.Now(), quietMax)
}
