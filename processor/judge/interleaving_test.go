package judge_test

import (
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/state"
)

var (
	interleavings   = flag.Int("interleavings", 0, "how many interleavings TestEveryInterleavingKeepsTheRules runs; 0: 1000, or 120 with -short")
	oneInterleaving = flag.String("interleaving", "", "LOGS/NUMBER of the one interleaving that TestEveryInterleavingKeepsTheRules runs")
)

// leastLogs is the smallest number of source logs; perLogs is the largest number of interleavings of the same logs,
// out of the 1000.
const leastLogs, perLogs = 25, 40

// TestEveryInterleavingKeepsTheRules protects the promised verdicts in whatever order and at whatever speeds the
// routers read the sources, with pauses, aborts, restarts and inputs that move from one router to another:
//
//   - two events of a key that are emitted lie more than a window apart,
//   - each duplicate lies within a window of an emitted event,
//   - no event is late that lies within window and grace of what its own source had reached, and in live traffic of what all
//     sources had reached,
//   - each event is late that lies further behind its own source in its task,
//   - a key whose events lie within one window is emitted once,
//   - each event has one verdict.
//
// The rules are checked against the source logs, and know nothing of stream time. In some logs event time is the
// record's time, so that it goes on without events; live traffic counts as going on, too. Routers, marks, judges and
// stores are those of the product; broker, logs and clocks are those of the test. Routes in claim mode and with
// adjacent buckets are left out, because an event before the window of a stored row is late there.
func TestEveryInterleavingKeepsTheRules(t *testing.T) {
	t.Parallel()
	if *oneInterleaving != "" {
		var logs, number uint64
		if _, err := fmt.Sscanf(*oneInterleaving, "%d/%d", &logs, &number); err != nil {
			t.Fatalf("-interleaving: %v", err)
		}
		runInterleaving(t, newInterleavedApps(t, drawSourceLogs(t, logs)), logs, number)
		return
	}
	n := 1000
	if testing.Short() {
		n = 120
	}
	if *interleavings > 0 {
		n = *interleavings
	}
	logsMax := max(leastLogs, n/perLogs)
	for logs := range uint64(logsMax) {
		t.Run(fmt.Sprint("logs ", logs), func(t *testing.T) {
			t.Parallel()
			apps := newInterleavedApps(t, drawSourceLogs(t, logs))
			for number := range uint64((n + logsMax - 1) / logsMax) {
				if runInterleaving(t, apps, logs, number); t.Failed() {
					return
				}
			}
		})
	}
}

// interleavedApps is what all interleavings of the same logs share.
type interleavedApps struct {
	logs    *sourceLogs
	metrics *judge.Metrics
	host    *state.Host
	dir     string
	// by has the app with 1, 2 and 3 tasks.
	by [3]interleavedApp
}

// interleavedApp is an app as its processes have it: each process has a clock of its own.
type interleavedApp struct {
	*interleavedApps

	tasks   *app.App
	routers [3]*app.App
	sent    []*kgo.Record // events by HTTP
}

func newInterleavedApps(t *testing.T, logs *sourceLogs) *interleavedApps {
	t.Helper()
	a := &interleavedApps{logs: logs, metrics: judge.NewMetrics(prometheus.NewRegistry(), logs.routes), dir: t.TempDir()}
	var err error
	a.host, err = state.NewHost(state.DefaultConfig(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() { must(t, a.host.Close()) })
	open := func(tasks int) *app.App {
		rt, err := app.OfflineSets("app", int32(tasks), logs.routes)
		must(t, err)
		rt.Clock = frozen(worldBegin)
		return rt
	}
	for n := range a.by {
		by := &a.by[n]
		by.interleavedApps, by.tasks = a, open(n+1)
		for i := range by.routers {
			by.routers[i] = open(n + 1)
		}
		deriver := logs.routes.NewDeriver(nil)
		for _, ev := range logs.sent {
			by.sent = append(by.sent, logs.envelope(by.tasks, deriver, ev))
		}
	}
	return a
}

// interleaving is one run of an app over its source logs.
type interleaving struct {
	t          *testing.T
	logs       *sourceLogs
	apps       *interleavedApp
	rng        *rand.Rand
	number     uint64
	plan       interleavedPlan
	sweepAfter int64

	now        int64   // broker time, ms
	clockOf    []int64 // by task: how far the clock of its partition's leader is off
	sent       int     // events by HTTP so far
	routers    []*interleavedRouter
	tasks      []*interleavedTask
	owner      []*interleavedRouter // by input; nil for none
	read       []int64              // by input: committed offset
	crashed    []crashedTransaction
	logOf      [][]routedRecord // by task
	verdicts   [][]string       // by event
	admittedAt []int64          // by event: broker time in the repartition topic
	taskOf     []int            // by event: its task
}

// crashedTransaction is the transaction of a router that died. The inputs of the router wait until it has ended.
type crashedTransaction struct {
	*routerTransaction

	inputs []int
}

// runInterleaving runs an interleaving to the end of all logs, and checks it.
func runInterleaving(t *testing.T, apps *interleavedApps, logs, number uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(logs+1, number))
	x := &interleaving{
		t: t, logs: apps.logs, apps: &apps.by[rng.IntN(len(apps.by))], rng: rng, number: number, now: worldBegin,
		owner: make([]*interleavedRouter, len(apps.logs.inputs)), read: make([]int64, len(apps.logs.inputs)),
		verdicts: make([][]string, len(apps.logs.events)), admittedAt: make([]int64, len(apps.logs.events)),
		taskOf: make([]int, len(apps.logs.events)),
	}
	tasks := int(x.apps.tasks.Topology.Topics[x.apps.tasks.Topology.Repartition].Partitions)
	x.logOf, x.clockOf = make([][]routedRecord, tasks), make([]int64, tasks)
	x.sweepAfter = pickOne[int64](rng, 0, 20)
	for k := range tasks {
		x.clockOf[k] = rng.Int64N(2*clockError+1) - clockError
		x.tasks = append(x.tasks, x.newTask(k))
	}
	for n := range 1 + rng.IntN(len(x.apps.routers)) {
		x.routers = append(x.routers, x.newRouter(n))
	}
	x.drawPlan()
	for range x.plan.steps {
		x.step()
	}
	x.drain()
	for _, k := range x.tasks {
		must(t, k.store.Abandon())
	}
	if found := x.check(); len(found) > 0 {
		t.Errorf("go test -run TestEveryInterleavingKeepsTheRules ./processor/judge -interleaving %d/%d\n%s", logs, number, x.account(found))
	}
}

// append adds a record to the repartition topic, with the time of the clock of its partition's leader.
func (x *interleaving) append(rec *kgo.Record, of *routerTransaction) {
	k := rec.Partition
	rec.Offset, rec.Timestamp = int64(len(x.logOf[k])), time.UnixMilli(x.now+x.clockOf[k])
	x.logOf[k] = append(x.logOf[k], routedRecord{rec, of})
	if len(rec.Value) > 0 && rec.Value[0] == '{' {
		number := numberOf(x, rec.Value)
		x.admittedAt[number], x.taskOf[number] = rec.Timestamp.UnixMilli(), int(k)
	}
}

// passTo lets broker time go on. Events that arrive by HTTP meanwhile are in the log at their times.
func (x *interleaving) passTo(now int64) {
	for x.sent < len(x.logs.sent) && x.logs.sent[x.sent].stored <= now {
		x.now = max(x.now, x.logs.sent[x.sent].stored)
		rec := *x.apps.sent[x.sent]
		x.sent++
		x.append(&rec, nil)
	}
	x.now = max(x.now, now)
}

// partitionsOf returns how many partitions a topic has at the present broker time.
func (x *interleaving) partitionsOf(topic string) (n int) {
	for i := range x.logs.inputs {
		if in := &x.logs.inputs[i]; in.Topic == topic && in.created <= x.now {
			n++
		}
	}
	return n
}
