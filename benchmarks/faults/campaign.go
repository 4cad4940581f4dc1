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
	// activeMax is the most faults at the same time.
	activeMax = 3
	// quietEvery is the mean number of faults after which the campaign waits until
	// all faults have ended.
	quietEvery = 12
	// quietMax limits how long events may wait once all faults have ended.
	quietMax = 30 * time.Second
	// crowdedMax is how long a fault waits for the app to recover while other faults
	// are active.
	crowdedMax = 4 * time.Second
	// patience is how long a drawn fault waits for its slots; after that no other
	// fault starts before it.
	patience = 15 * time.Second
	// closeReserve is the part of an epoch for drain and check.
	closeReserve = 25 * time.Second
)

// A fault is one way to damage the app or its cluster: its row in the matrix of
// faults, its name, and the processes and brokers that it needs.
type fault struct {
	row, name string
	weight    int // how often a deck has it; 0 counts as 1
	slots     int // number of base processes it acts on
	all       bool
	spare     bool // acts on the spare processes
	gate      bool // acts on the ingress
	broker    bool // acts on the broker, or needs it
	nodes     int  // brokers it needs; 0 counts as 1
	kafka4    bool // needs Kafka 4
	chain     bool // records strikes of other faults, and does not count itself
	loop      bool // needs a disk of its own, see loopDisks

	// apply causes the fault, ends it, and checks the consequences. An error is a
	// violation, unless it is errNotStruck.
	apply func(ctx context.Context, k *strike) error
}

// errNotStruck is wrapped by the error of a fault without effect, such as a kill at a
// point that the process did not reach.
var errNotStruck = errors.New("did not strike")

// A strike is one application of a fault.
type strike struct {
	*epoch
	fault *fault
	rep   *report
	rng   *rand.Rand
	slots []*slot // its base processes

	began    time.Time
	crowded  atomic.Bool // another fault was active at the same time
	measured time.Duration
	detail   string
}

// note stores the details for the journal.
func (k *strike) note(format string, args ...any) { k.detail = fmt.Sprintf(format, args...) }

// between returns a random duration.
func (k *strike) between(low, high time.Duration) time.Duration {
	return low + time.Duration(k.rng.Int64N(int64(high-low)))
}

// recovers waits until the app has processed events made after since. The limit is a
// promise only without other faults. With others the wait ends early, and the next
// quiet time checks the promise.
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

// A deck has all faults in random order, each as often as its weight, so that each is
// drawn regularly.
type deck struct {
	faults []*fault
	mixed  bool // no order of rows
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

// shuffle puts one fault of each row first, then those that were not drawn, then the
// frequent ones again. So a short run misses few.
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

// again returns a fault that did not strike to the deck, a few positions down.
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
	missed []*fault // did not strike; drawn again
}

// play applies faults until the time is over, and waits for the last of them.
func (e *epoch) play(ctx context.Context, d *deck, rep *report, until time.Time) error {
	f := &field{e: e, deck: d, rep: rep, rng: e.rng}
	defer f.wg.Wait()
	next := d.draw(f.rng)
	waiting := time.Now()
	var aside *fault // drawn before, but its slots were in use
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
			// No other fault starts until its slots are free.
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

// drawAgain returns the faults that did not strike to the deck.
func (f *field) drawAgain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, missed := range f.missed {
		f.deck.again(missed)
	}
	f.missed = nil
}

// gap returns the time to the next fault: random, with the mean of the settings.
func (f *field) gap() time.Duration {
	gap := time.Duration(f.rng.ExpFloat64() * float64(f.e.h.set.interval))
	return min(max(gap, 200*time.Millisecond), 4*f.e.h.set.interval)
}

func (f *field) full() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.active) >= activeMax
}

// start applies the fault if its slots and brokers are free.
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
		return // the run ends
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

// checkQuiet runs while no fault is active: every partition must process events soon,
// without help.
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

// goesOn reports whether the run draws more faults.
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
