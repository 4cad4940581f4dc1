package hanging

import (
	"context"
	"time"

	"oncebus/processor/kafka"
)

// waiter pauses between two steps, each time twice as long (up to pauseMax). If that takes long, it
// reports what it waits for.
type waiter struct {
	says  func(reason string)
	since time.Time
	next  time.Duration
	said  string
}

func newWaiter(says func(string)) *waiter {
	return &waiter{says: says, since: time.Now(), next: pauseMin}
}

// pause waits before the next step. reason is why that step is needed. It returns an error once ctx is
// done.
func (w *waiter) pause(ctx context.Context, reason error) error {
	if reason != nil && time.Since(w.since) >= saysAfter && w.said != reason.Error() {
		w.said = reason.Error()
		w.says(w.said)
	}
	err := kafka.Pause(ctx, w.next)
	w.next = min(2*w.next, pauseMax)
	return err
}

// over withdraws the report of what the waiter waits for.
func (w *waiter) over() {
	if w.said != "" {
		w.says("")
	}
}
