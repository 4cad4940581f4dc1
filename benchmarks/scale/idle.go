//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"oncebus/processor/kafkatest"
)

// idleRun has what processes without work use, for each process.
type idleRun struct {
	Routed  bool // each process has two stages, and the input has as many partitions again
	Keys    int  // keys that were stored before; 0: the processes have never seen an event
	CPU     []float64
	RSS     []int64 // after it, bytes
	RSSMax  []int64 // since the process started
	Seconds float64
}

// quiet is how long the processes have no work before the measurement. It is longer than the processes need for
// their first polls and garbage collections.
const quiet = 10 * time.Second

// measureIdle measures idle processes: some that never received an event, and some
// that did.
func measureIdle(ctx context.Context, b *bed) (runs []idleRun, err error) {
	for _, routed := range []bool{false, true} {
		for _, keys := range []int{0, b.s.idleKeys} {
			r, err := idleOnce(ctx, b, routed, keys)
			if err != nil {
				return runs, fmt.Errorf("idle processes, routed %v, %d keys: %w", routed, keys, err)
			}
			b.progress.Done("idle, routed %v, %d keys: %.2f %% CPU, RSS %v", routed, keys, r.CPU, r.RSS)
			runs = append(runs, r)
		}
	}
	return runs, nil
}

func idleOnce(ctx context.Context, b *bed, routed bool, keys int) (r idleRun, err error) {
	r = idleRun{Routed: routed, Keys: keys}
	a, err := b.newApp(ctx, fmt.Sprintf("idle-routed-%v-keys-%d", routed, keys), b.s.idleShape, !routed, manyKeys)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	services, err := a.startAll(ctx)
	defer func() { err = errors.Join(err, end(services...)) }()
	if err != nil {
		return r, err
	}
	if err := a.fill(ctx, keys, services...); err != nil {
		return r, err
	}
	if err := a.awaitOutput(ctx, services...); err != nil {
		return r, err
	}
	if err := kafkatest.Pause(ctx, quiet); err != nil {
		return r, err
	}
	began := time.Now()
	var before []time.Duration
	for _, s := range services {
		u, err := s.Usage()
		if err != nil {
			return r, err
		}
		before = append(before, u.CPU)
	}
	if err := kafkatest.Pause(ctx, b.s.idle); err != nil {
		return r, err
	}
	r.Seconds = time.Since(began).Seconds()
	for i, s := range services {
		if err := s.Ended(); err != nil {
			return r, err
		}
		u, err := s.Usage()
		if err != nil {
			return r, err
		}
		r.CPU = append(r.CPU, 100*(u.CPU-before[i]).Seconds()/r.Seconds)
		r.RSS, r.RSSMax = append(r.RSS, u.RSS), append(r.RSSMax, u.RSSMax)
	}
	for _, s := range services {
		err = errors.Join(err, s.Stop())
	}
	return r, errors.Join(err, a.verify(ctx))
}
