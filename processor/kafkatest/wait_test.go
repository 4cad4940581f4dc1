//go:build unix

package kafkatest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"oncebus/processor/kafkatest"
)

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		calls := 0
		if err := kafkatest.Await(ctx, "x", func(context.Context) error {
			if calls++; calls < 3 {
				return errors.New("early")
			}
			return nil
		}); err != nil || calls != 3 {
			t.Errorf("%d calls, error %v", calls, err)
		}
		broken := errors.New("broken")
		if err := kafkatest.Await(ctx, "x", func(context.Context) error { return kafkatest.Fatal(broken) }); !errors.Is(err, broken) || ctx.Err() != nil {
			t.Errorf("after a fatal error: %v", err)
		}
		err := kafkatest.Await(ctx, "x is y", func(ctx context.Context) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return broken
		})
		if !errors.Is(err, broken) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "until x is y") {
			t.Errorf("after the deadline: %v", err)
		}
		if err := kafkatest.Pause(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("pause after the deadline: %v", err)
		}
	})
}
