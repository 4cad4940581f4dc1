//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"oncebus/processor/kafkatest"
)

const (
	// appsMax is the maximal number of apps that run side by side.
	appsMax = 32
	// livesMax limits how often one killChain kills its process.
	livesMax = 12
	// killLanes: one of every killLanes apps gets only faults that kill.
	killLanes = 4
	// youngMin is the shortest time for which traffic flows before an epoch is checked.
	youngMin = 20 * time.Second
	// chainShare is how many killChain cards a deck has for each other card.
	chainShare = 0.25
)

// crowdRows are the rows of the matrix whose faults affect only one app. The faults of the other rows affect
// the broker, the CPU or the clock, and so all apps.
var crowdRows = strings.Fields("b5 b6 g1 g2 n1 n2 n3 n4 p1 p2 p3 p4 p5 p6 p7 s1 s2 s3 s4")

// crowdDeck returns the deck of an app in a crowd. It replaces the faults that kill at one fault point by killChain,
// which needs only one start of a process for each kill. It leaves out faults that would hit all apps.
func crowdDeck(faults []*fault) []*fault {
	var cards []*fault
	armed, weight := false, 0
	for _, f := range crowdFaults(faults) {
		if isPoint(f.name) {
			armed = true
			continue
		}
		weight += max(1, f.weight)
		cards = append(cards, f)
	}
	if armed {
		cards = append(cards, &fault{row: "p1", name: "kill-chain", weight: 1 + int(chainShare*float64(weight)), slots: 1, chain: true, apply: killChain})
	}
	return cards
}

// killsOnly returns the faults of row p1, if there are any. In an app without other faults a process reaches its
// fault point soon.
func killsOnly(cards []*fault) []*fault {
	kills := slices.DeleteFunc(slices.Clone(cards), func(f *fault) bool { return f.row != "p1" })
	if len(kills) == 0 {
		return cards
	}
	return kills
}

// crowdFaults returns the faults that hit one app only.
func crowdFaults(faults []*fault) []*fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f *fault) bool { return !slices.Contains(crowdRows, f.row) })
}

// crowd runs several apps side by side, each with its own epochs, until the time is over, or until there are as
// many faults and kills as the flags require.
func (h *harness) crowd(rep *report, faults []*fault) error {
	rep.expect(crowdFaults(faults))
	halt, stop := context.WithCancel(h.halt)
	defer stop()
	h.halt = halt
	var number atomic.Int64
	errs := make([]error, h.set.apps)
	var wg sync.WaitGroup
	for lane := range h.set.apps {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(h.set.seed, uint64(1_000+lane)))
			d := &deck{faults: crowdDeck(faults), mixed: true}
			if lane%killLanes == 1 {
				d.faults = killsOnly(d.faults)
			}
			// The first epochs differ in length, so that the apps do not open and check epochs at the same time,
			// which uses much CPU.
			first := h.set.epoch * time.Duration(lane+1) / time.Duration(h.set.apps)
			if errs[lane] = h.lane(rep, d, rng, &number, first); errs[lane] != nil {
				stop() // the other lanes end their epochs and check them
			}
		})
	}
	wg.Wait()
	return errors.Join(errors.Join(errs...), h.ctx.Err())
}

// lane runs the epochs of one app one after the other. The first epoch is shorter, so that the lanes do not check at
// the same time.
func (h *harness) lane(rep *report, d *deck, rng *rand.Rand, number *atomic.Int64, first time.Duration) error {
	end, length := h.began.Add(h.set.duration-closeReserve), max(first, time.Minute/2)
	for h.ctx.Err() == nil && h.goesOn(rep) && time.Until(end) > time.Minute/2 {
		e, err := h.openEpoch(h.ctx, rng, int(number.Add(1)))
		if err != nil {
			return fmt.Errorf("open an epoch: %w", err)
		}
		until := time.Now().Add(length)
		if until.After(end) {
			until = end
		}
		err = e.play(h.ctx, d, rep, until)
		// Traffic must flow for some time before the check, so that each route has records to compare.
		if err := errors.Join(err, kafkatest.Pause(h.ctx, time.Until(e.began.Add(youngMin)))); err != nil {
			return errors.Join(err, e.abandon())
		}
		if err := h.finishEpoch(e, rep); err != nil {
			return err
		}
		length = h.set.epoch
	}
	return nil
}

// killChain kills one process at several fault points, one after the other: each start after a kill arms the process
// for the next fault point. In the end the process runs unarmed, and the app must recover.
func killChain(ctx context.Context, k *strike) error {
	s := k.slots[0]
	if err := s.stop(); err != nil {
		return err
	}
	for range 2 + k.rng.IntN(livesMax-1) {
		if ctx.Err() != nil || !k.h.goesOn(k.rep) {
			break
		}
		link := &strike{epoch: k.epoch, rep: k.rep, rng: k.rng, slots: k.slots, began: time.Now()}
		link.crowded.Store(k.crowded.Load())
		link.fault = k.rep.nextPoint(k.rng)
		err := link.liveUntil(ctx, strings.TrimPrefix(link.fault.name, killPrefix))
		k.rep.pointDone(link.fault)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.rep.struck(k.h, link, err)
		if errors.Is(err, errNotStruck) {
			err = s.kill()
		}
		if err != nil {
			return err
		}
	}
	started := time.Now()
	if err := s.start(ctx); err != nil {
		return err
	}
	return k.recovers(ctx, started, restartMax)
}

// nextPoint returns the fault of a kill point. About every second call returns the point with the fewest kills
// so far; a process that is already armed for a point counts as a kill there.
func (r *report) nextPoint(rng *rand.Rand) *fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	points := slices.DeleteFunc(slices.Clone(r.expected), func(f *fault) bool { return !isPoint(f.name) })
	rng.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	chosen := points[0]
	if rng.IntN(2) == 0 {
		chosen = slices.MinFunc(points, func(a, b *fault) int {
			return r.result(a).Struck + r.armed[a.name] - r.result(b).Struck - r.armed[b.name]
		})
	}
	r.armed[chosen.name]++
	return chosen
}

// pointDone undoes the count that a call of nextPoint has added, because the process is no longer armed for
// that point.
func (r *report) pointDone(f *fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed[f.name]--
}

// quotaComplete reports whether the run has as many faults and kills as -min-point requires, so that it may end.
func (r *report) quotaComplete() bool {
	if r.set.minPoint == 0 {
		return false
	}
	left := r.pointsLeft()
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(left) == 0 && r.Faults >= r.set.minFaults
}

// pointsLeft names the fault points that have killed too few processes.
func (r *report) pointsLeft() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var left []string
	for _, f := range r.ByFault {
		if isPoint(f.Name) && f.Struck < r.set.minPoint {
			left = append(left, fmt.Sprintf("%s (%d)", f.Name, f.Struck))
		}
	}
	return left
}
