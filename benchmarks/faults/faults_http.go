//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest"
)

// httpFaults are row h1, the faults of the ingress. They also include changes of the routes under traffic, which
// belong to row p6.
var httpFaults = []*fault{
	{row: "h1", name: "ingress-kill", weight: 2, gate: true, apply: killIngress},
	{row: "h1", name: "ingress-freeze", gate: true, apply: freezeIngress},
	{row: "h1", name: "ingress-restart", gate: true, apply: restartIngress},
	{row: "p6", name: "rolling-routes", all: true, spare: true, apply: rollingRoutes},
}

// answersMax limits the time until requests get verdicts again.
const answersMax = 15 * time.Second

// killIngress kills the ingress while requests are in flight, including requests whose event is already
// committed but whose response is not sent yet. Then it restarts the ingress.
func killIngress(ctx context.Context, k *strike) error {
	if err := k.app.gate.kill(); err != nil {
		return err
	}
	if err := kafkatest.Pause(ctx, k.between(0, time.Second)); err != nil {
		return err
	}
	return errors.Join(k.app.gate.start(ctx), k.answers(ctx))
}

func freezeIngress(ctx context.Context, k *strike) error {
	d := k.between(200*time.Millisecond, 12*time.Second)
	k.note("%v", d.Round(time.Millisecond))
	return errors.Join(k.app.gate.freeze(ctx, d), k.answers(ctx))
}

// restartIngress stops the ingress by SIGTERM. The requests in flight must get their responses.
func restartIngress(ctx context.Context, k *strike) error {
	return errors.Join(k.app.gate.stop(), k.app.gate.start(ctx), k.answers(ctx))
}

// answers waits until a request that was sent after the call has a verdict.
func (k *strike) answers(ctx context.Context) error {
	before := k.traffic.senders.answered()
	ctx, cancel := context.WithTimeout(ctx, k.h.patience(answersMax))
	defer cancel()
	err := kafkatest.Await(ctx, "the ingress responds with verdicts again", func(context.Context) error {
		// Up to senderCount requests, one of each sender, were already in flight at the call, so that many
		// verdicts do not count.
		if n := k.traffic.senders.answered(); n <= before+senderCount {
			return fmt.Errorf("%d verdicts since", n-before)
		}
		return nil
	})
	if err != nil && k.crowded.Load() {
		return nil // crowded: the next quiet time checks that requests get verdicts
	}
	return err
}

// answered returns the number of requests that have a verdict.
func (s *senders) answered() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.sent {
		if s.sent[i].Verdict != "" {
			n++
		}
	}
	return n
}

// extraRecords is how many records of the added route the harness sends.
const extraRecords = 200

// rollingRoutes adds a route to one process after the other while records of this route arrive. Then it removes the
// route in the same way.
func rollingRoutes(ctx context.Context, k *strike) error {
	file, err := k.app.routesWithExtra()
	if err != nil {
		return err
	}
	roll := func(settings ...string) error {
		for n, s := range k.slots {
			// awaitReady cannot be used here, because a process that does not have the route yet waits when it
			// reads a record of the route.
			if err := errors.Join(s.stop(), s.start(ctx, settings...)); err != nil {
				return err
			}
			if n == 0 && len(settings) > 0 {
				if err := k.traffic.produceExtra(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := errors.Join(roll("ROUTES="+file), k.recovers(ctx, time.Now(), takeOverMax), k.extraDone(ctx)); err != nil {
		return errors.Join(err, roll())
	}
	if err := roll(); err != nil {
		return err
	}
	return k.recovers(ctx, time.Now(), takeOverMax)
}

// extraDone waits until every record of the added route is judged. Without the route, a task would wait for
// ever at a record of the route.
func (k *strike) extraDone(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, k.h.patience(quietMax))
	defer cancel()
	err := kafkatest.Await(waiting, "the records of the added route are routed", func(ctx context.Context) error {
		lag, err := k.lag(ctx)
		if err != nil {
			return err
		}
		for partition, n := range lag {
			if strings.Contains(partition, k.app.topic(extraRoute.topic)) {
				return fmt.Errorf("a lag of %d on %s", n, partition)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = k.obs.recovered(ctx, time.Now(), k.h.patience(quietMax), nil)
	return err
}

// extraRoute is the route that rollingRoutes adds and removes. The oracle knows it from the start.
var extraRoute = func() route {
	r := routes[len(routes)-1] // orders
	r.name, r.topic = "extra", "extra.raw"
	return r
}()

// routesWithExtra writes a routes file with the added route.
func (a *app) routesWithExtra() (string, error) {
	text, err := os.ReadFile(a.routesFile())
	if err != nil {
		return "", err
	}
	file := filepath.Join(a.dir, "routes-extra.yaml")
	return file, os.WriteFile(file, append(text, strings.ReplaceAll(extraRoute.text(), "APP", a.id)...), 0o600)
}

// produceExtra sends the records of the added route; each event is sent twice.
func (t *traffic) produceExtra(ctx context.Context) error {
	for n := range extraRecords {
		id := fmt.Sprintf("extra-%d-%d", time.Now().UnixNano(), n/2)
		if n%2 == 1 {
			id = t.extraID
		}
		t.extraID = id
		now := time.Now()
		r := &kgo.Record{
			Topic: t.app.topic(extraRoute.topic), Partition: int32(n % rawPartitions), Key: []byte(id), Timestamp: now, Value: []byte("{}"),
			Headers: []kgo.RecordHeader{{Key: headerFlow, Value: appendFlow(flows, now)}},
		}
		t.client.Produce(context.Background(), r, func(r *kgo.Record, err error) { t.acknowledged(extraRoute.name, id, r, err) })
	}
	return t.client.Flush(ctx)
}
