//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest"
)

// flushed is how long it takes until all stores have written their rows to the disk (ONCEBUS_STATE_FLUSH_AGE).
const flushed = 80 * time.Second

// ofStarts measures only starts: the first start, which creates the topics; starts after kill -9 without rows, with
// rows in memory and with rows on disk; and a start after a stop.
func (r *run) ofStarts(ctx context.Context) error {
	for _, n := range r.partitions {
		err := r.inCase(ctx, fmt.Sprint("starts", n), plainRoutes(1), n, func(a *app, ready time.Duration) error {
			return errors.Join(r.addStart(a, "first", ready), r.laterStarts(ctx, a))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// laterStarts measures the starts of an app after its first one.
func (r *run) laterStarts(ctx context.Context, a *app) error {
	if err := r.startAgain(ctx, a, "after kill -9 without events"); err != nil {
		return err
	}
	if _, err := r.load(ctx, a, r.events, func(i int) *kgo.Record { return event(1, i) }); err != nil {
		return err
	}
	if err := r.startAgain(ctx, a, "after kill -9 behind a backlog"); err != nil {
		return err
	}
	if err := a.process.Stop(); err != nil {
		return err
	}
	if err := r.startAgain(ctx, a, "after a stop"); err != nil {
		return err
	}
	if err := kafkatest.Pause(ctx, flushed); err != nil {
		return err
	}
	return r.startAgain(ctx, a, "after kill -9 of flushed stores")
}

// startAgain kills the process, unless it has already ended, and measures the next start.
func (r *run) startAgain(ctx context.Context, a *app, name string) error {
	if err := errors.Join(a.process.Kill(), a.start(ctx)); err != nil {
		return err
	}
	ready, err := a.process.AwaitReady(ctx)
	if err != nil {
		return err
	}
	return r.addStart(a, name, ready)
}

// addStart adds the figures of a start that has just become ready: the times at which the topics and the
// manifest were set up, at which a group last assigned partitions, and at which the process was ready.
func (r *run) addStart(a *app, name string, ready time.Duration) error {
	used, err := a.process.Usage()
	if err != nil {
		return err
	}
	entries, err := a.process.Log.Entries()
	if err != nil {
		return err
	}
	last := map[string]time.Time{}
	for _, e := range entries {
		msg, _ := e["msg"].(string)
		text, _ := e["time"].(string)
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			last[msg] = at
		}
	}
	since := func(msg string) float64 { return last[msg].Sub(a.process.Started).Seconds() }
	r.add("starts", fmt.Sprintf("%d partitions, %s", a.partitions, name), float64(a.partitions), figure{"s to topics and manifest", since("started")},
		figure{"s to the assignment", since("partitions assigned")}, figure{readyTime, ready.Seconds()}, figure{"s of CPU", used.CPU.Seconds()})
	return nil
}
