//go:build unix

package main

import (
	"context"
	"errors"
	"time"

	"oncebus/processor/kafkatest"
)

// scenario measures one promise in numbers, while no fault is active.
type scenario struct {
	name    string
	what    string // what the measured time is
	promise string
	limit   time.Duration
	rounds  int
	// apart says that the scenario runs only alone (-scenario), on a cluster with the number of brokers and the
	// release in the next fields. 0 and "" mean the defaults.
	apart bool
	nodes int
	kafka string
	// prepare, if not nil, runs before the app starts. If its error wraps errLeftOut, the run ends without a finding.
	prepare func(ctx context.Context, h *harness) error
	// play runs one round and returns its measurements.
	play func(ctx context.Context, e *epoch, round int) ([]time.Duration, error)
}

// scenarioResult has the measurements of a scenario.
type scenarioResult struct {
	Name    string    `json:"name"`
	What    string    `json:"what"`
	Promise string    `json:"promise"`
	Times   quantiles `json:"times"`
}

var scenarios = []*scenario{
	{
		name: "restart", what: "kill -9 of one of two processes and start of the same one: from the kill until events made later had passed every partition",
		promise: "5 s", limit: restartMax, rounds: 5, play: playRestart,
	},
	{
		name: "take-over", what: "kill -9 of one of two processes that stays away: until events made later had passed every partition",
		promise: "session timeout + transaction timeout + 5 s = " + takeOverMax.String(), limit: takeOverMax, rounds: 4, play: playTakeOver,
	},
	{
		name: "rolling-restart", what: "rolling restart of three processes: wait of each unique event from its making to the output",
		promise: "commit interval + 2 s", limit: commitInterval + 2*time.Second, rounds: 2, play: playRolling,
	},
	{
		name: "zombie", what: "process stopped for longer than both timeouts and continued while its successor runs: until it commits again, the same process",
		promise: "0 records of it after its successor's first commit, no restart", limit: quietMax, rounds: 3, play: playZombie,
	},
	{
		name: "upgrade", what: "rolling upgrade of controller and three brokers from Kafka " + upgradeFrom + " to " + kafkatest.KafkaVersion + ", then of the features: from the end of each step until events made later had passed every partition",
		promise: brokerBackMax.String() + ", the same processes", limit: brokerBackMax, rounds: 1, play: playUpgrade, apart: true, nodes: 3, kafka: upgradeFrom,
	},
	{
		name: "previous", what: "rolling update of three processes from the program of -previous to this one, back, and forth again, then of the level: from each step until events made later had passed every partition",
		promise: takeOverMax.String(), limit: takeOverMax, rounds: 1, play: playPrevious, apart: true, prepare: preparePrevious,
	},
}

func scenarioNames() []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

func scenarioByName(name string) *scenario {
	for _, s := range scenarios {
		if s.name == name {
			return s
		}
	}
	return nil
}

// scenarioAlone runs one scenario in its own epoch.
func (h *harness) scenarioAlone(rep *report) error {
	chosen := scenarioByName(h.set.scenario)
	if chosen.prepare != nil {
		if err := chosen.prepare(h.ctx, h); errors.Is(err, errLeftOut) {
			h.say("scenario %s: %v", chosen.name, err)
			return nil
		} else if err != nil {
			return err
		}
	}
	e, err := h.openEpoch(h.ctx, h.rng, 1)
	if err != nil {
		return err
	}
	if err := e.playScenario(h.ctx, rep, chosen); err != nil {
		return errors.Join(err, e.abandon())
	}
	return h.finishEpoch(e, rep)
}

// playScenarios runs all scenarios that can share an epoch.
func (e *epoch) playScenarios(ctx context.Context, rep *report) error {
	for _, s := range scenarios {
		if s.apart {
			continue
		}
		if err := e.playScenario(ctx, rep, s); err != nil {
			return err
		}
	}
	return nil
}

func (e *epoch) playScenario(ctx context.Context, rep *report, s *scenario) error {
	var times []time.Duration
	rounds := s.rounds
	if e.h.set.round != "" {
		rounds = 1 // one round checks the promise; further rounds would only measure the distribution
	}
	for round := range rounds {
		took, err := s.play(ctx, e, round)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			e.h.violate("scenario", "%s, round %d: %v", s.name, round+1, err)
		}
		for _, t := range took {
			if t <= s.limit {
				continue
			}
			if e.h.set.lenient {
				e.h.say("scenario %s, round %d: MISSED: %v, promised is %v", s.name, round+1, t.Round(time.Millisecond), s.limit)
				break
			}
			e.h.violate("scenario", "%s, round %d: %v, promised is %v", s.name, round+1, t.Round(time.Millisecond), s.limit)
			break
		}
		times = append(times, took...)
		if err := e.startAll(ctx); err != nil {
			return err
		}
	}
	result := scenarioResult{s.name, s.what, s.promise, quantilesIn(times)}
	rep.scenario(result)
	e.h.say("scenario %s: p50 / p99 / max %v s of %d", s.name, result.Times, result.Times.N)
	return nil
}

func (r *report) scenario(s scenarioResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Scenarios = append(r.Scenarios, s)
}

// two stops all processes except the first two, which then get all tasks.
func (e *epoch) two(ctx context.Context) error {
	for _, s := range e.base[2:] {
		if err := s.stop(); err != nil {
			return err
		}
	}
	// The two processes get the tasks of a stopped process when its session is over.
	if err := errors.Join(kafkatest.Pause(ctx, sessionTimeout), e.base[0].awaitReady(ctx), e.base[1].awaitReady(ctx)); err != nil {
		return err
	}
	_, err := e.obs.recovered(ctx, time.Now(), e.h.patience(quietMax), nil)
	return err
}

func playRestart(ctx context.Context, e *epoch, round int) ([]time.Duration, error) {
	if err := e.two(ctx); err != nil {
		return nil, err
	}
	s := e.base[round%2]
	if err := s.kill(); err != nil {
		return nil, err
	}
	killed := time.Now()
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	took, err := e.obs.recovered(ctx, killed, e.h.patience(quietMax), nil)
	return []time.Duration{took}, err
}

func playTakeOver(ctx context.Context, e *epoch, round int) ([]time.Duration, error) {
	if err := e.two(ctx); err != nil {
		return nil, err
	}
	if err := e.base[round%2].kill(); err != nil {
		return nil, err
	}
	took, err := e.obs.recovered(ctx, time.Now(), e.h.patience(quietMax), nil)
	return []time.Duration{took}, err
}

// playRolling measures the delay of every unique event that is made during a rolling restart.
func playRolling(ctx context.Context, e *epoch, _ int) ([]time.Duration, error) {
	if _, err := e.obs.recovered(ctx, time.Now(), e.h.patience(quietMax), nil); err != nil {
		return nil, err
	}
	if err := kafkatest.Pause(ctx, time.Second); err != nil {
		return nil, err
	}
	began := time.Now()
	for _, s := range e.base {
		if err := errors.Join(s.stop(), s.start(ctx), s.awaitReady(ctx)); err != nil {
			return nil, err
		}
	}
	ended := time.Now()
	if _, err := e.obs.recovered(ctx, ended, e.h.patience(quietMax), nil); err != nil {
		return nil, err
	}
	return e.obs.delaysBetween(began, ended), nil
}

// delaysBetween returns the delays of the unique events that were made between two moments.
func (o *observer) delaysBetween(from, to time.Time) []time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []time.Duration
	for _, d := range o.delays {
		if d.sent >= from.UnixMicro() && d.sent <= to.UnixMicro() {
			all = append(all, time.Duration(d.seen-d.sent)*time.Microsecond)
		}
	}
	return all
}
