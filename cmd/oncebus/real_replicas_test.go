//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/app"
	"oncebus/processor/kafkatest"
)

// electionRoutes has a prepartitioned and a routed input that may lose records, and one
// that loses none.
const electionRoutes = `
routes:
  - name: orders
    topics: [APP.orders.raw]
    prepartitioned: true
    key: [{field: id}]
    window: 1h
    output: APP.orders.unique
    dead_letter: APP.dead-letter
  - name: ids
    topics: [APP.ids.raw]
    key: [{field: id}]
    window: 1h
    output: APP.ids.unique
    dead_letter: APP.dead-letter
  - name: steady
    topics: [APP.steady.raw]
    key: [{field: id}]
    window: 1h
    output: APP.steady.unique
    dead_letter: APP.dead-letter
`

// TestRealUncleanElection: on three brokers, the only replica in sync of two inputs dies,
// and Kafka elects one that lacks their last records, which were processed. Once the app
// runs meanwhile, once it is stopped and the new leader has other records at their offsets.
// Each time these two partitions wait with the offsets that were lost, all others continue,
// and after the decision every event is in the output once, the lost ones too.
func TestRealUncleanElection(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	s := e.start("a", "SESSION_TIMEOUT=10s")
	s.awaitReady()
	e.checkReplicas(s)
	e.send("first", 200)
	e.drainedAll()

	// Broker 2 lacks the tail.
	e.loseReplica(2)
	e.send("tail", 50)
	e.drainedAll()
	e.elect(1, 2)
	e.send("after", 80)
	e.checkRefused(s, 200, 50)
	e.decide(200)
	e.sendAgain("tail")
	e.check()

	// Broker 1 lacks the second tail.
	e.restart(1)
	e.loseReplica(1)
	lost := e.end("orders.raw")
	e.send("tail2", 50)
	e.drainedAll()
	s.stop()
	e.elect(2, 1)
	e.send("after2", 80)
	s = e.start("a", "SESSION_TIMEOUT=10s")
	e.checkRefused(s, lost, 50)
	e.decide(lost)
	e.sendAgain("tail2")
	e.check()
	s.awaitReady()
	s.stop()
}

// election is the world of TestRealUncleanElection.
type election struct {
	*world
	cluster *kafkatest.Cluster
	ledgers map[string]*ledger // by input
}

// electionInputs are the inputs that lose records.
var electionInputs = []string{"orders.raw", "ids.raw"}

func newElection(t *testing.T) *election {
	t.Helper()
	c := kafkatest.StartNodes(t, 3)
	e := &election{
		world: newWorldAt(t, electionRoutes, c.Seeds(), c.Admin(), false), cluster: c,
		ledgers: map[string]*ledger{"orders.raw": newLedger(), "ids.raw": newLedger(), "steady.raw": newLedger()},
	}
	for _, name := range electionInputs {
		e.createUnsafe(name)
	}
	e.createTopics(nil, "steady.raw")
	return e
}

// createUnsafe creates an input with one partition on brokers 1 and 2, of which each alone
// may acknowledge records, and become the leader without those of the other.
func (e *election) createUnsafe(name string) {
	e.t.Helper()
	e.createOn(name, map[string]string{"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}, []int32{1, 2})
}

// checkReplicas checks that the topics that oncebus created have three replicas, two of
// them required, and that it warned of the two inputs.
func (e *election) checkReplicas(s *service) {
	e.t.Helper()
	created := []string{e.app + "-manifest", e.app + "-repartition", e.app + "-repartition-changelog", e.topic("orders.raw") + "-changelog"}
	if internal := e.app + "-" + e.topic("orders.raw") + "-changelog"; e.exists(internal) {
		created[3] = internal
	}
	created = append(created, e.topicsOf([]string{"orders.unique", "ids.unique", "steady.unique", "dead-letter"})...)
	listed, err := e.admin.ListTopics(e.t.Context(), created...)
	if err != nil {
		e.t.Fatal(err)
	}
	described, err := e.admin.DescribeTopicConfigs(e.t.Context(), created...)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, topic := range described {
		i := slices.IndexFunc(topic.Configs, func(c kadm.Config) bool { return c.Key == "min.insync.replicas" })
		if topic.Err != nil || i < 0 || topic.Configs[i].MaybeValue() != "2" {
			e.t.Errorf("topic %s: min.insync.replicas is not 2: %v", topic.Name, topic.Err)
		}
		for _, p := range listed[topic.Name].Partitions.Sorted() {
			if len(p.Replicas) != 3 {
				e.t.Errorf("%s/%d has the replicas %v, want three", topic.Name, p.Partition, p.Replicas)
			}
		}
	}
	warned := complaints(s.text())
	for _, name := range electionInputs {
		if want := "topic " + e.topic(name) + " has min.insync.replicas=1: a broker may acknowledge records that no other broker has; if it fails, events can be lost before they are read"; !strings.Contains(warned, want) {
			e.t.Errorf("no warning %q in\n%s", want, warned)
		}
	}
	if strings.Contains(warned, e.topic("steady.raw")) {
		e.t.Errorf("a warning of a topic that is replicated as it should be:\n%s", warned)
	}
}

// send produces n new events to each input, and waits for their acknowledgement.
func (e *election) send(phase string, n int) {
	e.t.Helper()
	var records []*kgo.Record
	for name, l := range e.ledgers {
		for i := range n {
			records = append(records, l.add(fmt.Sprint(phase, "-", i), e.event(name, phase, i)))
		}
	}
	e.produce(records...)
}

// sendAgain sends a duplicate of each event of a phase.
func (e *election) sendAgain(phase string) {
	e.t.Helper()
	var records []*kgo.Record
	for name, l := range e.ledgers {
		for i := range 50 {
			records = append(records, l.add(fmt.Sprint(phase, "-", i), e.event(name, phase, i)))
		}
	}
	e.produce(records...)
}

func (e *election) event(name, phase string, n int) *kgo.Record {
	return &kgo.Record{Topic: e.topic(name), Value: fmt.Appendf(nil, `{"id":"%s-%d"}`, phase, n), Timestamp: time.Now().Truncate(time.Millisecond)}
}

func (e *election) drainedAll() {
	e.t.Helper()
	e.drained([]string{"orders.raw", "ids.raw", "steady.raw"}, []string{"orders.unique", "ids.unique", "steady.unique"})
}

// loseReplica kills a broker and waits until both inputs have one replica in sync.
func (e *election) loseReplica(id int32) {
	e.t.Helper()
	if err := e.cluster.Brokers()[id-1].Kill(); err != nil {
		e.t.Fatal(err)
	}
	e.awaitLeaders(func(p kadm.PartitionDetail) bool { return len(p.ISR) == 1 && p.Leader != id && p.Leader >= 0 })
}

// restart starts a broker and waits until it is in sync.
func (e *election) restart(id int32) {
	e.t.Helper()
	if err := e.cluster.Brokers()[id-1].Restart(e.t.Context()); err != nil {
		e.t.Fatal(err)
	}
	e.awaitLeaders(func(p kadm.PartitionDetail) bool { return len(p.ISR) == 2 && p.Leader >= 0 })
}

// elect kills the leader of both inputs and starts the other replica, which becomes the
// leader without the records that it lacks.
func (e *election) elect(leader, other int32) {
	e.t.Helper()
	if err := errors.Join(e.cluster.Brokers()[leader-1].Kill(), e.cluster.Brokers()[other-1].Restart(e.t.Context())); err != nil {
		e.t.Fatal(err)
	}
	inputs := kadm.TopicsSet{}
	for _, name := range electionInputs {
		inputs.Add(e.topic(name), 0)
	}
	e.awaitLeaders(func(p kadm.PartitionDetail) bool {
		if p.Leader == other {
			return true
		}
		// Kafka does it by itself, after minutes.
		_, _ = e.admin.ElectLeaders(e.t.Context(), kadm.ElectLiveReplica, inputs)
		return false
	})
	// The new leader does not know the producer's last sequence numbers.
	fresh, err := kgo.NewClient(kgo.SeedBrokers(e.seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(fresh.Close)
	e.producer = fresh
}

// awaitLeaders waits until reached holds for the partition of both inputs.
func (e *election) awaitLeaders(reached func(kadm.PartitionDetail) bool) {
	e.t.Helper()
	eventually(e.t, "the inputs have the leader and the replicas in sync", func(ctx context.Context) error {
		topics, err := e.admin.ListTopics(ctx, e.topicsOf(electionInputs)...)
		if err != nil {
			return err
		}
		for _, name := range electionInputs {
			if p := topics[e.topic(name)].Partitions[0]; !reached(p) {
				return fmt.Errorf("%s: leader %d, in sync %v", name, p.Leader, p.ISR)
			}
		}
		return nil
	})
}

// end returns the offset after the last record of an input.
func (e *election) end(name string) int64 {
	e.t.Helper()
	ends, err := e.admin.ListEndOffsets(e.t.Context(), e.topic(name))
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		e.t.Fatal(err)
	}
	o, _ := ends.Lookup(e.topic(name), 0)
	return o.Offset
}

// checkRefused waits until both inputs, and only they, wait for a decision that names the
// n offsets from lost on, while the other one is processed to its end.
func (e *election) checkRefused(s *service, lost int64, n int64) {
	e.t.Helper()
	eventually(e.t, "both inputs wait for a decision", func(ctx context.Context) error {
		counts, err := s.metric(ctx, "oncebus_refused_partitions")
		if err == nil && counts[string(app.InputShortened)] != len(electionInputs) {
			err = fmt.Errorf("waiting are %v", counts)
		}
		return err
	})
	var refusals []app.Refusal
	stdout, stderr, code := e.oncebus("", "accept", "--json")
	if err := json.Unmarshal([]byte(stdout), &refusals); err != nil || code != cli.ExitStopped {
		e.t.Fatalf("accept: exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	waiting := map[string]app.Refusal{}
	for _, r := range refusals {
		waiting[r.Name()] = r
	}
	text := s.text()
	for _, name := range electionInputs {
		r := waiting[e.topic(name)+"/0"]
		if r.Problem != app.InputShortened || !strings.Contains(r.Detail, fmt.Sprint(lost)) || !strings.Contains(r.Detail, fmt.Sprint(lost+n-1)) {
			e.t.Errorf("%s: refused by %q: %s; want the offsets %d to %d", name, r.Problem, r.Detail, lost, lost+n-1)
		}
		if !strings.Contains(text, "partition refused, waiting for a decision") || !strings.Contains(text, r.Command()) {
			e.t.Errorf("the log does not name the command %q", r.Command())
		}
	}
	if len(waiting) != len(electionInputs) {
		e.t.Errorf("waiting are %v, want the two inputs alone", refusals)
	}
	e.taken([]string{e.topic("steady.raw")})
}

// decide lets both partitions go on, the routed one from an offset.
func (e *election) decide(from int64) {
	e.t.Helper()
	for _, args := range [][]string{
		{"--task", e.topic("orders.raw") + "/0", "--input-lost"}, {"--route", e.topic("ids.raw") + "/0", "--from", fmt.Sprint(from)},
	} {
		if stdout, stderr, code := e.oncebus("", append([]string{"accept"}, args...)...); code != cli.ExitStopped {
			e.t.Fatalf("accept %v: exit code %d: %s%s", args, code, stdout, stderr)
		}
	}
}

// check waits until all is processed and checks that every event was emitted once.
func (e *election) check() {
	e.t.Helper()
	e.drainedAll()
	for name, l := range e.ledgers {
		l.checkOnce(e.t, e.output(strings.TrimSuffix(name, ".raw")+".unique"))
	}
	if dead := e.output("dead-letter"); len(dead) > 0 {
		e.t.Errorf("%d dead letters, the first: %v", len(dead), dead[0].Headers)
	}
}
