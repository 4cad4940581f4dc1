package kafka

import (
	"context"
	"time"
)

// Pause waits for d. It returns the error of ctx if ctx ends first.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
