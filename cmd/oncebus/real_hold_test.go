//go:build unix

package main_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/cmd/oncebus/cli"
)

// holdSettings end a session soon, so that a killed process delays no hold for long.
var holdSettings = []string{"SESSION_TIMEOUT=6s"}

// emitted returns how many offsets the outputs have.
func (w *world) emitted() (n int64) {
	w.t.Helper()
	ends, err := w.admin.ListCommittedOffsets(w.t.Context(), w.topicsOf(realOutputs)...)
	if err != nil {
		w.t.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n
}

// TestRealHold holds and releases two processes while events and duplicates arrive. It kills a
// process between the hold and its completion, one while everything is held, and one after the
// release. Nothing is emitted while the hold is complete, and every event once in the end.
func TestRealHold(t *testing.T) {
	t.Parallel()
	w := newLoadedWorld(t, realRoutes)
	w.createTopics(nil, realInputs...)
	one, two := w.start("one", holdSettings...), w.start("two", holdSettings...)
	awaitSharing(t, 2*realPartitions, one, two)
	all := w.realTraffic()
	stop := w.keepSending(all)
	run := func(args ...string) string {
		t.Helper()
		stdout, stderr, code := w.oncebus("", args...)
		if code != cli.ExitStopped {
			t.Fatalf("oncebus %v: exit code %d\n%s%s", args, code, stdout, stderr)
		}
		return stdout
	}

	run("hold", "--reason", "a test", "--timeout", "0")
	two.kill()
	two = w.start("two", holdSettings...)
	stdout, stderr, code := w.oncebus("", "hold", "--reason", "another")
	if code == cli.ExitStopped || !strings.Contains(stderr, "held already") {
		t.Errorf("a second hold: exit code %d\n%s%s", code, stdout, stderr)
	}
	w.awaitHeld()
	before := w.emitted()
	one.kill()
	one = w.start("one", holdSettings...)
	one.awaitReady()
	two.awaitReady()
	w.awaitHeld()
	if after := w.emitted(); after != before {
		t.Errorf("the outputs grew from %d to %d offsets under the hold", before, after)
	}
	t.Log(run("hold"))
	run("release")
	two.kill()
	two = w.start("two", holdSettings...)
	two.awaitReady()
	stop()
	w.checkTraffic(all)
	t.Logf("%d events sent", sent(all))
	one.stop()
	two.stop()
}

// awaitHeld waits until the hold in force is complete.
func (w *world) awaitHeld() {
	w.t.Helper()
	eventually(w.t, "the hold is complete", func(context.Context) error {
		stdout, stderr, _ := w.oncebus("", "hold")
		if !strings.Contains(stdout, "complete: ") {
			return errors.New(stdout + stderr)
		}
		return nil
	})
}
