//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"oncebus/processor/kafkatest"
)

const (
	// activeMax is the maximal number of faults that are active at the same time.
	activeMax = 3
	// On average after quietEvery faults, the campaign starts no further fault until all active faults have
	// ended.
	quietEvery = 12
	// quietMax limits how long events may wait to be processed once all faults have ended.
	quietMax = 30 * time.Second
	// crowdedMax limits how long a fault waits for the app to recover while other faults are active.
	crowdedMax = 4 * time.Second
	// patience is how long a drawn fault waits for its slots while other faults may still start. After that
	// time, no other fault starts until the waiting fault has started.
	patience = 15 * time.Second
	// closeReserve is the part of an epoch that is left for the drain and the check.
	closeReserve = 25 * time.Second
)

// fault is one way to damage the app or its cluster: it has a row in the matrix of faults, a name, and the
// processes and brokers that it needs.
type fault struct {
	row, name string
	weight    int // how often a deck contains it; 0 counts as 1
	slots     int // how many base processes it acts on
	all       bool
	spare     bool // acts on the spare processes
	gate      bool // acts on the ingress
	broker    bool // acts on the broker, or needs it
	nodes     int  // how many brokers it needs; 0 counts as 1
	kafka4    bool // needs Kafka 4
	chain     bool // it causes other faults and records their strikes; it does not count as a fault itself
	loop      bool // it needs a disk of its own, see loopDisks

	// apply causes the fault, ends it, and checks the consequences. Any error other than errNotStruck is a violation.
	apply func(ctx context.Context, k *strike) error
}

// errNotStruck is wrapped by the error of a fault that had no effect, such as a kill at a fault point that the
// process did not reach.
var errNotStruck = errors.New("did not strike")

// strike is one application of a fault.
type strike struct {
	*epoch
	fault *fault
	rep   *report
	rng   *rand.Rand
	slots []*slot // the base processes that it acts on

	began    time.Time
	crowded  atomic.Bool // another fault was active at the same time
	measured time.Duration
	detail   string
}

// note stores details of the strike for the journal.
func (k *strike) note(format string, args ...any) { k.detail = fmt.Sprintf(format, args...) }

// between returns a random duration.
func (k *strike) between(low, high time.Duration) time.Duration {
	return low + time.Duration(k.rng.Int64N(int64(high-low)))
}

// recovers waits until the app has processed events that were made after since. The app must keep to limit only
// while no other fault is active. If other faults are active, recovers returns early, and the promise is
// checked in the next quiet time.
func (k *strike) recovers(ctx context.Context, since time.Time, limit time.Duration) error {
	began, given := time.Now(), false
	took, err := k.obs.recovered(ctx, since, k.h.patience(limit), func() bool {
		given = k.crowded.Load() && time.Since(began) > crowdedMax
		return given
	})
	if k.measured = took; given || err != nil && k.crowded.Load() {
		k.measured = 0
		return ctx.Err()
	}
	return err
}

// deck has all faults in random order, each as often as its weight says. Faults are drawn from the deck like
// cards, so that each fault is drawn regularly.
type deck struct {
	faults []*fault
	mixed  bool // the order does not put one fault of each row first
	cards  []*fault
}

func (d *deck) draw(rng *rand.Rand) *fault {
	if len(d.cards) == 0 {
		d.shuffle(rng)
	}
	f := d.cards[0]
	d.cards = d.cards[1:]
	return f
}

// shuffle orders the deck: first one fault of each row, then the faults that have not been drawn, then the
// repetitions of faults with a high weight. A short run therefore misses few faults.
func (d *deck) shuffle(rng *rand.Rand) {
	mixed := func(faults []*fault) []*fault {
		rng.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		return faults
	}
	if d.mixed {
		for _, f := range d.faults {
			for range max(1, f.weight) {
				d.cards = append(d.cards, f)
			}
		}
		mixed(d.cards)
		return
	}
	var first, rest, again []*fault
	rows := map[string]bool{}
	for _, f := range mixed(slices.Clone(d.faults)) {
		if rows[f.row] {
			rest = append(rest, f)
		} else {
			rows[f.row] = true
			first = append(first, f)
		}
		for range f.weight - 1 {
			again = append(again, f)
		}
	}
	d.cards = slices.Concat(first, rest, mixed(again))
}

// again puts a fault that did not strike back into the deck, a few positions from the top.
func (d *deck) again(f *fault) {
	d.cards = slices.Insert(d.cards, min(len(d.cards), 5), f)
}

// field applies the faults of one epoch.
type field struct {
	e    *epoch
	deck *deck
	rep  *report
	rng  *rand.Rand
	wg   sync.WaitGroup

	mu     sync.Mutex
	active []*strike
	missed []*fault // faults that did not strike and are to be drawn again
}

// play applies faults until the given time, and then waits until the last fault has ended.
func (e *epoch) play(ctx context.Context, d *deck, rep *report, until time.Time) error {
	f := &field{e: e, deck: d, rep: rep, rng: e.rng}
	defer f.wg.Wait()
	next := d.draw(f.rng)
	waiting := time.Now()
	var aside *fault // a fault that was drawn while its slots were in use
	for time.Now().Before(until) && ctx.Err() == nil && e.h.goesOn(rep) {
		if err := kafkatest.Pause(ctx, f.gap()); err != nil {
			return err
		}
		if f.rng.IntN(quietEvery) == 0 {
			f.wg.Wait()
			f.checkQuiet(ctx)
		}
		f.drawAgain()
		switch {
		case aside != nil && f.start(ctx, aside):
			aside = nil
		case aside != nil && time.Since(waiting) > patience:
			// The fault that was set aside has waited too long, so no other fault starts until the slots of
			// that fault are free.
		case f.start(ctx, next):
			next = d.draw(f.rng)
		case aside == nil && !f.full():
			aside, waiting, next = next, time.Now(), d.draw(f.rng)
		}
	}
	f.wg.Wait()
	f.checkQuiet(ctx)
	if aside != nil {
		d.cards = append([]*fault{aside}, d.cards...)
	}
	d.cards = append([]*fault{next}, d.cards...)
	return ctx.Err()
}

// drawAgain puts the faults that did not strike back into the deck.
func (f *field) drawAgain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, missed := range f.missed {
		f.deck.again(missed)
	}
	f.missed = nil
}

// gap returns the random time until the next fault. Its mean is a setting.
func (f *field) gap() time.Duration {
	gap := time.Duration(f.rng.ExpFloat64() * float64(f.e.h.set.interval))
	return min(max(gap, 200*time.Millisecond), 4*f.e.h.set.interval)
}

func (f *field) full() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.active) >= activeMax
}

// start applies the fault if its slots and brokers are free, and reports whether they were.
func (f *field) start(ctx context.Context, chosen *fault) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.active) >= activeMax {
		return false
	}
	k := &strike{epoch: f.e, fault: chosen, rep: f.rep, rng: rand.New(rand.NewPCG(f.rng.Uint64(), 2)), began: time.Now()}
	free := slices.Clone(f.e.base)
	for _, other := range f.active {
		if chosen.all || other.fault.all || chosen.broker && other.fault.broker || chosen.spare && other.fault.spare || chosen.gate && other.fault.gate {
			return false
		}
		free = slices.DeleteFunc(free, func(s *slot) bool { return slices.Contains(other.slots, s) })
	}
	want := chosen.slots
	if chosen.all {
		want = len(f.e.base)
	}
	if want > len(free) {
		return false
	}
	k.rng.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	k.slots = free[:want]
	for _, other := range f.active {
		other.crowded.Store(true)
		k.crowded.Store(true)
	}
	f.active = append(f.active, k)
	f.wg.Go(func() { f.run(ctx, k) })
	return true
}

// run applies a fault and records the result.
func (f *field) run(ctx context.Context, k *strike) {
	err := k.fault.apply(ctx, k)
	f.mu.Lock()
	f.active = slices.DeleteFunc(f.active, func(other *strike) bool { return other == k })
	f.mu.Unlock()
	if ctx.Err() != nil && err != nil {
		return // the run ends, so the error does not count
	}
	if errors.Is(err, errNotStruck) {
		f.mu.Lock()
		f.missed = append(f.missed, k.fault)
		f.mu.Unlock()
	}
	if !k.fault.chain {
		f.rep.struck(f.e.h, k, err)
	}
	if err != nil && !errors.Is(err, errNotStruck) {
		f.e.h.violate("fault", "%s %s in epoch %s: %v", k.fault.row, k.fault.name, f.e.name, err)
	}
}

// checkQuiet checks, while no fault is active, that events in every partition are processed within quietMax,
// without help of the harness.
func (f *field) checkQuiet(ctx context.Context) {
	took, err := f.e.obs.recovered(ctx, time.Now(), f.e.h.patience(quietMax), nil)
	if err != nil && ctx.Err() == nil {
		f.e.h.violate("heal", "epoch %s: %v after the last fault ended: %v", f.e.name, took.Round(time.Second), err)
		return
	}
	f.rep.quiet(took)
}

// campaign runs epochs until the time is over: first the scenarios, then random
// faults.
func (h *harness) campaign() (*report, error) {
	rep := newReport(h.set)
	if h.set.scenario != "" {
		return rep, h.scenarioAlone(rep)
	}
	faults := selectFaults(allFaults, h.set.filter, h.set.nodes, kafkatest.Version())
	if h.set.apps > 1 {
		return rep, h.crowd(rep, faults)
	}
	rep.expect(faults)
	d, end := &deck{faults: faults}, h.began.Add(h.set.duration)
	for number := 1; h.ctx.Err() == nil && h.goesOn(rep); number++ {
		left := time.Until(end)
		if left < time.Minute/2+closeReserve {
			break
		}
		epochs := (left + h.set.epoch - 1) / h.set.epoch
		until := time.Now().Add(left/epochs - closeReserve)
		e, err := h.openEpoch(h.ctx, h.rng, number)
		if err != nil {
			return rep, fmt.Errorf("epoch %d: %w", number, err)
		}
		if number == 1 && len(h.set.filter) == 0 && (h.set.round != "" || h.set.duration >= 5*time.Minute) {
			err = e.playScenarios(h.ctx, rep)
		}
		if err == nil {
			err = e.play(h.ctx, d, rep, until)
		}
		if err != nil {
			return rep, errors.Join(err, e.abandon())
		}
		if err := h.finishEpoch(e, rep); err != nil {
			return rep, err
		}
	}
	return rep, h.ctx.Err()
}

// goesOn reports whether the run may draw more faults.
func (h *harness) goesOn(rep *report) bool {
	return h.halt.Err() == nil && len(h.violated()) == 0 && !rep.roundComplete() && !rep.quotaComplete()
}

// finishEpoch checks an epoch and adds it to the report.
func (h *harness) finishEpoch(e *epoch, rep *report) error {
	res, err := e.close(h.ctx)
	rep.epoch(res)
	h.say("epoch %s: %s", e.name, res.Report)
	h.say("epoch %s: claim mode: %s", e.name, claimsLine(res.Claims))
	if err != nil {
		return fmt.Errorf("epoch %s: %w", e.name, err)
	}
	return rep.write(h)
}
