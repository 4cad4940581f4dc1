//go:build unix

package main_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/rules"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

const numberRoutes = `
routes:
  - name: signals
    topics: [APP.signals.raw]
    key: [{field: id}]
    window: 40s
    grace: 100s
    output: APP.signals.unique
    dead_letter: APP.dead-letter
    headers: [key]
`

// numberSpeed is how fast event time runs in a test of a shadow: two windows and the grace pass
// in half a minute.
const numberSpeed, numberWindow = 6, 40_000

// numberTraffic sends events with two keys: new ones, and copies by one or both keys.
type numberTraffic struct {
	w       *world
	mu      sync.Mutex
	err     error
	numbers []int32 // of each event, by its place
	ids     []int32
	times   []int64 // event time, ms
}

// run sends at a rate until ctx ends, and waits for the acknowledgements.
func (x *numberTraffic) run(ctx context.Context, rate int) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	first := began.Add(-time.Hour).UnixMilli()
	for ctx.Err() == nil {
		at := first + numberSpeed*time.Since(began).Milliseconds()
		for range rate / 50 {
			n := int32(len(x.ids))
			id, number := n, n
			switch old := max(0, n-1-rand.Int32N(int32(rate))); rand.IntN(4) {
			case 0:
				id, number = x.at(old)
			case 1:
				_, number = x.at(old)
			case 2:
				id, _ = x.at(old)
			}
			x.ids, x.numbers, x.times = append(x.ids, id), append(x.numbers, number), append(x.times, at)
			r := &kgo.Record{
				Topic: x.w.topic("signals.raw"), Partition: rand.Int32N(realPartitions), Timestamp: time.UnixMilli(at), Key: fmt.Appendf(nil, "%d", n),
				Value: fmt.Appendf(nil, `{"id":"i%d","number":"n%d"}`, id, number),
			}
			x.w.producer.Produce(context.Background(), r, func(_ *kgo.Record, err error) {
				x.mu.Lock()
				defer x.mu.Unlock()
				x.err = errors.Join(x.err, err)
			})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	err := x.w.producer.Flush(context.Background())
	x.mu.Lock()
	defer x.mu.Unlock()
	x.err = errors.Join(x.err, err)
}

func (x *numberTraffic) at(n int32) (id, number int32) {
	if int(n) >= len(x.ids) {
		return n, n
	}
	return x.ids[n], x.numbers[n]
}

// numberEmitted is one emitted event.
type numberEmitted struct {
	at    int64
	isNew bool
}

// check compares the output with a plain ledger: no event that the new rule emitted has its
// number within the window of another emitted one, none that the old rule emitted its id, and
// each event that was not emitted has such a one.
func (x *numberTraffic) check(promoted *rules.Routes) {
	x.w.t.Helper()
	numbers, ids := map[int32][]numberEmitted{}, map[int32][]numberEmitted{}
	doubled, lost, byNew, byOld := 0, 0, 0, 0
	deriver := promoted.NewDeriver(nil)
	within := func(a, b int64) bool { return max(a-b, b-a) <= numberWindow }
	for _, r := range x.w.output("signals.unique") {
		var n int
		if _, err := fmt.Sscan(string(r.Key), &n); err != nil {
			x.w.t.Fatal(err)
		}
		id, number := x.ids[n], x.numbers[n]
		derived := deriver.Derive(&rules.Input{Topic: x.w.topic("signals.raw"), Value: r.Value})
		one := numberEmitted{x.times[n], kafkatest.Header(r, "oncebus-key") == hex.EncodeToString(derived.Key[:])}
		for _, other := range numbers[number] {
			if (one.isNew || other.isNew) && within(one.at, other.at) {
				doubled++
			}
		}
		for _, other := range ids[id] {
			if !one.isNew && !other.isNew && within(one.at, other.at) {
				doubled++
			}
		}
		if one.isNew {
			byNew++
		} else {
			byOld++
		}
		numbers[number], ids[id] = append(numbers[number], one), append(ids[id], one)
	}
	late := map[string]bool{}
	for _, r := range x.w.output("dead-letter") {
		late[string(r.Key)] = true
	}
	for n, at := range x.times {
		near := func(e numberEmitted) bool { return within(e.at, at) }
		if !slices.ContainsFunc(numbers[x.numbers[n]], near) && !slices.ContainsFunc(ids[x.ids[n]], near) && !late[fmt.Sprint(n)] {
			lost++
		}
	}
	if doubled+lost > 0 || byNew == 0 || byOld == 0 {
		x.w.t.Errorf("%d doubled, %d lost", doubled, lost)
	}
	x.w.t.Logf("%d events: %d emitted by the old rule, %d by the new one, %d doubled, %d lost, %d late", len(x.times), byOld, byNew, doubled, lost, len(late))
}

// awaitText waits until a process has printed a text, or has ended; false if it ended without.
func (w *world) awaitText(p *program.Process, want string) (printed bool) {
	w.t.Helper()
	eventually(w.t, "the text "+want, func(context.Context) error {
		text, err := p.Log.Text()
		if printed = strings.Contains(text, want); err == nil && !printed && p.Ended() == nil {
			err = errNotYet
		}
		return err
	})
	return printed
}

// succeeds waits for the end of a command.
func (w *world) succeeds(p *program.Process) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), realDeadline)
	defer cancel()
	if code, err := p.ExitCode(ctx); err != nil || code != cli.ExitStopped {
		text, _ := p.Log.Text()
		w.t.Fatalf("exit code %d: %v\n%s", code, err, text)
	}
}

// TestRealShadow tries a key rule out under load at two processes and promotes it. The command is
// killed with SIGKILL after its steps, and a process while the input is held. Each old key is
// emitted once until the promotion, each new key once from then on, and nothing is lost.
func TestRealShadow(t *testing.T) {
	t.Parallel()
	rate := int(loadRate)
	w := newLoadedWorld(t, numberRoutes)
	w.createTopics(nil, seedInputs...)
	a, b := w.start("a", "LEAVE_ON_STOP=false"), w.start("b", "LEAVE_ON_STOP=false")
	a.awaitReady()
	b.awaitReady()
	before := strings.ReplaceAll(numberRoutes, "APP", w.app)
	file := func(name, routes string) string {
		path := filepath.Join(w.dir, name)
		if err := os.WriteFile(path, []byte(routes), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	trial := file("trial.yaml", before+"    shadow: {name: by-number, sample: 100%, key: [{field: number}]}\n")
	text := strings.Replace(before, "field: id", "field: number", 1) + "    namespace: signals~by-number\n"
	promoted := file("promoted.yaml", text)
	rule, err := rules.ParseRoutes("promoted.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	pauses, stopWatching := w.watchOutput("signals.unique")
	traffic := &numberTraffic{w: w}
	sending, stopSending := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	senders.Go(func() { traffic.run(sending, rate) })
	w.awaitOutputs(pauses)
	pauses.begin("shadow begins and counts")
	w.succeeds(w.command("apply", "apply", trial))
	eventually(t, "the shadow to be promotable", func(ctx context.Context) error {
		p := w.command(fmt.Sprint("shadow-", time.Now().UnixNano()), "shadow")
		if _, err := p.ExitCode(ctx); err != nil {
			return err
		}
		out, err := p.Log.Text()
		if err == nil && !strings.Contains(out, "can be promoted") {
			err = errNotYet
		}
		return err
	})
	for n, step := range []string{"held:", "judged:", "joined:"} {
		pauses.begin("promotion, command killed after " + step)
		p := w.command(fmt.Sprint("promote-", n), "promote", "--timeout", "20s", promoted)
		w.awaitText(p, step)
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		out, _ := p.Log.Text()
		t.Logf("killed after %s: the command had printed %d steps", step, strings.Count(out, "\n"))
		if n == 0 {
			pauses.begin("promotion, process killed under the hold")
			a.kill()
			a = w.start("a", "LEAVE_ON_STOP=false")
			a.awaitReady()
		}
	}
	pauses.begin("promotion, repeated")
	w.succeeds(w.command("promote-last", "promote", "--timeout", "60s", promoted))
	pauses.begin("promoted")
	emitted := len(traffic.w.output("signals.unique"))
	eventually(t, "events by the new rule", func(context.Context) error {
		if len(traffic.w.output("signals.unique")) < emitted+rate/2 {
			return errNotYet
		}
		return nil
	})
	stopSending()
	senders.Wait()
	if traffic.err != nil {
		t.Fatal(traffic.err)
	}
	w.drained(seedInputs, seedOutputs)
	stopWatching()
	traffic.check(rule)
	a.stop()
	b.stop()
}
