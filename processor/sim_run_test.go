//go:build synctests

package processor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/oracle"
	"oncebus/processor/restore"
	"oncebus/state"
)

const (
	// faultsAnHour is how many faults a long seed has for each virtual hour.
	faultsAnHour = 26
	// healMax is how long the app may take, once all faults have ended, until it has processed all input and no
	// transaction is open.
	healMax = 2 * time.Minute
)

// sim is one seed: a cluster, the lives of the app's instances on it, and what was observed of them.
type sim struct {
	*bench
	seed   uint64
	length time.Duration
	set    *simSettings
	plan   *rand.Rand // of faults; the traffic has a source of its own
	vn     *kfake.VirtualNetwork
	dir    string
	nodes  []int32
	port   int // last one given to a broker

	slots []*simLife      // those that run, nil where none does
	lives []*simLife      // all there ever were
	older string          // a copy of some instance's state, from some time ago
	mixed map[string]bool // state directories in which partitions were mixed up
	due   []simTask

	traffic *rawTraffic
	tail    *tail
	samples []oracle.Sample
	faults  map[string]int // by kind
	refused map[string]int // produce requests that brokers refused for good, by topic
	http    simHTTP
	began   time.Time

	violations int
	seen       map[string]int // see simReport
}

func newSim(t *testing.T, seed uint64, length time.Duration) *sim {
	stream := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }
	if length == 0 {
		length = simLength
	}
	s := &sim{
		seed: seed, length: length, set: drawSettings(stream(0)), plan: stream(1), vn: new(kfake.VirtualNetwork),
		dir: t.TempDir(), mixed: map[string]bool{}, faults: map[string]int{}, refused: map[string]int{}, began: time.Now(),
	}
	routes, err := rules.ParseRoutes("routes.yaml", []byte(s.set.routesFile()))
	if err != nil {
		t.Fatal(err)
	}
	var ports []int
	for n := range s.set.brokers {
		s.port = 9001 + n
		ports = append(ports, s.port)
		s.nodes = append(s.nodes, int32(n))
	}
	options := []kfake.Opt{
		kfake.NumBrokers(s.set.brokers), kfake.Ports(ports...), kfake.ListenFn(s.vn.Listen),
		kfake.DefaultNumPartitions(int(s.set.partitions)),
	}
	if s.set.versions != nil {
		options = append(options, kfake.MaxVersions(s.set.versions))
	}
	own := newSimNet(s.vn.DialContext, time.Millisecond)
	// This is registered first and so runs last: the connections end by themselves.
	t.Cleanup(func() {
		own.open.Wait()
		for _, l := range s.lives {
			l.net.open.Wait()
		}
		for _, i := range s.http.all {
			i.net.open.Wait()
		}
	})
	s.bench = &bench{t: t, cluster: embedded.Start(t, options...), routes: routes, logs: &embedded.Log{}, clientOpts: []kgo.Opt{kgo.Dialer(own.dial)}}
	t.Cleanup(s.keepLog)
	s.client = s.newClient(kgo.DisableClientMetrics())
	s.admin = kadm.NewClient(s.client)
	// Events are up to a year old, so Kafka must delete nothing because of its age.
	for _, topic := range s.set.inputs {
		s.createTopic(topic, s.set.rawPartitions, "retention.ms", "-1")
	}
	for _, topic := range s.set.outputs() {
		if topic == simVerdicts {
			continue // oncebus creates it
		}
		s.createTopic(topic, s.set.partitions, "retention.ms", "-1", "message.timestamp.after.max.ms", strconv.Itoa(app.Forever))
	}
	if s.set.changes {
		s.createTopic("extra.raw", s.set.rawPartitions, "retention.ms", "-1")
		s.createTopic("extra.unique", s.set.partitions, "retention.ms", "-1")
	}
	if s.set.level1 {
		s.beginAtLevel1()
	}
	s.slots = make([]*simLife, s.set.slots)
	s.traffic = newTraffic(s.set, stream(2), s.client)
	s.note("seed %d, settings %+v\n%s", seed, *s.set, s.set.routesFile())
	return s
}

const simClock = "15:04:05.000"

// note writes a line of the simulation into the log.
func (s *sim) note(format string, args ...any) {
	fmt.Fprintf(s.logs, "sim: %s: %s\n", time.Now().Format(simClock), fmt.Sprintf(format, args...))
}

// keepLog leaves the log and the faults of a failed seed where a person can find them.
func (s *sim) keepLog() {
	if !s.t.Failed() {
		return
	}
	s.t.Logf("seed %d, faults %v", s.seed, s.faults)
	s.keep("log", []byte(s.logs.String()))
}

func (s *sim) keep(kind string, b []byte) {
	dir := simLogDir()
	file := filepath.Join(dir, fmt.Sprintf("seed-%d.%s", s.seed, kind))
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		s.t.Errorf("keep what happened: %v", err)
		return
	}
	s.t.Logf("%s of seed %d is in %s", kind, s.seed, file)
}

func (s *sim) run() {
	// A test that fails in the middle has to end its instances, too.
	defer s.endAll()
	first := s.launch(0, s.newDir())
	s.slots[0] = first
	s.ready(first.instance)
	s.tail = s.startTail(append([]string{manifestTopic, "app-repartition", "app-repartition-changelog"}, s.set.outputs()...))
	s.traffic.seen = s.tail.since
	if s.set.http > 0 {
		s.launchIngress()
		s.traffic.post = s.post
	}
	s.faultsAndTraffic()
	s.heal()
	h := s.drain()
	s.http.end()
	s.stopAll() // progress records are written without input, so nothing is final before
	s.readHistory(h)
	h.Stores = s.readStores()
	s.check(h)
	s.diagnosed()
	s.report()
}

// endAll lets every instance stop. An instance that cannot stop would keep the seed, and virtual time, running for
// ever: in this case the process ends here and shows what every goroutine waits for.
func (s *sim) endAll() {
	for _, l := range s.lives {
		l.net.mend()
	}
	s.http.end()
	if l := s.unended(); l != nil {
		s.t.Fail()
		s.keepLog()
		panic(fmt.Sprintf("seed %d: slot %d has not stopped", s.seed, l.slot))
	}
}

// unended cancels every instance. It returns an instance that has not ended within stopMax, or nil.
func (s *sim) unended() *simLife {
	for _, l := range s.lives {
		s.doom(l)
	}
	deadline := time.NewTimer(stopMax)
	defer deadline.Stop()
	for _, l := range s.lives {
		select {
		case <-l.done:
		case <-deadline.C:
			return l
		}
	}
	return nil
}

// faultsAndTraffic runs episodes of faults and traffic, with quiet times in between.
func (s *sim) faultsAndTraffic() {
	target := max(faultsMin+4, int(s.length.Hours()*faultsAnHour))
	end := s.began.Add(s.length)
	for s.faultCount() < target || time.Now().Before(end) {
		for range 1 + s.plan.IntN(4) {
			s.traffic.must(s.t, s.traffic.burst())
			s.idle(time.Duration(s.plan.Int64N(int64(400 * time.Millisecond)))) // until the burst is somewhere on its way
			s.breakSomething()
			s.idle(time.Duration(s.plan.Int64N(int64(3 * time.Second))))
			s.traffic.must(s.t, s.traffic.flow(time.Duration(s.plan.Int64N(int64(4*time.Second)))))
			s.runDue(false)
		}
		s.sample()
		s.alive()
		s.expireGhosts()
		if s.plan.IntN(3) == 0 {
			s.snapshot()
		}
		// The remaining time is spread over the remaining faults.
		left := max(1, float64(target-s.faultCount())/2)
		s.idle(max(exponential(s.plan, time.Duration(float64(time.Until(end))/left)), 0))
	}
	s.note("faults over")
}

func (s *sim) faultCount() int {
	r := simReport{Faults: s.faults}
	return r.faults()
}

// alive fails the test if an instance ended without having been canceled.
func (s *sim) alive() {
	for _, l := range s.lives {
		if l.ended() && !l.doomed {
			s.t.Fatalf("an instance of slot %d ended by itself: %v", l.slot, l.err)
		}
	}
}

// heal ends all faults, lets every zombie run into what it finds, and sees to it that a working member exists.
func (s *sim) heal() {
	s.runDue(true)
	for _, l := range s.lives {
		l.net.mend()
		l.disk.free.Store(diskFree)
	}
	s.http.mend()
	if len(s.running()) == 0 {
		s.fill(0, s.newDir())
	}
	s.note("healed")
}

// unlock stops all lives but one if a group cannot finish a rebalance, and restarts that life if it is already alone.
// It returns the life that goes on, or nil if no group is stuck. With every member that joins, kfake restarts the
// time that members have for a rebalance (group.rebalance), so members that join again in turn, each within that
// time, can wait for ever; Kafka does not do so.
func (s *sim) unlock(keep *simLife) *simLife {
	others := slices.DeleteFunc(s.running(), func(l *simLife) bool { return l == keep })
	stuck := false
	for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
		info := s.cluster.GroupInfo(app.GroupName("app", stage))
		stuck = stuck || info != nil && info.State == "PreparingRebalance"
	}
	if !stuck {
		return nil
	}
	s.t.Logf("seed %d: a group of the embedded cluster did not finish its rebalance: %d instances besides slot %d", s.seed, len(others), keep.slot)
	if len(others) == 0 {
		s.stopLife(keep)
		s.fill(keep.slot, keep.dir)
		return s.slots[keep.slot]
	}
	for _, l := range others {
		s.stopLife(l)
	}
	return keep
}

// drain waits until all input is processed, and returns what was sent.
func (s *sim) drain() *oracle.History {
	h := &oracle.History{Sent: s.traffic.sent, Requests: s.posted(), Refused: s.refused, Final: map[string][]oracle.Record{}, Lag: map[string]int64{}}
	worker := s.running()[0]
	deadline, unlocks := time.Now().Add(healMax), 0
	for !(s.drained(worker.instance, s.set.inputs...) && s.allStable()) {
		s.alive()
		s.expireGhosts()
		s.traffic.commitEnds()
		if unlocks < 2 && time.Now().After(deadline) {
			if goesOn := s.unlock(worker); goesOn != nil {
				worker, deadline = goesOn, time.Now().Add(healMax)
				unlocks++
			}
		}
		if time.Now().After(deadline) {
			s.t.Errorf("input is left, or transactions are open, %v after everything healed", healMax)
			s.diagnose()
			break
		}
		_ = kafka.Pause(context.Background(), 200*time.Millisecond)
	}
	return h
}

// readHistory reads the observations after all instances have stopped.
func (s *sim) readHistory(h *oracle.History) {
	// A stop that gave up the last transaction left the transaction open until its timeout.
	for deadline := time.Now().Add(healMax); !s.allStable() && time.Now().Before(deadline); {
		_ = kafka.Pause(context.Background(), 50*time.Millisecond)
	}
	h.Open = s.openTransactions(s.topics()...)
	for _, topic := range s.topics() {
		for _, r := range s.read(topic) {
			h.Final[topic] = append(h.Final[topic], observed(r))
		}
	}
	s.sample()
	h.Offsets = s.samples
	for deadline := time.Now().Add(healMax); !s.tailDone() && time.Now().Before(deadline); {
		_ = kafka.Pause(context.Background(), 50*time.Millisecond)
	}
	if !s.tailDone() {
		s.t.Error("the tail has not seen everything")
		s.diagnose()
	}
	live, err := s.tail.stop()
	if err != nil {
		s.t.Error(err)
	}
	delete(live, manifestTopic)
	h.Live = live
}

// diagnose logs which member has which partitions.
func (s *sim) diagnose() {
	for _, l := range s.running() {
		s.note("slot %d: ready: %v, state %+v", l.slot, l.Ready(), l.State())
	}
	for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
		if b, err := json.Marshal(s.cluster.GroupInfo(app.GroupName("app", stage))); err == nil {
			s.note("group %s: %s", stage, b)
		}
	}
	for _, topic := range s.topics() {
		for _, p := range s.cluster.PartitionInfos(topic) {
			s.note("%s/%d: end %d, stable %d, seen by the tail %d", topic, p.Partition, p.HighWatermark, p.LastStableOffset, s.tail.position(topic, p.Partition))
		}
	}
}

// topics returns all topics that transactions write to.
func (s *sim) topics() []string {
	return append([]string{manifestTopic, "app-repartition", "app-repartition-changelog"}, s.set.outputs()...)
}

func (s *sim) allStable() bool { return len(s.openTransactions(s.topics()...)) == 0 }

func (s *sim) tailDone() bool {
	for _, topic := range s.topics() {
		for _, p := range s.cluster.PartitionInfos(topic) {
			if p.HighWatermark > 0 && s.tail.position(topic, p.Partition) < p.LastStableOffset {
				return false
			}
		}
	}
	return true
}

// sample records the dedup group's committed offsets.
func (s *sim) sample() {
	committed, err := s.admin.FetchOffsets(context.Background(), app.GroupName("app", processor.StageDedup))
	if err != nil {
		return // a fault met it
	}
	for partition := range s.set.partitions {
		if at, ok := committed.Lookup("app-repartition", partition); ok && at.Err == nil {
			s.samples = append(s.samples, oracle.Sample{Partition: partition, Offset: at.At, Metadata: at.Metadata})
		}
	}
}

// stopAll stops every instance and waits until all instances that ever existed have ended, including zombies and dead
// ones, whose network works again.
func (s *sim) stopAll() {
	if l := s.unended(); l != nil {
		s.t.Fatalf("slot %d, canceled at %s, has not stopped %v after everything healed", l.slot, l.doomedAt.Format(simClock), stopMax)
	}
	for _, l := range s.lives {
		if l.err != nil {
			s.t.Errorf("stopping slot %d, begun at %v: %v", l.slot, l.doomedAt.Format(simClock), l.err)
		}
	}
}

// readStores opens the stores of the instances that ran at the end.
func (s *sim) readStores() []oracle.Store {
	host, err := state.NewHost(s.set.state, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(s.logs, nil)))
	if err != nil {
		s.t.Fatal(err)
	}
	var stores []oracle.Store
	for _, l := range s.running() {
		for partition := range s.set.partitions {
			dir := s.partitionDir(l.dir, partition)
			if _, err := os.Stat(dir); err != nil {
				continue // it never had this partition
			}
			store, err := readStore(host, dir, partition, restore.StoreIdentity(s.lives[0].App(), app.TaskID{Topic: "app-repartition", Partition: partition}))
			if errors.Is(err, state.ErrForeign) && s.mixed[l.dir] {
				continue // it never had this partition, but another one's files
			}
			if err != nil {
				s.t.Errorf("store of slot %d, partition %d: %v", l.slot, partition, err)
				continue
			}
			stores = append(stores, store)
		}
	}
	if err := host.Close(); err != nil {
		s.t.Error(err)
	}
	return stores
}

func readStore(host *state.Host, dir string, partition int32, identity []byte) (found oracle.Store, err error) {
	store, err := host.Open(dir, identity)
	if err != nil {
		return found, err
	}
	found = oracle.Store{Partition: partition, Position: store.Position(), Checkpoint: store.Checkpoint(), Rows: map[string][]byte{}}
	for row, err := range store.Rows() {
		if err != nil {
			return found, err
		}
		found.Rows[string(row.Digest[:])] = row.AppendValue(nil)
	}
	return found, store.Abandon()
}
