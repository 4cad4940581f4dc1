package processor

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

// TestEveryBrokerErrorHasItsAction is the whole table of classify: what is done
// about each error a broker can answer. A new franz-go that knows more codes,
// or another word about retrying, shows here.
func TestEveryBrokerErrorHasItsAction(t *testing.T) {
	var table strings.Builder
	known := 0
	for code := int16(-1); code <= 200; code++ {
		ke := kerr.TypedErrorForCode(code)
		if ke == nil {
			continue // 0 is no error
		}
		if ke == kerr.UnknownServerError && code != ke.Code {
			continue // a code that this franz-go does not know
		}
		known++
		fmt.Fprintf(&table, "%s -> %v\n", ke.Message, classify(ke))
		if got := classify(fmt.Errorf("while testing: %w", fmt.Errorf("%s: %w", "deep", ke))); got != classify(ke) {
			t.Errorf("%s is %v, wrapped it is %v", ke.Message, classify(ke), got)
		}
	}
	if known < 130 {
		t.Errorf("only %d codes are known", known)
	}
	golden.Assert(t, "classify.txt", table.String())
}

// TestUnknownBrokerErrorCode: a broker of the future may answer what nobody
// here knows. Then nothing is known of what it did.
func TestUnknownBrokerErrorCode(t *testing.T) {
	for _, code := range []int16{1000, -2, 32767} {
		if got := classify(kerr.ErrorForCode(code)); got != actRebuild {
			t.Errorf("code %d is %v, want %v", code, got, actRebuild)
		}
	}
}

// TestOtherErrorsHaveTheirAction: errors of the network, of contexts, of the
// client and our own.
func TestOtherErrorsHaveTheirAction(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	tests := []struct {
		name string
		err  error
		want action
	}{
		{"connection refused", dial, actRebuild},
		{"name not found", &net.DNSError{Err: "no such host", IsNotFound: true}, actRebuild},
		{"end of stream", io.EOF, actRebuild},
		{"end of stream, within", io.ErrUnexpectedEOF, actRebuild},
		{"closed connection", net.ErrClosed, actRebuild},
		{"cancelled", context.Canceled, actRebuild},
		{"deadline", context.DeadlineExceeded, actRebuild},
		{"client closed", kgo.ErrClientClosed, actRebuild},
		{"nobody knows", errors.New("what is this"), actRebuild},
		{"no error", nil, actRebuild}, // live returned without one: begin anew
		{"record timed out", kgo.ErrRecordTimeout, actAbort},
		{"record retried too often", kgo.ErrRecordRetries, actAbort},
		{"aborting", kgo.ErrAborting, actAbort},
		{"partition moved", errMigrated, actAbort},
		{"refused", refusal("topic %s", "x"), actStop},
		{"truncated", errTruncated, actStop},
		{"our bug", errIllegalState, actStop},
		{"unsettled", errUnsettled, actRebuild},
		// Where two kinds meet, the one that throws away more is the answer.
		{"our bug in a moved partition", fmt.Errorf("%w: %w", errMigrated, errIllegalState), actStop},
		{"refusal because of the network", refusal("ask: %w", dial), actStop},
		{"truncated, by the broker's word", fmt.Errorf("%w: %w", errTruncated, kerr.OffsetOutOfRange), actStop},
		{"end that was to be retried", asRebuild(kerr.CoordinatorLoadInProgress), actRebuild},
		{"end that was to be aborted", asRebuild(kerr.RebalanceInProgress), actRebuild},
		{"end without a right", asRebuild(kerr.TransactionalIDAuthorizationFailed), actStop},
	}
	for _, tt := range tests {
		for _, err := range []error{tt.err, fmt.Errorf("worker: %w", tt.err), errors.Join(tt.err, errors.New("and more"))} {
			if tt.err == nil && err != nil {
				continue
			}
			if got := classify(err); got != tt.want {
				t.Errorf("%s (%v): %v, want %v", tt.name, err, got, tt.want)
			}
		}
	}
}
