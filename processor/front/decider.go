package front

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
	"oncebus/processor/wire"
)

// A Decider lists the refusals (partitions that a worker refuses to process until an operator decides), and
// writes the operator's decisions. It works whether or not a process of the app runs.
type Decider struct {
	cfg      app.Config
	routes   *rules.Routes
	conn     app.Conn
	topology *app.Topology
}

// NewDecider connects to the brokers and finds the app's manifest topic. It returns an operator error if the
// app does not exist.
func NewDecider(ctx context.Context, cfg app.Config, routes *rules.Routes, log *slog.Logger, extra ...kgo.Opt) (*Decider, error) {
	conn, redact, err := connect(cfg, log, extra)
	if err != nil {
		return nil, err
	}
	d := &Decider{cfg: cfg, routes: routes, conn: conn}
	found, err := app.Find(ctx, conn.Client, cfg.AppID, routes)
	if err == nil {
		d.topology = found.Topology
		err = found.Ran()
	}
	if errors.As(err, new(*wire.UnreadableError)) { // RepairRow can replace the row
		d.topology, err = found.Topology, nil
	}
	if err != nil {
		d.Close()
		return nil, redact.Err(security.ExplainCredentials(err, cfg.SASL))
	}
	return d, nil
}

// Close ends the connections.
func (d *Decider) Close() { d.conn.Client.Close() }

// Refusals returns the partitions that wait for a decision.
func (d *Decider) Refusals(ctx context.Context) ([]app.Refusal, error) {
	decisions, err := app.ReadDecisions(ctx, d.conn.Client, d.topology, nil)
	if err != nil {
		return nil, err
	}
	return decisions.Sorted(), nil
}

// BadRows returns the rows of the manifest topic that cannot be read.
func (d *Decider) BadRows(ctx context.Context) ([]app.Refusal, error) {
	return app.BadRows(ctx, d.conn.Client, d.topology)
}

// RepairRow replaces an unreadable row of the manifest topic by the previous row of the same key, see
// app.RepairRow.
func (d *Decider) RepairRow(ctx context.Context, key string) error {
	return app.RepairRow(ctx, d.conn, d.cfg, d.topology, key)
}

// Accept writes a decision on the refusals with these names or, without names, on all refusals. If the decision
// is not possible for one of these refusals, Accept writes nothing. It returns the refusals that it has
// decided.
func (d *Decider) Accept(ctx context.Context, names []string, decision app.Acceptance) ([]app.Refusal, error) {
	refusals, err := d.Refusals(ctx)
	if err != nil {
		return nil, err
	}
	if len(names) > 0 {
		for _, name := range names {
			if !slices.ContainsFunc(refusals, func(r app.Refusal) bool { return r.Name() == name }) {
				return nil, kafka.OperatorErrorf("%s does not wait for a decision; %s", name, waiting(refusals))
			}
		}
		refusals = slices.DeleteFunc(refusals, func(r app.Refusal) bool { return !slices.Contains(names, r.Name()) })
	}
	if len(refusals) == 0 {
		return nil, kafka.OperatorErrorf("no partition waits for a decision")
	}
	var wrong []error
	for _, r := range refusals {
		if !slices.Contains(r.Ways, decision.Way) {
			wrong = append(wrong, kafka.OperatorErrorf("%s waits because of %s: choose one of its ways: %s", r.Name(), r.Problem, r.Command()))
		}
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	for _, r := range refusals {
		if err := app.WriteAcceptance(ctx, d.conn.Client, d.topology, &r, decision); err != nil {
			return nil, err
		}
	}
	return refusals, nil
}

// waiting returns the names of the refusals as the end of an error text.
func waiting(refusals []app.Refusal) string {
	if len(refusals) == 0 {
		return "no partition does"
	}
	var names []string
	for _, r := range refusals {
		names = append(names, r.Name())
	}
	return "these do: " + strings.Join(names, ", ")
}

// AcceptRecreated accepts that a topic was deleted and recreated, see app.AcceptRecreated.
func (d *Decider) AcceptRecreated(ctx context.Context, topic string) error {
	return app.AcceptRecreated(ctx, d.conn, d.cfg, d.routes, topic)
}
