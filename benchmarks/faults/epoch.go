//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// epoch is the life of one app, from its first start to the check of its history.
type epoch struct {
	h       *harness
	rng     *rand.Rand // draws the epoch's schedule
	name    string
	app     *app
	base    []*slot
	spare   []*slot
	obs     *observer
	traffic *traffic
	began   time.Time
}

// openEpoch starts an app with its processes, observer and traffic. rng draws the schedule of the epoch.
func (h *harness) openEpoch(ctx context.Context, rng *rand.Rand, number int) (*epoch, error) {
	name := fmt.Sprintf("e%d", number)
	names := []string{"a", "b", "c", "d", "e"}[:baseSlots+spareSlots]
	a, err := h.newApp(name, names...)
	if err != nil {
		return nil, err
	}
	e := &epoch{h: h, rng: rng, name: name, app: a, base: a.slots[:baseSlots], spare: a.slots[baseSlots:], began: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	// The processes start concurrently, because they must then agree which of them creates the topics.
	if err := e.startAll(ctx); err != nil {
		return nil, errors.Join(err, e.killAll())
	}
	if a.gate, err = newGate(a); err != nil {
		return nil, errors.Join(err, e.killAll())
	}
	if err := a.gate.start(ctx); err != nil {
		return nil, errors.Join(err, e.killAll())
	}
	if e.obs, err = observe(a); err != nil {
		return nil, errors.Join(err, e.killAll())
	}
	if e.traffic, err = startTraffic(a, rand.New(rand.NewPCG(h.set.seed, uint64(100+number))), h.set.rate/h.set.apps); err != nil {
		e.obs.end()
		return nil, errors.Join(err, e.killAll())
	}
	if _, err := e.obs.recovered(ctx, time.Now(), startMax, nil); err != nil {
		return nil, errors.Join(err, e.abandon())
	}
	e.obs.restartStalls()
	h.note("epoch", map[string]any{"epoch": name})
	return e, nil
}

// startAll starts every stopped base process and waits until all are ready.
func (e *epoch) startAll(ctx context.Context) error {
	return each(e.base, func(s *slot) error {
		if !s.alive() {
			if err := s.start(ctx); err != nil {
				return err
			}
		}
		return s.awaitReady(ctx)
	})
}

// stopAll ends every process by SIGTERM.
func (e *epoch) stopAll() error {
	return each(e.app.allSlots(), func(s *slot) error { return s.stop() })
}

func (e *epoch) killAll() error { return each(e.app.allSlots(), (*slot).kill) }

// allSlots returns the app's slots, including the slot of the ingress.
func (a *app) allSlots() []*slot {
	if a.gate == nil {
		return a.slots
	}
	return append(slices.Clone(a.slots), a.gate)
}

// each calls do for several slots concurrently.
func each(slots []*slot, do func(*slot) error) error {
	errs := make([]error, len(slots))
	var wg sync.WaitGroup
	for i, s := range slots {
		wg.Go(func() { errs[i] = do(s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// abandon ends all processes of the epoch without checking the history.
func (e *epoch) abandon() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.h.ctx), 5*time.Second)
	defer cancel()
	err := e.killAll()
	_, trafficErr := e.traffic.end(ctx)
	e.obs.end()
	return errors.Join(err, trafficErr)
}
