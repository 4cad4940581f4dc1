package front

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// An Operation names an event, so that its sender can ask for the outcome. The ingress need not remember
// operations: any process can ask for the outcome, also after a restart.
type Operation struct {
	Route   *rules.Route
	Digest  dedup.Digest
	Routing dedup.Digest // decides which task has the event
	Key     [32]byte
	Time    int64 // the event time, in ms
	Details wire.Details
}

// OperationOf returns the operation of an event that has a key.
func OperationOf(d *rules.Derived) Operation {
	o := Operation{Route: d.Route, Digest: d.Digest, Routing: d.Routing, Key: d.Key, Time: d.Time, Details: wire.DetailsOf(d)}
	o.Details.Request = ""
	return o
}

// queryLevel is the lowest level of an app at which all builds that can run it read queries.
const queryLevel = 2

// checkQueryLevel returns an error for a route with answer: outcome if the app may run builds that cannot read
// queries.
func (f *IngressClient) checkQueryLevel(rt *app.App) error {
	for _, r := range f.routes.Routes {
		if r.HTTP != nil && r.HTTP.Answer != nil && rt.Level < queryLevel {
			return kafka.OperatorErrorf("route %s has answer: outcome, which builds before this one cannot read, and the app still lets them run: update every process, then run `oncebus finalize`", r.Name)
		}
	}
	return nil
}

// AskForOutcome asks the task of an operation for its outcome. The answer is the stored outcome with the
// verdict replayed, in_progress, or a status without a claim. The query is written to the partition of the
// event, behind the event, so the task has judged the event before it reads the query. The query starts no
// attempt. path is the path of the request. The errors are the errors of SubmitAndWait.
func (f *IngressClient) AskForOutcome(ctx context.Context, path string, o *Operation) (wire.Answer, error) {
	at, err := f.reach(ctx, false)
	if err != nil {
		return wire.Answer{}, err
	}
	if hold := f.holds.InForce(); hold != nil {
		return wire.Answer{}, fmt.Errorf("%w: %s", ErrHeld, hold.Reason)
	}
	q := &waiter{answers: make(chan wire.Answer, 2), key: wire.KeyText(&o.Key)}
	id := f.inFlight.begin(q)
	defer f.inFlight.end(id)
	env := wire.Envelope{
		Route: []byte(o.Route.WireName()), Digest: o.Digest, Key: o.Key, EventTime: o.Time, Timestamp: time.Now().UnixMilli(), Details: o.Details,
		FromIngress: true, ReplyTo: dedup.Address{Partition: at.partition, Ingress: f.number, Request: id}, IsQuery: true,
	}
	rec := &kgo.Record{Topic: at.rt.Topology.Repartition, Partition: at.rt.Hasher.Partition(&o.Routing), Key: env.Append(make([]byte, 0, env.Size()))}
	if err := fitsTopic(at, rec); err != nil {
		return wire.Answer{}, err
	}
	if err := f.send(ctx, at, path, rec, false); err != nil {
		return wire.Answer{}, err
	}
	answer, arrived := f.await(ctx, q.answers, wire.Answer{})
	if !arrived {
		return wire.Answer{}, ErrNoVerdict
	}
	return answer, nil
}
