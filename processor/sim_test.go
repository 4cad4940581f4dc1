//go:build synctests

package processor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup"
)

// TestSim runs whole processors, with their real stores, against an embedded
// cluster on a virtual network and a virtual clock, and breaks things in an
// order that a seed decides. ONCEBUS_SIM_SEEDS says how many seeds to run,
// ONCEBUS_SIM_SEED replays one: its faults are the same, the interleaving of
// goroutines is not, so hunt with several runs.
func TestSim(t *testing.T) {
	first, seeds := uint64(1), uint64(6)
	if s := os.Getenv("ONCEBUS_SIM_SEED"); s != "" {
		first, _ = strconv.ParseUint(s, 10, 64)
		seeds = 1
	} else if s := os.Getenv("ONCEBUS_SIM_SEEDS"); s != "" {
		seeds, _ = strconv.ParseUint(s, 10, 64)
	}
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newSim(t, seed).run() })
		})
	}
}

const (
	simSlots    = 3
	simDuration = 3 * time.Minute // virtual
)

type sim struct {
	*bench
	rng     *rand.Rand
	vn      *kfake.VirtualNetwork
	slots   [simSlots]*simLife
	zombies []*simLife
	faults  map[string]int       // by name, for the report
	pending []*kfake.FaultHandle // to be removed at the end

	ids    int
	sent   map[string]*kgo.Record
	recent []*kgo.Record
	future int
}

// simLife is one process life: an instance and its own piece of network.
type simLife struct {
	*instance
	net *simNet
	dir string
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{rng: rand.New(rand.NewPCG(seed, 0)), vn: new(kfake.VirtualNetwork), sent: map[string]*kgo.Record{}, faults: map[string]int{}}
	routes, err := dedup.ParseRoutes("routes.yaml", []byte(benchRoutes))
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.Ports(9001, 9002, 9003), kfake.ListenFn(s.vn.Listen),
		kfake.GroupMinSessionTimeout(100*time.Millisecond), kfake.DefaultNumPartitions(4))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	s.bench = &bench{t: t, cluster: cluster, routes: routes, logs: &logBuffer{}, clientOpts: []kgo.Opt{kgo.Dialer(s.vn.DialContext)}}
	s.client = s.newClient()
	s.admin = kadm.NewClient(s.client)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d, faults %v", seed, s.faults)
			if file := os.Getenv("ONCEBUS_SIM_LOG"); file != "" {
				if err := os.WriteFile(fmt.Sprint(file, ".", seed), []byte(s.logs.String()), 0o600); err != nil {
					t.Log(err)
				}
			}
		}
	})
	return s
}

func (s *sim) run() {
	s.slots[0] = s.launch(0, s.t.TempDir())
	s.ready(s.slots[0].instance)
	for end := time.Now().Add(simDuration); time.Now().Before(end); {
		s.produceBurst()
		if s.rng.IntN(3) == 0 {
			s.breakSomething()
		}
		_ = pause(context.Background(), time.Duration(100+s.rng.IntN(1500))*time.Millisecond)
	}
	s.heal()
	last := slices.IndexFunc(s.slots[:], func(l *simLife) bool { return l != nil })
	if last < 0 {
		last = 0
		s.slots[0] = s.launch(0, s.t.TempDir())
	}
	s.drain(s.slots[last].instance, "signals.raw")
	s.check()
	for _, l := range s.slots {
		if l != nil {
			if err := l.stop(); err != nil {
				s.t.Errorf("stopping after the end: %v", err)
			}
		}
	}
	for _, z := range s.zombies {
		<-z.done
	}
}

// produceBurst sends new ids, copies of recent ones and, now and then, an
// event from the far future.
func (s *sim) produceBurst() {
	var records []*kgo.Record
	for range 1 + s.rng.IntN(40) {
		now := time.Now().UnixMilli()
		switch {
		case s.rng.IntN(50) == 0:
			s.future++
			records = append(records, signal(fmt.Sprint("future-", s.future), s.rng.Int32N(4), now+1000*3600*1000))
		case len(s.recent) > 0 && s.rng.IntN(3) == 0:
			twin := *s.recent[s.rng.IntN(len(s.recent))]
			records = append(records, &kgo.Record{Topic: twin.Topic, Partition: s.rng.Int32N(4), Key: twin.Key, Value: twin.Value, Headers: twin.Headers, Timestamp: twin.Timestamp})
		default:
			s.ids++
			r := signal(fmt.Sprint("id-", s.ids), s.rng.Int32N(4), now)
			s.sent[fmt.Sprint("id-", s.ids)] = r
			s.recent = append(s.recent, &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp})
			records = append(records, r)
		}
	}
	s.produce(records...)
}

func (s *sim) launch(slot int, dir string) *simLife {
	cfg := s.config(fmt.Sprint("slot", slot))
	cfg.StateDir, cfg.Workers, cfg.StopTimeout = dir, 1+s.rng.IntN(2), time.Hour
	cfg.CommitInterval = time.Duration(5+s.rng.IntN(100)) * time.Millisecond
	cfg.State.FlushRows, cfg.State.FlushAge = 64, 2*time.Second
	n := &simNet{dialer: s.vn.DialContext, conns: map[net.Conn]bool{}}
	return &simLife{instance: s.start(cfg, kgo.Dialer(n.dial)), net: n, dir: dir}
}

// breakSomething does one thing that must not matter.
func (s *sim) breakSomething() {
	kinds := []struct {
		name string
		do   func()
	}{
		{"crash", s.crash}, {"stop", s.stopOne}, {"start", s.startOne}, {"start", s.startOne},
		{"leaders", s.cluster.ShufflePartitionLeaders}, {"coordinators", s.cluster.RehashCoordinators},
		{"connections", func() {
			if l := s.alive(); l != nil {
				l.net.cut(false)
			}
		}},
		{"endtxn", s.fault(kmsg.EndTxn, kerr.UnknownServerError, kerr.RequestTimedOut, kerr.NotCoordinator, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.ConcurrentTransactions)},
		{"offsets", s.fault(kmsg.TxnOffsetCommit, kerr.IllegalGeneration, kerr.RebalanceInProgress, kerr.CoordinatorLoadInProgress, kerr.UnknownServerError, kerr.UnknownMemberID)},
		{"init", s.fault(kmsg.InitProducerID, kerr.ConcurrentTransactions, kerr.CoordinatorNotAvailable, kerr.NotCoordinator)},
		{"heartbeat", s.fault(kmsg.Heartbeat, kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.NotCoordinator)},
		{"fetch offsets", s.fault(kmsg.OffsetFetch, kerr.NotCoordinator, kerr.UnstableOffsetCommit)},
		{"join", s.fault(kmsg.JoinGroup, kerr.CoordinatorNotAvailable, kerr.UnknownMemberID)},
		{"list", s.fault(kmsg.ListOffsets, kerr.NotLeaderForPartition)},
		{"produce", s.faultProduce},
	}
	k := kinds[s.rng.IntN(len(kinds))]
	s.faults[k.name]++
	fmt.Fprintf(s.logs, "sim: %s: %s\n", time.Now().Format("15:04:05.000"), k.name)
	k.do()
}

func (s *sim) fault(key kmsg.Key, errs ...*kerr.Error) func() {
	return func() {
		s.addFault(kfake.Fault{Keys: []kmsg.Key{key}, Err: errs[s.rng.IntN(len(errs))], Count: 1 + s.rng.IntN(3)})
	}
}

func (s *sim) addFault(f kfake.Fault) { s.pending = append(s.pending, s.cluster.Fault(f)) }

// faultProduce spares the raw topic, whose producer is the test's own.
func (s *sim) faultProduce() {
	topics := []string{"app-repartition", "app-repartition-changelog", "signals.unique", "dead"}
	errs := []*kerr.Error{kerr.NotLeaderForPartition, kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, kerr.KafkaStorageError, kerr.InvalidRecord, kerr.InvalidProducerEpoch}
	s.addFault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topics[s.rng.IntN(len(topics))], Err: errs[s.rng.IntN(len(errs))], Count: 1 + s.rng.IntN(3)})
}

func (s *sim) alive() *simLife {
	live := slices.DeleteFunc(slices.Clone(s.slots[:]), func(l *simLife) bool { return l == nil })
	if len(live) == 0 {
		return nil
	}
	return live[s.rng.IntN(len(live))]
}

// crash cuts an instance off at whatever it was doing, for good as far as its
// successor can tell: the successor gets a copy of the state directory as it
// was, or nothing. The old instance is let loose again at the end, a zombie.
func (s *sim) crash() {
	l := s.alive()
	if l == nil {
		return
	}
	slot := slices.Index(s.slots[:], l)
	l.net.cut(true)
	l.cancel()
	dir := s.t.TempDir()
	if s.rng.IntN(3) > 0 {
		synctest.Wait() // nothing runs now, so the copy is of one moment
		copyDir(s.t, l.dir, dir)
	}
	s.zombies = append(s.zombies, l)
	s.slots[slot] = nil
	if s.rng.IntN(4) > 0 {
		s.slots[slot] = s.launch(slot, dir)
	}
}

func (s *sim) stopOne() {
	if l := s.alive(); l != nil {
		if err := l.stop(); err != nil {
			s.t.Errorf("stopping in mid-traffic: %v", err)
		}
		s.slots[slices.Index(s.slots[:], l)] = nil
	}
}

func (s *sim) startOne() {
	if slot := slices.Index(s.slots[:], nil); slot >= 0 {
		s.slots[slot] = s.launch(slot, s.t.TempDir())
	}
}

// heal ends all faults and lets the zombies run into what they find.
func (s *sim) heal() {
	for _, f := range s.pending {
		f.Remove()
	}
	for _, z := range s.zombies {
		z.net.mend()
	}
	for _, l := range s.slots {
		if l == nil {
			continue
		}
		select {
		case <-l.done:
			s.t.Fatalf("an instance ended by itself: %v", l.err)
		default:
		}
	}
}

func (s *sim) check() {
	s.t.Helper()
	assertOnce(s.t, s.read("signals.unique"), s.sent)
	if dead := s.read("dead"); len(dead) != s.future {
		s.t.Errorf("%d dead letters, want %d from the far future", len(dead), s.future)
	}
	rows := map[string]int{}
	for _, r := range s.read("app-repartition-changelog") {
		if string(r.Key) != checkpointKey {
			rows[string(r.Key)]++
		}
	}
	for key, n := range rows {
		if n != 1 {
			s.t.Errorf("key %x has %d rows in the changelog", key, n)
		}
	}
	if len(rows) != len(s.sent) {
		s.t.Errorf("%d rows in the changelog, %d keys sent", len(rows), len(s.sent))
	}
}

// simNet is one instance's network: it can lose its connections, or be gone.
type simNet struct {
	dialer func(context.Context, string, string) (net.Conn, error)
	mu     sync.Mutex
	gone   bool
	conns  map[net.Conn]bool
}

func (n *simNet) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	gone := n.gone
	n.mu.Unlock()
	if gone {
		return nil, errors.New("sim: network is cut")
	}
	conn, err := n.dialer(ctx, network, addr)
	if err == nil {
		conn = latentConn{conn}
		n.mu.Lock()
		n.conns[conn] = true
		n.mu.Unlock()
	}
	return conn, err
}

// latentConn makes every request take time. On a network without latency a
// client that asks again at once would ask for ever: virtual time only moves
// while everybody waits.
type latentConn struct{ net.Conn }

func (c latentConn) Write(p []byte) (int, error) {
	_ = pause(context.Background(), time.Millisecond)
	return c.Conn.Write(p)
}

// cut closes all connections; answers under way are lost.
func (n *simNet) cut(forGood bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone = n.gone || forGood
	for conn := range n.conns {
		_ = conn.Close() // it is cut, whatever state it was in
	}
	clear(n.conns)
}

func (n *simNet) mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone = false
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}
