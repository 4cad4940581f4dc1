//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// pause waits for d, or for the end of ctx, which is an error.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// fatalError ends a wait: what is waited for cannot come any more.
type fatalError struct{ error }

func fatal(err error) error { return fatalError{err} }

// eventually asks until the answer is nil, and gives up with the last answer
// when ctx ends.
func eventually(ctx context.Context, what string, ask func(context.Context) error) error {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	var last error
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if f := (fatalError{}); errors.As(err, &f) {
			return fmt.Errorf("waiting until %s: %w", what, f.error)
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain until %s: %w (last answer: %w)", what, context.Cause(ctx), last)
		case <-ticker.C:
		}
	}
}
