//go:build synctests

package processor_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/oracle"
)

// A simFault makes one fault that must not matter, and says what it did. It says "" if there was nothing to do it to,
// or if the fault takes effect later and counts then.
type simFault struct {
	weight int
	do     func() string
}

func (s *sim) faultKinds() []simFault {
	kinds := []simFault{
		{6, s.crash}, {6, s.zombie}, {2, s.stopOne}, {4, s.startOne}, {1, s.roll},
		{2, s.moveLeaders}, {2, s.moveOneLeader}, {2, s.moveCoordinators}, {2, s.changeBrokers},
		{2, s.cutConnections}, {18, s.troubleNetwork}, {24, s.injectError},
		{2, s.compact}, {1, s.takeSnapshot},
	}
	if s.set.http > 0 {
		kinds = append(kinds, simFault{6, s.killIngress}, simFault{3, s.freezeIngress}, simFault{8, s.troubleIngress})
	}
	if s.set.failOpen {
		kinds = append(kinds, simFault{6, s.fillDisk})
	}
	if s.set.level1 {
		kinds = append(kinds, simFault{8, s.finalize})
	}
	if s.set.changes {
		kinds = append(kinds, simFault{12, s.changeRoutes})
	}
	return kinds
}

func (s *sim) breakSomething() {
	kinds := s.faultKinds()
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	at := s.plan.IntN(total)
	for _, k := range kinds {
		if at -= k.weight; at < 0 {
			if what := k.do(); what != "" {
				s.count(what)
			}
			return
		}
	}
}

func (s *sim) count(what string) {
	s.faults[what]++
	s.note("fault: %s", what)
}

func (s *sim) moveLeaders() string {
	s.cluster.ShufflePartitionLeaders()
	return "leaders moved"
}

func (s *sim) moveOneLeader() string {
	topics := append([]string{"app-repartition", "app-repartition-changelog"}, s.set.inputs...)
	topic := topics[s.plan.IntN(len(topics))]
	partitions := len(s.cluster.PartitionInfos(topic))
	if partitions == 0 {
		return ""
	}
	if err := s.cluster.MoveTopicPartition(topic, s.plan.Int32N(int32(partitions)), s.nodes[s.plan.IntN(len(s.nodes))]); err != nil {
		s.t.Fatal(err)
	}
	return "leader moved"
}

func (s *sim) moveCoordinators() string {
	s.cluster.RehashCoordinators()
	return "coordinators moved"
}

// changeBrokers adds a broker or takes a broker away. The first two brokers stay, because all clients know them as
// seeds.
func (s *sim) changeBrokers() string {
	if len(s.nodes) > 2 && s.plan.IntN(2) == 0 {
		n := 2 + s.plan.IntN(len(s.nodes)-2)
		if err := s.cluster.RemoveNode(s.nodes[n]); err != nil {
			s.t.Fatal(err)
		}
		s.nodes = slices.Delete(s.nodes, n, n+1)
		return "broker removed"
	}
	if len(s.nodes) > 3 {
		return ""
	}
	s.port++
	id, _, err := s.cluster.AddNode(-1, s.port)
	if err != nil {
		s.t.Fatal(err)
	}
	s.nodes = append(s.nodes, id)
	return "broker added"
}

func (s *sim) cutConnections() string {
	l := s.someLife()
	if l == nil {
		return ""
	}
	l.net.cut(false)
	return "connections cut"
}

func (s *sim) takeSnapshot() string {
	s.snapshot()
	return "" // what is done with it is the fault
}

// compact cleans all logs, at a moment when compaction in the embedded broker does no more than in Kafka. Three
// conditions must hold:
//
// No transaction is open and the live reader has seen what may be removed, because the embedded broker would clean
// beyond the last stable offset, which Kafka never does.
//
// Every producer that aborted has another record left. Otherwise the embedded broker would drop the marker and keep
// the aborted transaction in its index, so that everything this producer commits later would count as aborted.
//
// The first record of each changelog stays. Otherwise the embedded broker would raise the log start, which in Kafka
// only deletion does.
func (s *sim) compact() string {
	for range 200 {
		synctest.Wait()
		if s.quiet() {
			manifest := s.cluster.PartitionInfos(manifestTopic)[0]
			if s.tail.position(manifestTopic, 0) < manifest.HighWatermark || !s.tail.abortsOutlast(manifestTopic) ||
				!s.tail.abortsOutlast("app-repartition-changelog") || !s.startsOutlast("app-repartition-changelog") {
				return ""
			}
			s.cluster.Compact()
			s.cluster.ApplyRetention()
			return "compaction"
		}
		_ = kafka.Pause(context.Background(), 50*time.Millisecond)
	}
	return ""
}

// startsOutlast reports whether compaction leaves the first record of every partition of a topic.
func (s *sim) startsOutlast(topic string) bool {
	for _, info := range s.cluster.PartitionInfos(topic) {
		if info.LogStartOffset < info.HighWatermark && !s.tail.startOutlasts(topic, info.Partition, info.LogStartOffset) {
			return false
		}
	}
	return true
}

// quiet reports whether no transaction is open and the tail has seen everything.
func (s *sim) quiet() bool { return s.allStable() && s.tailDone() }

// requests are the kinds of requests whose loss must not matter.
var requests = []kmsg.Key{
	kmsg.Produce, kmsg.EndTxn, kmsg.TxnOffsetCommit, kmsg.InitProducerID, kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn,
	kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat, kmsg.OffsetFetch, kmsg.FindCoordinator, kmsg.Fetch, kmsg.ListOffsets,
	kmsg.Metadata, kmsg.DeleteRecords, kmsg.OffsetForLeaderEpoch,
	// These requests decide what commits, so they are listed more often.
	kmsg.Produce, kmsg.EndTxn, kmsg.TxnOffsetCommit, kmsg.EndTxn, kmsg.TxnOffsetCommit,
}

// troubleNetwork loses, delays or alters the next requests of one kind from one instance.
func (s *sim) troubleNetwork() string {
	if l := s.someLife(); l != nil {
		s.trouble(l.net, requests[s.plan.IntN(len(requests))], "")
	}
	return ""
}

// trouble arms a rule for the requests of one kind in a network.
func (s *sim) trouble(net *simNet, key kmsg.Key, of string) {
	rule := &netRule{key: key, left: 1 + s.plan.IntN(3), delay: time.Duration(s.plan.Int64N(int64(2 * s.set.txn)))}
	var how string
	switch s.plan.IntN(6) {
	case 0:
		rule.do, how = loseRequest, "request lost"
	case 1, 2:
		rule.do, how = loseAnswer, "answer lost"
	case 3:
		rule.do, how = holdRequest, "request late"
	case 4:
		rule.do, how = delayAnswer, "answer late"
		rule.delay = time.Duration(s.plan.Int64N(int64(15 * time.Second)))
	default:
		rule.do, how = alterAnswer, "applied, answered with an error"
		s.drawAnswer(rule)
	}
	s.later(fmt.Sprint(of, key.Name(), ": ", how), func() { net.arm(rule) }, func() bool { return net.disarm(rule) })
}

// drawAnswer chooses what the answer of an applied request says. These answers leave open whether the broker has done
// what was requested.
func (s *sim) drawAnswer(rule *netRule) {
	if rule.key == kmsg.OffsetFetch {
		rule.alter = func(resp kmsg.Response) {
			// The router has no checkpoint to fall back on, so only the offsets of the dedup group may be missing.
			for _, g := range resp.(*kmsg.OffsetFetchResponse).Groups {
				if g.Group != app.GroupName("app", processor.StageDedup) {
					return
				}
			}
			dropOffsets(resp)
		}
		return
	}
	code := kerr.UnknownServerError
	switch rule.key {
	case kmsg.Metadata, kmsg.Fetch, kmsg.ListOffsets: // they read, and do not time out on others
	case kmsg.OffsetForLeaderEpoch:
		code = pick(s.plan, kerr.UnknownServerError, kerr.NotLeaderForPartition)
	default:
		code = pick(s.plan, kerr.UnknownServerError, kerr.UnknownServerError, kerr.RequestTimedOut)
	}
	rule.alter = failing(code)
}

// refused are errors with which a broker refuses a request without doing it.
var refused = []struct {
	key  kmsg.Key
	errs []*kerr.Error
}{
	{kmsg.EndTxn, []*kerr.Error{kerr.UnknownServerError, kerr.RequestTimedOut, kerr.NotCoordinator, kerr.InvalidProducerEpoch,
		kerr.ProducerFenced, kerr.ConcurrentTransactions, kerr.CoordinatorLoadInProgress, kerr.InvalidTxnState, kerr.TransactionAbortable}},
	{kmsg.TxnOffsetCommit, []*kerr.Error{kerr.IllegalGeneration, kerr.RebalanceInProgress, kerr.CoordinatorLoadInProgress, kerr.UnknownServerError,
		kerr.UnknownMemberID, kerr.FencedInstanceID, kerr.RequestTimedOut, kerr.NotCoordinator, kerr.TransactionAbortable}},
	{kmsg.AddPartitionsToTxn, []*kerr.Error{kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.InvalidProducerEpoch, kerr.UnknownServerError}},
	{kmsg.AddOffsetsToTxn, []*kerr.Error{kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.InvalidProducerEpoch, kerr.UnknownServerError}},
	{kmsg.InitProducerID, []*kerr.Error{kerr.ConcurrentTransactions, kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress,
		kerr.UnknownServerError, kerr.ProducerFenced, kerr.RequestTimedOut}},
	{kmsg.Produce, []*kerr.Error{kerr.NotLeaderForPartition, kerr.RequestTimedOut, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.KafkaStorageError,
		kerr.InvalidRecord, kerr.InvalidProducerEpoch, kerr.UnknownServerError, kerr.MessageTooLarge, kerr.CorruptMessage, kerr.TransactionAbortable}},
	{kmsg.JoinGroup, []*kerr.Error{kerr.CoordinatorNotAvailable, kerr.UnknownMemberID, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.UnknownServerError, kerr.FencedInstanceID}},
	{kmsg.SyncGroup, []*kerr.Error{kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.NotCoordinator, kerr.IllegalGeneration, kerr.CoordinatorNotAvailable, kerr.UnknownServerError}},
	{kmsg.Heartbeat, []*kerr.Error{kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.NotCoordinator, kerr.IllegalGeneration, kerr.FencedInstanceID, kerr.CoordinatorNotAvailable}},
	{kmsg.OffsetFetch, []*kerr.Error{kerr.NotCoordinator, kerr.UnstableOffsetCommit, kerr.CoordinatorLoadInProgress, kerr.UnknownServerError}},
	{kmsg.FindCoordinator, []*kerr.Error{kerr.CoordinatorNotAvailable, kerr.UnknownServerError}},
	{kmsg.Fetch, []*kerr.Error{kerr.NotLeaderForPartition, kerr.KafkaStorageError, kerr.UnknownServerError, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch, kerr.OffsetNotAvailable}},
	{kmsg.ListOffsets, []*kerr.Error{kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.OffsetNotAvailable, kerr.UnknownServerError}},
	{kmsg.Metadata, []*kerr.Error{kerr.LeaderNotAvailable}}, // others would fail the test's own producer
	{kmsg.DeleteRecords, []*kerr.Error{kerr.NotLeaderForPartition, kerr.RequestTimedOut, kerr.UnknownServerError}},
}

// injectError makes the brokers refuse the next requests of one kind. The requests of the test's own clients are
// spared where they differ from other requests only by their topics.
func (s *sim) injectError() string {
	r := refused[s.plan.IntN(len(refused))]
	if s.plan.IntN(2) == 0 {
		r = refused[s.plan.IntN(6)] // of the transactional ones more
	}
	err := r.errs[s.plan.IntN(len(r.errs))]
	fault := kfake.Fault{Keys: []kmsg.Key{r.key}, Err: err, Count: 1 + s.plan.IntN(3)}
	switch r.key {
	case kmsg.Produce:
		topics := append([]string{"app-repartition", "app-repartition-changelog", "app-repartition-changelog"}, s.set.outputs()...)
		fault.Topic = topics[s.plan.IntN(len(topics))]
		if kafka.RefusesRecord(err) && !strings.HasSuffix(fault.Topic, "-changelog") && !s.mayRefuse(fault.Topic) {
			fault.Err = kerr.TransactionAbortable
		}
	case kmsg.InitProducerID:
		fault.When = func(req kmsg.Request) bool { return req.(*kmsg.InitProducerIDRequest).TransactionalID != nil }
	case kmsg.Fetch:
		fault.When = func(req kmsg.Request) bool {
			return req.(*kmsg.FetchRequest).MaxWaitMillis != tailMaxWaitMillis
		}
	case kmsg.Metadata:
		// The generator asks for raw topics alone, and a client whose metadata request for these is refused gives up
		// its records.
		fault.When = func(req kmsg.Request) bool {
			return slices.ContainsFunc(req.(*kmsg.MetadataRequest).Topics, func(t kmsg.MetadataRequestTopic) bool {
				return t.Topic != nil && *t.Topic == "app-repartition"
			})
		}
	case kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat, kmsg.OffsetFetch, kmsg.TxnOffsetCommit:
		fault.Group = app.GroupName("app", pick(s.plan, processor.StageRoute, processor.StageDedup, processor.StageDedup))
	}
	var handle *kfake.FaultHandle
	s.later(fmt.Sprint(r.key.Name(), ": ", fault.Err.Message), func() { handle = s.cluster.Fault(fault) }, func() bool {
		handle.Remove()
		if r.key == kmsg.Produce && kafka.RefusesRecord(fault.Err) && s.mayRefuse(fault.Topic) {
			s.refused[fault.Topic] += handle.Hits()
		}
		return handle.Hits() > 0
	})
	return ""
}

// mayRefuse reports whether brokers may refuse records of a topic for good. These records become dead letters, and
// the oracle accepts that many.
func (s *sim) mayRefuse(topic string) bool {
	return topic == "duplicates" || slices.ContainsFunc(s.set.routes, func(r oracle.Route) bool { return r.Output == topic })
}

// later arms a trap, disarms it after a while, and counts it if it took effect.
func (s *sim) later(what string, arm func(), disarm func() bool) {
	s.note("armed: %s", what)
	arm()
	s.in(time.Duration(1+s.plan.IntN(20))*time.Second, func() {
		if disarm() {
			s.count(what)
		}
	})
}

// in lets the main loop run do after a while, or when everything heals.
func (s *sim) in(after time.Duration, do func()) {
	s.due = append(s.due, simTask{time.Now().Add(after), do})
}

type simTask struct {
	at time.Time
	do func()
}

// runDue runs what is due by now, or everything if the end has come.
func (s *sim) runDue(all bool) {
	for {
		n := slices.IndexFunc(s.due, func(t simTask) bool { return all || !t.at.After(time.Now()) })
		if n < 0 {
			return
		}
		task := s.due[n]
		s.due = slices.Delete(s.due, n, n+1)
		task.do()
	}
}

// idle lets time go by, and runs what falls due meanwhile.
func (s *sim) idle(d time.Duration) {
	for end := time.Now().Add(d); ; {
		s.runDue(false)
		next := end
		for _, t := range s.due {
			if t.at.Before(next) {
				next = t.at
			}
		}
		if wait := time.Until(next); wait > 0 {
			_ = kafka.Pause(context.Background(), wait)
		}
		if !time.Now().Before(end) {
			return
		}
	}
}

func exponential(r *rand.Rand, mean time.Duration) time.Duration {
	return time.Duration(r.ExpFloat64() * float64(mean))
}
