package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest/golden"
)

// TestEveryBrokerErrorHasItsAction writes the whole table of Classify. It fails
// when a new franz-go has more codes or calls another code retriable.
func TestEveryBrokerErrorHasItsAction(t *testing.T) {
	var table strings.Builder
	known := 0
	for code := int16(-1); code <= 200; code++ {
		ke := kerr.TypedErrorForCode(code)
		if ke == nil {
			continue // 0 is no error
		}
		if ke == kerr.UnknownServerError && code != ke.Code {
			continue // a code unknown to this franz-go
		}
		known++
		fmt.Fprintf(&table, "%s -> %v\n", ke.Message, Classify(ke))
		if got := Classify(fmt.Errorf("while testing: %w", fmt.Errorf("%s: %w", "deep", ke))); got != Classify(ke) {
			t.Errorf("%s is %v, wrapped it is %v", ke.Message, Classify(ke), got)
		}
	}
	if known < 130 {
		t.Errorf("only %d codes are known", known)
	}
	golden.Assert(t, "classify.txt", table.String())
}

// TestUnknownBrokerErrorCode classifies codes of newer brokers. The worker makes a
// new client, because the broker's state is unknown.
func TestUnknownBrokerErrorCode(t *testing.T) {
	for _, code := range []int16{1000, -2, 32767} {
		if got := Classify(kerr.ErrorForCode(code)); got != Rebuild {
			t.Errorf("code %d is %v, want %v", code, got, Rebuild)
		}
	}
}

// TestOtherErrorsHaveTheirAction classifies errors of the network, of contexts, of
// franz-go and of oncebus.
func TestOtherErrorsHaveTheirAction(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	tests := []struct {
		name string
		err  error
		want Action
	}{
		{"connection refused", dial, Rebuild},
		{"name not found", &net.DNSError{Err: "no such host", IsNotFound: true}, Rebuild},
		{"end of stream", io.EOF, Rebuild},
		{"end of stream, within", io.ErrUnexpectedEOF, Rebuild},
		{"closed connection", net.ErrClosed, Rebuild},
		{"cancelled", context.Canceled, Rebuild},
		{"deadline", context.DeadlineExceeded, Rebuild},
		{"client closed", kgo.ErrClientClosed, Rebuild},
		{"unknown", errors.New("unexpected"), Rebuild},
		{"no error", nil, Rebuild}, // runClient returned without one
		{"record timed out", kgo.ErrRecordTimeout, Abort},
		{"record retried too often", kgo.ErrRecordRetries, Abort},
		{"aborting", kgo.ErrAborting, Abort},
		{"partition moved", ErrMustAbort, Abort},
		{"refused", OperatorErrorf("topic %s", "x"), Stop},
		{"truncated", ErrTruncated, Stop},
		{"bug", ErrIllegalState, Stop},
		{"unknown commit outcome", ErrCommitUnknown, Rebuild},
		// An error of two kinds has the action that discards more.
		{"bug in a moved partition", fmt.Errorf("%w: %w", ErrMustAbort, ErrIllegalState), Stop},
		{"operator error because of the network", OperatorErrorf("connect: %w", dial), Stop},
		{"truncated, reported by the broker", fmt.Errorf("%w: %w", ErrTruncated, kerr.OffsetOutOfRange), Stop},
		{"end with a retriable error", AsCommitUnknown(kerr.CoordinatorLoadInProgress), Rebuild},
		{"end with an abort error", AsCommitUnknown(kerr.RebalanceInProgress), Rebuild},
		{"end without a right", AsCommitUnknown(kerr.TransactionalIDAuthorizationFailed), Stop},
	}
	for _, tt := range tests {
		for _, err := range []error{tt.err, fmt.Errorf("worker: %w", tt.err), errors.Join(tt.err, errors.New("and more"))} {
			if tt.err == nil && err != nil {
				continue
			}
			if got := Classify(err); got != tt.want {
				t.Errorf("%s (%v): %v, want %v", tt.name, err, got, tt.want)
			}
		}
	}
}
