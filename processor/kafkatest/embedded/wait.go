package embedded

import (
	"context"
	"errors"
	"testing"
	"time"

	"oncebus/processor/kafkatest"
)

const (
	// WaitMax is the longest wait of a test. It only ends a hang: CI runs four tests at a time on two
	// cores, with the race detector.
	WaitMax      = 3 * time.Minute
	waitInterval = 5 * time.Millisecond
)

// Wait waits until holds returns true: an event of the code under test brings that about.
func Wait(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), WaitMax)
	defer cancel()
	err := kafkatest.AwaitEvery(ctx, waitInterval, what, func(context.Context) error {
		if holds() {
			return nil
		}
		return errors.New("not yet")
	})
	if err != nil {
		tb.Fatalf("gave up waiting for %s", what)
	}
}
