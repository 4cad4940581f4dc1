//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
)

// setRoute is a route of TestRealRouteSets. NAME is also its topic's; MORE are further lines.
const setRoute = `
  - name: NAME
    topics: [APP.NAME.raw]
    key: [{field: id}]
    window: 1h
    output: APP.NAME.unique
    dead_letter: APP.dead-letter
`

func routeNamed(name string, more ...string) string {
	text := strings.ReplaceAll(setRoute, "NAME", name)
	for _, line := range more {
		text += "    " + line + "\n"
	}
	return text
}

// The files of TestRealRouteSets.
var (
	setSignals  = "\nroutes:" + routeNamed("signals")
	setWindow   = strings.Replace(setAdded, "window: 1h", "window: 2h", 1)
	setAdded    = setSignals + routeNamed("alerts") + routeNamed("orders", "prepartitioned: true")
	setPolicies = "\nroutes:" + routeNamed("signals", "duplicates: {to: APP.duplicates}", "headers: [route, key, verdict]") + routeNamed("alerts", "on_late: forward") + routeNamed("orders", "prepartitioned: true")
	setRemoved  = "\nroutes:" + routeNamed("signals", "duplicates: {to: APP.duplicates}", "headers: [route, key, verdict]")
)

// A copiedLoad sends events to the raw topics of routes at loadRate in all. Each has an id and
// comes three times: at once, with the next ones, and copyAfter later, across a change.
type copiedLoad struct {
	w      *world
	at     func() time.Time // the event time
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	routes []string
	sent   int64
	next   map[string]int // new ids by route
	err    error
}

// copyAfter is how long after an event its last copy comes.
const copyAfter = 2500 * time.Millisecond

const loadTick = 20 * time.Millisecond

func (w *world) startCopiedLoad(at func() time.Time, routes ...string) *copiedLoad {
	ctx, cancel := context.WithCancel(w.t.Context())
	l := &copiedLoad{w: w, at: at, cancel: cancel, done: make(chan struct{}), routes: routes, next: map[string]int{}}
	go func() { defer close(l.done); l.run(ctx) }()
	w.t.Cleanup(cancel)
	return l
}

// add makes the load send to further routes.
func (l *copiedLoad) add(routes ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.routes = append(l.routes, routes...)
}

func (l *copiedLoad) run(ctx context.Context) {
	ticker := time.NewTicker(loadTick)
	defer ticker.Stop()
	var former [][]*kgo.Record
	for ctx.Err() == nil {
		fresh := l.fresh(int(loadRate) / 3 * int(loadTick/time.Millisecond) / 1000)
		former = append(former, fresh)
		l.send(fresh)
		if n := len(former); n > 1 {
			l.send(former[n-2])
		}
		if len(former) > int(copyAfter/loadTick) {
			l.send(former[0])
			former = former[1:]
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	for _, records := range former {
		l.send(records)
	}
	l.failed(l.w.producer.Flush(context.Background()))
}

// fresh makes new events, of the routes in turn.
func (l *copiedLoad) fresh(n int) (records []*kgo.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range n {
		route := l.routes[i%len(l.routes)]
		id := fmt.Sprintf("%s-%d", route, l.next[route])
		l.next[route]++
		records = append(records, &kgo.Record{Topic: l.w.topic(route + ".raw"), Key: []byte(id), Value: fmt.Appendf(nil, `{"id":%q}`, id), Timestamp: l.at().Truncate(time.Millisecond)})
	}
	return records
}

// send sends copies of the records: those of one id to one partition, as a prepartitioned topic needs.
func (l *copiedLoad) send(records []*kgo.Record) {
	for _, r := range records {
		h := fnv.New32a()
		h.Write(r.Key)
		copied := &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Timestamp: r.Timestamp, Partition: int32(h.Sum32() % realPartitions)}
		if !strings.HasSuffix(r.Topic, ".orders.raw") {
			copied.Partition = rand.Int32N(realPartitions)
		}
		l.w.producer.Produce(context.Background(), copied, func(_ *kgo.Record, err error) { l.failed(err) })
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent += int64(len(records))
}

func (l *copiedLoad) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = errors.Join(l.err, err)
}

// runs lets the load run until it has sent for so long.
func (l *copiedLoad) runs(d time.Duration) {
	l.w.t.Helper()
	l.mu.Lock()
	until := l.sent + int64(d/loadTick)*(loadRate/3*int64(loadTick/time.Millisecond)/1000)*3
	l.mu.Unlock()
	eventually(l.w.t, fmt.Sprintf("load for %v", d), func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.sent < until {
			return errNotYet
		}
		return l.err
	})
}

// stop ends the load after the last copies.
func (l *copiedLoad) stop() {
	l.w.t.Helper()
	l.cancel()
	<-l.done
	if l.err != nil {
		l.w.t.Fatal(l.err)
	}
}

// check compares the outputs with what was sent: each id of each route once.
func (l *copiedLoad) check() {
	l.w.t.Helper()
	for route, ids := range l.next {
		checkEmitted(l.w.t, route, ids, l.w.output(route+".unique"))
		if ids == 0 {
			l.w.t.Errorf("route %s had no event", route)
		}
	}
	for _, r := range l.w.output("dead-letter") {
		l.w.t.Errorf("dead letter of %s: %s", headerOf(r, "oncebus-source"), headerOf(r, "oncebus-reason"))
	}
}

// watchOutput measures the pauses of an output's partitions until the test calls stop, which logs
// them as a table.
func (w *world) watchOutput(name string) (pauses *outputPauses, stop func()) {
	w.t.Helper()
	pauses = newOutputPauses()
	client := w.consumer(kgo.ConsumeTopics(w.topic(name)), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	ctx, cancel := context.WithCancel(w.t.Context())
	var watcher sync.WaitGroup
	watcher.Go(func() { pauses.watch(ctx, client) })
	end := sync.OnceFunc(func() { cancel(); watcher.Wait() })
	w.t.Cleanup(end)
	return pauses, func() {
		end()
		pauses.log(w.t)
	}
}

// routesFile writes a further routes file.
func (w *world) routesFile(name, routes string) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(routes, "APP", w.app)), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// applied is what 'oncebus apply -o json' prints, as far as the tests read it.
type applied struct {
	Set     int64
	Written bool
	Seconds float64
	Live    []string
}

// apply puts a file in force, and waits until all processes have taken it.
func (w *world) apply(file string) (a applied) {
	w.t.Helper()
	out, problems, code := w.oncebus("", "apply", "--yes", "-o", "json", file)
	if err := json.Unmarshal([]byte(out), &a); err != nil || code != cli.ExitStopped {
		w.t.Fatalf("apply ended with %d: %v\n%s%s", code, err, out, problems)
	}
	return a
}

// applyKilled starts the command and kills it once a step of it shows: a topic that it creates, its
// transaction, or its row.
func (w *world) applyKilled(file, step string, shows func(ctx context.Context) (bool, error)) {
	w.t.Helper()
	p := w.command("apply-killed", "apply", "--yes", file)
	eventually(w.t, "apply: "+step, func(ctx context.Context) error {
		if shown, err := shows(ctx); err != nil || shown || p.Ended() != nil {
			return err
		}
		return errNotYet
	})
	if err := p.Kill(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Logf("apply killed at %s: %d sets are written", step, w.sets())
}

// sets returns how many route sets are written.
func (w *world) sets() int64 {
	w.t.Helper()
	numbers := map[string]bool{}
	for _, r := range w.manifestRows() {
		if key := string(r.Key); strings.HasPrefix(key, "set/") {
			numbers[key] = true
		}
	}
	return int64(len(numbers))
}

// manifestRows returns the committed records of the manifest topic.
func (w *world) manifestRows() []*kgo.Record {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), realDeadline)
	defer cancel()
	records, err := w.read(ctx, w.app+"-manifest", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return records
}

// TestRealRouteSets puts routes files in force under load at two processes: one that adds two routes,
// two that change a window, one that changes policies, one that removes the routes with records left,
// and one that brings them back. The command is killed between its steps, and a process between the
// row of a set and its adoption. One process sleeps through a change, and one has the file of set 1.
// Every event is emitted once.
func TestRealRouteSets(t *testing.T) {
	t.Parallel()
	w := newLoadedWorld(t, setSignals)
	w.createTopics(nil, "signals.raw", "alerts.raw", "orders.raw")
	a, b := w.start("a", "LEAVE_ON_STOP=false"), w.start("b", "LEAVE_ON_STOP=false")
	a.awaitReady()
	b.awaitReady()
	awaitSharing(t, realPartitions, a, b)
	l := w.startCopiedLoad(time.Now, "signals")
	pauses, stopWatching := w.watchOutput("signals.unique")
	w.awaitOutputs(pauses)
	pauses.begin("0 no change")
	l.runs(2 * time.Second)

	added := w.routesFile("added.yaml", setAdded)
	pauses.begin("1 add two routes, apply killed 3 times")
	w.killApplies(added)
	l.add("alerts", "orders")
	t.Logf("added: %+v", w.apply(added))
	l.runs(copyAfter)

	pauses.begin("2 one process sleeps through a longer window")
	if err := b.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	longer := w.apply(w.routesFile("longer.yaml", setWindow))
	l.runs(copyAfter)
	if err := b.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.awaitTaken(b, longer.Set)
	l.runs(copyAfter)

	pauses.begin("3 window back, process killed between row and adoption")
	b = w.killAdopting(b, added) // starts with the file of set 1
	t.Logf("window back: %+v", w.apply(added))
	l.runs(copyAfter)
	w.selfAudit(cli.ExitStopped) // it cannot check across a change of a policy

	pauses.begin("4 change policies")
	policies := w.routesFile("policies.yaml", setPolicies)
	t.Logf("policies: %+v", w.apply(policies))
	l.runs(copyAfter)

	pauses.begin("5 remove two routes, records left")
	t.Logf("removed: %+v", w.apply(w.routesFile("removed.yaml", setRemoved)))
	l.runs(copyAfter)

	pauses.begin("6 bring them back, apply killed 3 times")
	w.killApplies(policies)
	t.Logf("brought back: %+v", w.apply(policies))
	l.runs(copyAfter)
	pauses.begin("")
	l.stop()
	w.drained([]string{"signals.raw", "alerts.raw", "orders.raw"}, []string{"signals.unique", "alerts.unique", "orders.unique", "dead-letter"})
	stopWatching()
	l.check()
	if n := len(w.output("duplicates")); n == 0 {
		t.Error("no duplicate went to the topic that a later set names")
	}
	a.stop()
	b.stop()
}

// killApplies kills the command that puts a file in force at three steps.
func (w *world) killApplies(file string) {
	w.t.Helper()
	manifest := w.app + "-manifest"
	before := w.sets()
	w.applyKilled(file, "a new topic", func(context.Context) (bool, error) { return w.exists(w.topic("alerts.unique")), nil })
	w.applyKilled(file, "its transaction", func(ctx context.Context) (bool, error) {
		open, err := w.openTransactions(ctx, manifest)
		return len(open) > 0, err
	})
	w.applyKilled(file, "its row", func(context.Context) (bool, error) { return w.sets() > before, nil })
}

// killAdopting puts a file in force and kills a process that has read of the set, before its workers
// have taken it. It starts the process again.
func (w *world) killAdopting(s *service, file string) *service {
	w.t.Helper()
	const line = "route set in force"
	const goes = "task judges by a newer route set"
	before, gone := s.Log.Count(line), s.Log.Count(goes)
	p := w.command("apply", "apply", "--yes", file)
	eventually(w.t, "the process to read of the set", func(context.Context) error {
		if s.Log.Count(line) == before {
			return errNotYet
		}
		return nil
	})
	s.kill()
	gone = s.Log.Count(goes) - gone
	ctx, cancel := context.WithTimeout(w.t.Context(), realDeadline)
	defer cancel()
	if _, err := p.ExitCode(ctx); err != nil {
		w.t.Fatal(err)
	}
	w.t.Logf("process %s was killed after it read of the set; %d of its tasks had gone over", s.Name, gone)
	s = w.start(s.Name, "LEAVE_ON_STOP=false")
	s.awaitReady()
	return s
}
