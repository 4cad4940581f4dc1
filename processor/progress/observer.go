package progress

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

const (
	// Interval is that of an Observer, except in tests.
	Interval = time.Second
	// clocksMargin is how much the estimate of broker time may be ahead of the clock of
	// the broker that stores an outcome, in ms.
	clocksMargin = 1000
	// warnInterval is the time between two warnings that an observation fails.
	warnInterval = time.Minute
)

// Observer observes for one client of a worker of the routing stage.
type Observer struct {
	// App, Client and Log are those of the process. Client is no member of a group.
	App    *app.App
	Client *kgo.Client
	Log    *slog.Logger
	// Positions returns the committed offsets of a topic's partitions that the worker has.
	Positions func(topic string) map[int32]int64
	// DispatchMax is how long after its verdict an event may be stored in the output: the
	// transaction timeout.
	DispatchMax time.Duration
	// Interval is the time between two observations while claims are open.
	Interval time.Duration

	steps     uint64 // of broker time, when the observations below were made
	outcomes  map[string]*outcomesTopic
	executors map[string]*executor // by route
	warned    time.Time

	mu    sync.Mutex
	fresh *wire.Progress // not written yet
}

// Run observes until ctx is done, and calls wake for every observation to write.
func (o *Observer) Run(ctx context.Context, wake func()) {
	if !o.App.WritesProgress || len(o.App.Outcomes) == 0 {
		return
	}
	o.forget()
	ticks := time.NewTicker(o.Interval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		p, err := o.observe(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			o.warn(err)
		case !p.IsEmpty():
			o.mu.Lock()
			o.fresh = &p
			o.mu.Unlock()
			wake()
		}
	}
}

// forget drops all observations.
func (o *Observer) forget() {
	o.steps = o.App.Clock.Steps()
	o.outcomes, o.executors = map[string]*outcomesTopic{}, map[string]*executor{}
	o.mu.Lock()
	o.fresh = nil
	o.mu.Unlock()
}

// warn logs that an observation failed: until it succeeds, no lease ends.
func (o *Observer) warn(err error) {
	if time.Since(o.warned) >= warnInterval {
		o.warned = time.Now()
		o.Log.Warn("progress of outcomes and executors not observed: no lease ends until it is", "error", err)
	}
}

// Due reports whether an observation waits to be written.
func (o *Observer) Due() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.fresh != nil
}

// Take returns the newest observation, nil for none, and removes it.
func (o *Observer) Take() *wire.Progress {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.fresh
	o.fresh = nil
	return p
}

// observe returns what is known of the partitions that the worker has. With an error it
// returns nothing: the next observation includes all of it.
func (o *Observer) observe(ctx context.Context) (p wire.Progress, err error) {
	if o.App.Clock.Steps() != o.steps {
		o.forget() // their times are not of the broker's clock as it is now
	}
	held := map[string]map[int32]int64{}
	for topic := range o.App.Outcomes {
		if positions := o.Positions(topic); len(positions) > 0 {
			held[topic] = positions
		}
	}
	if len(held) == 0 {
		return p, nil
	}
	if awaited, err := o.isAwaited(ctx); err != nil || !awaited {
		return p, err
	}
	for topic, positions := range held {
		known := o.outcomes[topic]
		if known == nil {
			known = &outcomesTopic{partitions: map[int32]*outcomesPartition{}}
			o.outcomes[topic] = known
		}
		observed, err := known.observe(ctx, o, topic, positions)
		if err != nil {
			return wire.Progress{}, err
		}
		p.Outcomes = append(p.Outcomes, observed)
	}
	slices.SortFunc(p.Outcomes, func(a, b wire.OutcomesProgress) int { return int(a.Topic) - int(b.Topic) })
	p.Executors, err = o.observeExecutors(ctx, held)
	if err != nil {
		return wire.Progress{}, err
	}
	return p, nil
}

// observeExecutors observes the executors of the routes of which the worker has the first
// partition of the outcomes.
func (o *Observer) observeExecutors(ctx context.Context, held map[string]map[int32]int64) (all []wire.ExecutorProgress, err error) {
	for _, route := range o.App.Routes {
		if _, first := held[route.Claim.Outcomes][0]; !first || route.Mode != rules.ClaimMode || route.Claim.Group == "" {
			continue
		}
		known := o.executors[route.Name]
		if known == nil {
			known = &executor{}
			o.executors[route.Name] = known
		}
		to, ok, err := known.observe(ctx, o, route)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, wire.ExecutorProgress{Route: route.Name, Passed: []wire.Passed{{To: to}}})
		}
	}
	slices.SortFunc(all, func(a, b wire.ExecutorProgress) int { return strings.Compare(a.Route, b.Route) })
	return all, nil
}

// isAwaited reports whether a task has claims whose leases may not have ended. The tasks
// say so in the metadata of their offsets, because they may run in other processes.
func (o *Observer) isAwaited(ctx context.Context) (bool, error) {
	topic := o.App.Topology.Repartition
	partitions := make([]int32, o.App.Topology.Topics[topic].Partitions)
	for i := range partitions {
		partitions[i] = int32(i)
	}
	offsets, err := kafka.CommittedOffsets(ctx, o.Client, app.GroupName(o.App.Topology.App, app.StageDedup), map[string][]int32{topic: partitions})
	if err != nil {
		return false, err
	}
	for _, offset := range offsets[topic] {
		if app.CommitOf(offset.Metadata, offset.At).AwaitsProgress {
			return true, nil
		}
	}
	return false, nil
}
