package embedded

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"oncebus/processor/kafkatest"
)

const waitInterval = 5 * time.Millisecond

// WaitMax is the longest wait of a test. It is long, because it only has to end a hang: CI runs four tests at a time
// on two cores. ONCEBUS_TEST_WAIT sets another limit, for runs of the mutants, in which many waits can never succeed.
var WaitMax = func() time.Duration {
	text, set := os.LookupEnv("ONCEBUS_TEST_WAIT")
	if !set {
		return 3 * time.Minute
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		panic("ONCEBUS_TEST_WAIT: " + err.Error())
	}
	return d
}()

// Wait waits until holds returns true. what describes the event of the code under test that makes it true.
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
