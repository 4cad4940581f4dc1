//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor"
	"oncebus/processor/kafkatest/program"
)

// previousSettings are those of both builds. Transactions are long enough for a kill within one.
var previousSettings = []string{"COMMIT_INTERVAL=200ms", "STATE_FLUSH_ROWS=500", "STATE_FLUSH_AGE=100ms", "LEAVE_ON_STOP=false", "TRANSACTION_TIMEOUT=10s"}

// rolled is an app whose processes change from one build to the other.
type rolled struct {
	*world

	load     *load
	binaries map[string]string // by the name of the build
	procs    []*service
	times    []string
}

// start starts a process of a build, and waits until it is ready and the app goes on.
func (r *rolled) start(n int, build string) {
	r.t.Helper()
	r.procs[n] = r.launch(r.procs[n].Name, r.process(r.binaries[build], "run", r.procs[n].Name, previousSettings...))
	r.procs[n].awaitReady()
}

// change goes over to a build process by process: the first is killed, the others end. In between,
// the first is killed once more, so that its tasks move between the builds.
func (r *rolled) change(way, build string) {
	r.t.Helper()
	for n, p := range r.procs {
		began := time.Now()
		if n == 0 {
			p.kill()
		} else {
			p.stop()
		}
		r.start(n, build)
		r.load.reaches(r.load.sent.Load() + loadRate/2)
		r.times = append(r.times, fmt.Sprintf("%s, process %s: %v", way, p.Name, time.Since(began).Round(10*time.Millisecond)))
		if n == 0 {
			r.procs[0].kill()
			r.load.reaches(r.load.sent.Load() + loadRate/2)
			r.start(0, build)
		}
	}
}

// TestRealPrevious rolls two processes under load from the build before this one to this one,
// back, and forth again, with kills in between, and then raises the level. The build before
// refuses to start from then on. Every event is emitted once.
func TestRealPrevious(t *testing.T) {
	t.Parallel()
	previous, err := program.BuildCommit(t.Context(), program.PreviousCommit, t.TempDir())
	if errors.Is(err, program.ErrNoCommit) {
		t.Skipf("the build before this one is left out: %v; fetch it (git fetch --unshallow)", err)
	} else if err != nil {
		t.Fatal(err)
	}
	w := newLoadedWorld(t, realRoutes)
	w.createTopics(nil, realInputs...)
	r := &rolled{world: w, binaries: map[string]string{"previous": previous, "this": program.Release(t)}, procs: []*service{nil, nil}}
	for n, name := range []string{"a", "b"} {
		r.procs[n] = w.launch(name, w.process(previous, "run", name, previousSettings...))
	}
	for _, p := range r.procs {
		p.awaitReady()
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	began := time.Now()
	r.load = w.startLoad(ctx)
	r.load.reaches(loadRate)

	r.change("forth", "this")
	r.change("back", "previous")
	r.procs[0].kill()
	r.start(0, "this")
	// The row of process b still says that it reads the level.
	r.finalize(cli.ExitWrong, "process b does not say which levels it reads")
	r.procs[0].kill()
	r.start(0, "previous")
	r.change("forth again", "this")
	r.finalize(cli.ExitStopped, "")
	for _, p := range r.procs {
		r.awaitTaken(p, 1)
	}

	r.procs[1].kill()
	refused := w.launch("b", w.process(previous, "run", "b", previousSettings...))
	if code := refused.exited(); code != cli.ExitFailed || !strings.Contains(refused.text(), "this build has up to 2") || !strings.Contains(refused.text(), "run the build that wrote it") {
		t.Errorf("the build before this one ended with %d:\n%s", code, lastLines(refused.text(), 5))
	}
	r.start(1, "this")
	r.load.reaches(r.load.sent.Load() + loadRate)
	stop()
	if err := <-r.load.done; err != nil {
		t.Fatal(err)
	}
	sent := r.load.sent.Load()
	w.drained(realInputs, realOutputs)
	t.Logf("%d events in %v: %s", sent, time.Since(began).Round(time.Second), strings.Join(r.times, "; "))
	w.checkAudited(sent)
	for _, p := range r.procs {
		p.stop()
	}
}

// checkAudited audits the whole app, which must have got so many events.
func (w *world) checkAudited(sent int64) {
	w.t.Helper()
	whole := w.selfAudit(cli.ExitStopped)
	var inputs, fates int64
	for _, r := range whole.Routes {
		inputs, fates = inputs+r.Inputs, fates+r.Unique+r.Duplicates+r.DeadLetters+r.Forwarded+r.Dropped
	}
	if inputs != sent || fates != inputs || whole.OneIn != 1 {
		w.t.Errorf("the audit has %d inputs and %d fates of 1 in %d keys, %d events were sent", inputs, fates, whole.OneIn, sent)
	}
}

// finalize runs the command, which must end with a code and say part.
func (r *rolled) finalize(want int, part string) {
	r.t.Helper()
	out, problems, code := r.oncebus("", "finalize", r.routes)
	if code != want || !strings.Contains(problems, part) {
		r.t.Fatalf("finalize ended with %d, want %d with %q: %s%s", code, want, part, out, problems)
	}
}

// awaitTaken waits until all workers of a process run a route set.
func (w *world) awaitTaken(p *service, set int64) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("process %s runs set %d", p.Name, set), func(ctx context.Context) error {
		body, err := p.Page(ctx, "/state")
		if err != nil {
			return err
		}
		var state processor.State
		if err := json.Unmarshal([]byte(body), &state); err != nil {
			return err
		}
		if state.Routes == nil || state.Routes.Taken < set {
			return errNotYet
		}
		return nil
	})
}
