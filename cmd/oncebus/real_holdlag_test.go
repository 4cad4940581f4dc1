//go:build unix

package main_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest/program"
)

// TestRealHoldShowsWhatWaits: in a hold top and doctor say since when it is in force, by whom and
// why, and how many records wait in the inputs.
func TestRealHoldShowsWhatWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, doctorRoutes)
	w.createTopics(nil, "signals.raw", "signals.unique", "dead-letter")
	svc := w.start("a")
	svc.awaitReady()
	w.produce(&kgo.Record{Topic: w.topic("signals.raw"), Value: []byte(`{"traceId":"t-1"}`)})
	w.taken([]string{w.topic("signals.raw")})
	if stdout, stderr, code := w.oncebus("", "hold", "--reason", "repair"); code != cli.ExitStopped {
		t.Fatalf("hold: exit code %d\n%s%s", code, stdout, stderr)
	}
	for range 50 {
		w.produce(&kgo.Record{Topic: w.topic("signals.raw"), Value: []byte(`{"traceId":"t-2"}`)})
	}
	eventually(t, "top shows the hold and what waits", func(context.Context) error {
		stdout, stderr, _ := w.oncebus("", "top", "--once", "--addr", svc.Address(program.ListensHTTP))
		if !strings.Contains(stdout, "inputs  50 records") || !strings.Contains(stdout, "hold    held since ") || !strings.Contains(stdout, ": repair\n") {
			return errors.New(stdout + stderr)
		}
		return nil
	})
	got := w.doctor(0)
	if got.Code != cli.ExitFailed || !strings.Contains(got.Stdout, "the inputs are held since 20") || !strings.Contains(got.Stdout, ": repair; records that wait in 6 partitions of the inputs: 50\n") {
		t.Errorf("doctor in a hold: %+v", got)
	}
	svc.stop()
}
