package hanging

import (
	"context"
	"time"

	"oncebus/processor/kafka"
)

// A waiter pauses between two steps, each time twice as long, and says what it waits for if
// that takes long.
type waiter struct {
	says  func(reason string)
	since time.Time
	next  time.Duration
	said  string
}

func newWaiter(says func(string)) *waiter {
	return &waiter{says: says, since: time.Now(), next: pauseMin}
}

// pause waits for the next step because of a reason. It returns an error once ctx is done.
func (w *waiter) pause(ctx context.Context, reason error) error {
	if reason != nil && time.Since(w.since) >= saysAfter && w.said != reason.Error() {
		w.said = reason.Error()
		w.says(w.said)
	}
	err := kafka.Pause(ctx, w.next)
	w.next = min(2*w.next, pauseMax)
	return err
}

// over takes back what was said.
func (w *waiter) over() {
	if w.said != "" {
		w.says("")
	}
}
