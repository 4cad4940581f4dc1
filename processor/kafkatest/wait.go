package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// AwaitInterval is the time between two calls of the condition of [Await]. Await polls, because other processes do
// not announce their state.
const AwaitInterval = 20 * time.Millisecond

// Pause waits for d. If ctx ends earlier, Pause returns the cause.
func Pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// fatalError ends an [Await] at once: its condition cannot become true any more.
type fatalError struct{ error }

func (e fatalError) Unwrap() error { return e.error }

// Fatal wraps err so that [Await] returns it at once instead of asking again.
func Fatal(err error) error { return fatalError{err} }

// Await calls ask until it returns nil. It returns an error at once if ask returns a [Fatal] error. If ctx ends, the
// error contains the last error of ask. what completes the sentence "waiting until ...".
func Await(ctx context.Context, what string, ask func(context.Context) error) error {
	return AwaitEvery(ctx, AwaitInterval, what, ask)
}

// AwaitEvery is [Await] with the given interval between two calls of ask.
func AwaitEvery(ctx context.Context, interval time.Duration, what string, ask func(context.Context) error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	last := errors.New("not checked yet")
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if f := (fatalError{}); errors.As(err, &f) {
			return fmt.Errorf("waiting until %s: %w", what, f.error)
		}
		if ctx.Err() == nil { // otherwise err may only say that ctx ended, which would hide the reason
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w; last: %w", what, context.Cause(ctx), last)
		case <-ticker.C:
		}
	}
}
