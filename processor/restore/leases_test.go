package restore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"oncebus/processor/app"
)

// TestLeaseOfAStandbyIsYielded protects that a task asks a standby for the directory and waits until the standby
// releases it. A standby gets no directory that is taken, and a task is not asked to release its directory.
func TestLeaseOfAStandbyIsYielded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, id := newLeases(), app.TaskID{Topic: "routed", Partition: 1}
		asked := 0
		if !d.acquireUnlessTaken(id, func() { asked++ }) {
			t.Fatal("a free directory is refused to a standby")
		}
		got := make(chan error, 1)
		go func() { got <- d.acquire(t.Context(), id) }()
		synctest.Wait()
		if asked != 1 || len(got) > 0 {
			t.Fatalf("the standby was asked %d times, %d tasks have its directory; want 1 and 0", asked, len(got))
		}
		d.release(id)
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		if d.acquireUnlessTaken(id, func() { t.Error("a standby without the directory is asked for it") }) {
			t.Fatal("a standby gets the directory of a task")
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { got <- d.acquire(ctx, id) }()
		synctest.Wait()
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("a task that waits for another task got %v", err)
		}
		d.release(id)
	})
}
