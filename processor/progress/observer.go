package progress

import (
	"context"
	"errors"
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
	// Interval is the time between two observations of an Observer, except in tests.
	Interval = time.Second
	// firstInterval is the time between two observations until the worker is assigned its first partitions. It
	// is short because stream time does not move before the worker has looked at its inputs.
	firstInterval = 50 * time.Millisecond
	// clocksMargin is how far the estimate of broker time may be ahead of the clock of the broker that stores an
	// outcome, in ms.
	clocksMargin = 1000
	// warnInterval is the time between two warnings that an observation fails.
	warnInterval = time.Minute
)

// Observer observes the progress of one worker of the routing stage: its inputs, outcomes and the executors of
// its routes.
type Observer struct {
	// App, Client and Log are shared with the process. Client is no member of a consumer group.
	App    *app.App
	Client *kgo.Client
	Log    *slog.Logger
	// Positions returns the committed offsets of the partitions of a topic that the worker is assigned.
	Positions func(topic string) map[int32]int64
	// DispatchMax is the longest time from the verdict on an event until the event is stored in the output: the
	// transaction timeout.
	DispatchMax time.Duration
	// Interval is the time between two observations while claims are open. InputsInterval is the time between
	// two looks at inputs that got records; with 0 the Observer does not observe inputs.
	Interval, InputsInterval time.Duration
	// Lag gets the lag of the inputs after each look at them; it may be nil.
	Lag func([]InputLag)

	// steps is the number of steps of the broker clock when the observations below were made, see Clock.Steps.
	steps     uint64
	outcomes  map[string]*outcomesTopic
	executors map[string]*executor // by route
	inputs    inputs
	warned    time.Time

	mu       sync.Mutex
	fresh    *wire.Progress // the observation that waits to be written
	returned map[app.TaskID]time.Time
}

// Run observes until ctx is done. It calls wake for every observation that the worker is to write.
func (o *Observer) Run(ctx context.Context, wake func()) {
	o.forget()
	interval := o.Interval
	if o.InputsInterval > 0 {
		interval = min(interval, o.InputsInterval)
	}
	ticks := time.NewTicker(min(interval, firstInterval))
	defer ticks.Stop()
	for waits := true; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		if waits && o.isAssigned() {
			ticks.Reset(interval)
			waits = false
		}
		p, err := o.observe(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			o.warn(err)
		}
		if !p.IsEmpty() || len(p.Inputs) > 0 {
			o.mu.Lock()
			o.fresh = newerOf(o.fresh, &p)
			o.mu.Unlock()
			wake()
		}
	}
}

// isAssigned reports whether the worker is assigned a partition. It counts outcomes, too: a worker that has
// only outcomes never looks at an input.
func (o *Observer) isAssigned() bool {
	return slices.ContainsFunc(o.App.Topology.Routed, func(topic string) bool { return len(o.Positions(topic)) > 0 })
}

// newerOf returns p. It adds what p lacks from before, an observation that the worker has not written yet.
func newerOf(before, p *wire.Progress) *wire.Progress {
	if before != nil && p.IsEmpty() {
		p.Outcomes, p.Executors = before.Outcomes, before.Executors
	}
	if before != nil && len(p.Inputs) == 0 {
		p.Inputs = before.Inputs
	}
	return p
}

// forget drops all observations, those that wait to be written included.
func (o *Observer) forget() {
	o.steps = o.App.Clock.Steps()
	o.outcomes, o.executors = map[string]*outcomesTopic{}, map[string]*executor{}
	o.inputs = inputs{partitions: map[app.TaskID]*inputPartition{}, lags: map[app.TaskID]int64{}}
	o.mu.Lock()
	o.fresh = nil
	o.mu.Unlock()
}

// warn logs at most once per warnInterval that an observation failed.
func (o *Observer) warn(err error) {
	if time.Since(o.warned) >= warnInterval {
		o.warned = time.Now()
		o.Log.Warn("progress of inputs, outcomes and executors not observed: until it is, no lease ends, and stream time waits", "error", err)
	}
}

// Returned tells the observer that a partition of an input has a leader again after it had none.
func (o *Observer) Returned(id app.TaskID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.returned == nil {
		o.returned = map[app.TaskID]time.Time{}
	}
	o.returned[id] = time.Now()
}

// returnedAt returns when a partition got a leader again; zero if the partition has always had a leader.
func (o *Observer) returnedAt(id app.TaskID) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.returned[id]
}

// Due reports whether an observation waits to be written.
func (o *Observer) Due() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.fresh != nil
}

// Take returns the observation to write and removes it; nil if there is none.
func (o *Observer) Take() *wire.Progress {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.fresh
	o.fresh = nil
	return p
}

// observe returns the progress of the partitions that the worker is assigned. If an error prevents a part of
// this observation, a later observation has that part.
func (o *Observer) observe(ctx context.Context) (p wire.Progress, err error) {
	if o.App.Clock.Steps() != o.steps {
		o.forget() // the broker's clock has stepped, so the times of the observations are no longer valid
	}
	inputs, failed := o.inputs.observe(ctx, o)
	if o.App.WritesProgress {
		p, err = o.observeOutcomes(ctx)
	}
	p.Inputs = inputs
	return p, errors.Join(failed, err)
}

// observeOutcomes returns the progress of outcomes and executors; with an error it returns an empty Progress.
func (o *Observer) observeOutcomes(ctx context.Context) (p wire.Progress, err error) {
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
			known = &outcomesTopic{partitions: map[int32]*reachedEnd{}}
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

// observeExecutors observes the executors of routes. Only one worker observes the executor of a route: the
// worker that is assigned partition 0 of the route's outcomes.
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

// isAwaited reports whether a dedup task has a claim whose lease may not have ended yet. The tasks say so in
// the metadata of their committed offsets, because they may run in other processes.
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
