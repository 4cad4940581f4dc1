//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"oncebus/processor/kafkatest/program"
)

// Main is the main function of a benchmark. parse reads the flags. run works until it is done, or until SIGINT or
// SIGTERM ends its context. The exit code is 1 for an error of run and 2 for an error of parse. In the process of a
// contender, Main calls [ChildMain] instead.
func Main(name string, parse func() error, run func(ctx context.Context) error) {
	ChildMain()
	if err := parse(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil && !errors.Is(err, errEstimated) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Ints parses the value of a flag that is a list of numbers; each must be at least 1.
func Ints(name, text string) (list []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-%s: %q is not a number from 1; give one or several, separated by commas", name, part)
		}
		list = append(list, n)
	}
	return list, nil
}

// CommitIntervals parses the value of -commit-intervals. The error names every part that is invalid.
func CommitIntervals(text string) (list []time.Duration, err error) {
	for part := range strings.SplitSeq(text, ",") {
		commit, parseErr := time.ParseDuration(part)
		if parseErr != nil || commit < time.Millisecond {
			err = errors.Join(err, fmt.Errorf("-commit-intervals: %q is not a duration of 1ms or more", part))
		}
		list = append(list, commit)
	}
	return list, err
}

// Selected reports whether name contains one of the comma separated parts of only, the value of -only.
func Selected(name, only string) bool {
	return slices.ContainsFunc(strings.Split(only, ","), func(part string) bool { return strings.Contains(name, part) })
}

// While returns a context that ends when the process ends. The cause of the context is then the error with which the
// process ended.
func While(ctx context.Context, p *program.Process) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.Exited():
			cancel(fmt.Errorf("process %s ended by itself: %w", p.Name, p.Err()))
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
