package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/page"
	"oncebus/processor"
)

// stayChunk is how many records --stay generates at a time. The number includes the duplicates.
const stayChunk = 10 * stayRate

// headerTimeout is how long the page's server waits for the headers of a request.
const headerTimeout = 5 * time.Second

// sendAndStay does what sendWatched does, and then sends at stayRate until ctx is done. It also stops sending
// when running is done, that is, when a process has failed. At the end it waits until all records are judged.
func (d *demo) sendAndStay(ctx, running context.Context, procs []*processor.Processor) error {
	sending, end := context.WithCancelCause(ctx)
	defer end(nil)
	stop := context.AfterFunc(running, func() { end(context.Cause(running)) })
	defer stop()
	if err := d.sendWatched(sending, procs); err != nil {
		return err
	}
	cli.Printf(d.out, "oncebus demo: sending %d records a second. Ctrl-C ends the demo, reads the output and verifies the result.\n", stayRate)
	tick := time.NewTicker(stepTime)
	defer tick.Stop()
	for sending.Err() == nil && len(d.ledger.produced) < eventsMax {
		clear(d.traffic.later) // drop the duplicates that were due after the end of the previous chunk
		for step := range slices.Chunk(d.traffic.live(stayChunk), int(stayRate*stepTime/time.Second)) {
			select {
			case <-tick.C:
			case <-sending.Done():
			}
			if sending.Err() != nil {
				break
			}
			if err := d.sendStep(running, step); err != nil {
				return err
			}
		}
	}
	<-sending.Done() // the ledger may be full while nobody has stopped the demo yet
	if err := context.Cause(running); err != nil {
		return err
	}
	_, err := d.await(running, len(d.ledger.produced), d.judged)
	return err
}

// sendStep produces records of live traffic.
func (d *demo) sendStep(ctx context.Context, step []sentRecord) error {
	d.ledger.add(step, false)
	batch := make([]*kgo.Record, len(step))
	for i, r := range step {
		r.Topic = d.broker.prefix + r.Topic
		batch[i] = r.Record
	}
	if err := d.client.ProduceSync(ctx, batch...).FirstErr(); err != nil {
		return fmt.Errorf("produce sample records: %w", errors.Join(err, context.Cause(ctx)))
	}
	d.progress.produced.Add(int64(len(batch)))
	return nil
}

// servePage serves the live page of the processes, with /metrics, at a free port, and prints its address. The
// returned function stops the server.
func (d *demo) servePage(procs []*processor.Processor) (end func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // listening ends at once
	if err != nil {
		return nil, fmt.Errorf("listen for the live page: %w", err)
	}
	live := page.New(page.Source{
		Role: page.RoleDemo, App: d.config.AppID, Instance: d.config.InstanceID, Metrics: d.registry, Routes: d.routes.Routes, Log: d.kept,
		Ready: func() error {
			var reasons []error
			for _, p := range procs {
				reasons = append(reasons, p.Ready())
			}
			return errors.Join(reasons...)
		},
		States: func() []processor.State {
			states := make([]processor.State, len(procs))
			for i, p := range procs {
				states[i] = p.State()
			}
			return states
		},
	})
	mux := http.NewServeMux()
	live.Register(mux, func(h http.Handler) http.Handler { return h })
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	running, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { live.Run(running) })
	wg.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("serve the live page failed", "error", err)
		}
	})
	cli.Printf(d.out, "oncebus demo: live page at http://%s/\n", listener.Addr())
	return func() {
		stop()
		if err := server.Close(); err != nil {
			d.log.Warn("close the live page failed", "error", err)
		}
		wg.Wait()
	}, nil
}
