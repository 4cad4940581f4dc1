package front

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
	"oncebus/processor/wire"
)

// An Inspector answers questions about an app from its topics alone, on any
// machine that reaches the brokers, whether a process of the app runs or not.
// It joins no group, and reads only what is committed.
type Inspector struct {
	cfg    app.Config
	routes *rules.Routes
	redact *security.Redactor
	client *kgo.Client
	rt     *app.App
	// unknown are the names of the routes with which the app has never run.
	unknown []string
}

// NewInspector connects to the brokers and reads the app's manifest. It creates
// and changes nothing.
func NewInspector(ctx context.Context, cfg app.Config, routes *rules.Routes, log *slog.Logger, extra ...kgo.Opt) (*Inspector, error) {
	if err := errors.Join(cfg.Validate(), cfg.CheckSecret(routes.NeedsSecret())); err != nil {
		return nil, err
	}
	redact := security.NewRedactor(cfg.Config)
	opts, err := security.ClientOptions(cfg.Config, prometheus.NewRegistry(), slog.New(redact.Handler(log.Handler())), redact)
	if err != nil {
		return nil, err
	}
	i := &Inspector{cfg: cfg, routes: routes, redact: redact}
	i.client, err = kgo.NewClient(append(append([]kgo.Opt{kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil))}, opts...), extra...)...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if err := i.open(ctx); err != nil {
		i.Close()
		return nil, redact.Err(security.ExplainCredentials(err, cfg.SASL))
	}
	return i, nil
}

// Close ends the connections.
func (i *Inspector) Close() { i.client.Close() }

func (i *Inspector) open(ctx context.Context) error {
	app, err := app.Find(ctx, i.client, i.cfg.AppID, i.routes)
	if err != nil {
		return err
	}
	t := app.Topology
	if _, ok := t.Topics[t.Manifest]; !ok {
		return kafka.OperatorErrorf("there is no topic %s: no app %s has run on this cluster; look at ONCEBUS_APP_ID and ONCEBUS_BROKERS", t.Manifest, i.cfg.AppID)
	}
	if app.Manifest == nil {
		return kafka.OperatorErrorf("%s holds no manifest: app %s has never started", t.Manifest, i.cfg.AppID)
	}
	i.unknown = app.Unknown()
	if _, err := app.Check(i.cfg.KeySecret.Bytes()); err != nil {
		return err
	}
	i.rt = app.App()
	return nil
}

// known refuses routes of which the app's topics cannot tell anything.
func (i *Inspector) known(routes ...*rules.Route) error {
	var unknown []string
	for _, r := range routes {
		if slices.Contains(i.unknown, r.Name) {
			unknown = append(unknown, r.Name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	return kafka.OperatorErrorf("app %s has never run with these routes: %s; look at ONCEBUS_APP_ID and at the routes file", i.cfg.AppID, strings.Join(unknown, ", "))
}

// Entry is what an app keeps of a key.
type Entry struct {
	Row   dedup.Row
	Claim dedup.Claim // empty outside claim mode
	// First names the place of the first copy: topic/partition/offset.
	First string
	// Task is the task that holds the row, Partition its number.
	Task      string
	Partition int32
	// StreamTime is that of the key's namespace in the task, in Unix
	// milliseconds; dedup.NoStreamTime for none.
	StreamTime int64
}

// Held tells whether the row is not out of time: older ones wait to be removed.
func (e *Entry) Held(route *rules.Route) bool { return route.Span().Held(e.Row.First, e.StreamTime) }

// KeyState is what the row means for the events to come.
func (e *Entry) KeyState(route *rules.Route) KeyState {
	switch w := route.Span(); {
	case !w.Stands(&e.Row, e.StreamTime):
		return Free
	case w.Over(e.Row.First, e.StreamTime):
		return Expired
	}
	return Active
}

// KeyState is what a row means for the events under its key.
type KeyState string

// Key states.
const (
	Active  KeyState = "active"  // they are copies
	Expired KeyState = "expired" // its window is over: only those that come late are copies
	Free    KeyState = "free"    // they run as if there were no row
)

// Lookup reads what the app keeps of a derived key; false if nothing. A route
// with which the app has never run is refused. An order with neighbours may have
// been judged under the key beside its own: the row's digest says which it is.
// It reads a whole partition of the changelog, and those of all tasks of a
// prepartitioned topic, whose producers chose the partition.
func (i *Inspector) Lookup(ctx context.Context, d *rules.Derived) (Entry, bool, error) {
	if err := i.known(d.Route); err != nil {
		return Entry{}, false, err
	}
	topic, partitions := i.place(d)
	class := i.rt.ByName[d.Route.Name].NamespaceID
	for _, partition := range partitions {
		entry := Entry{Task: app.TaskID{Topic: topic, Partition: partition}.String(), Partition: partition, StreamTime: dedup.NoStreamTime}
		rows := map[dedup.Digest]dedup.Row{}
		err := i.changelog(ctx, topic, partition, func(rec *kgo.Record) error {
			switch {
			case string(rec.Key) == wire.CheckpointKey:
				c, err := wire.DecodeCheckpoint(rec.Value)
				if err == nil && c.StreamTimes.Has[class] {
					entry.StreamTime = c.StreamTimes.At[class]
				}
				return err
			case bytes.Equal(rec.Key, d.Digest[:]), d.HasAdjacent && (bytes.Equal(rec.Key, d.Adjacent[0][:]) || bytes.Equal(rec.Key, d.Adjacent[1][:])):
				digest := dedup.Digest(rec.Key)
				row, err := dedup.DecodeValue(digest, rec.Value)
				rows[digest] = row
				return err
			}
			return nil
		})
		if err != nil {
			return Entry{}, false, err
		}
		row, found := priorOf(d, rows, entry.StreamTime)
		if !found {
			continue
		}
		entry.Row = row
		entry.First = string(i.rt.PositionText(entry.Row.At))
		if entry.Claim, err = dedup.DecodeClaim(entry.Row.Result); err != nil {
			return Entry{}, false, err
		}
		return entry, true, nil
	}
	return Entry{}, false, nil
}

// priorOf returns the row that the event would be judged against. Where its own
// key has none, what is kept of its order beside it counts, though its window is
// over or it was freed.
func priorOf(d *rules.Derived, rows map[dedup.Digest]dedup.Row, streamTime int64) (dedup.Row, bool) {
	own, held := rows[d.Digest]
	if !d.HasAdjacent {
		return own, held
	}
	ev := dedup.Event{Digest: d.Digest, Time: d.Time, Shift: d.Shift, Fingerprint: d.Fingerprint}
	var beside []dedup.Row
	for _, digest := range d.Adjacent {
		if row, ok := rows[digest]; ok && ev.IsAdjacent(&row, d.Route.AdjacentStep()) {
			beside = append(beside, row)
		}
	}
	prior, held := ev.Prior(own, held, beside, d.Route.AdjacentStep(), d.Route.Span(), streamTime)
	if !held && len(beside) > 0 {
		return slices.MaxFunc(beside, func(a, b dedup.Row) int { return cmp.Compare(a.First, b.First) }), true
	}
	return prior, held
}

// place returns the topic whose partitions hold the route's keys, and those
// that may hold this one.
func (i *Inspector) place(d *rules.Derived) (topic string, partitions []int32) {
	if !d.Route.Prepartitioned {
		return i.rt.Topology.Repartition, []int32{i.rt.Hasher.Partition(&d.Routing)}
	}
	topic = d.Route.Topics[0]
	for partition := range i.rt.Topology.Topics[topic].Partitions {
		partitions = append(partitions, partition)
	}
	return topic, partitions
}

// changelog calls each with every committed record of a task's changelog.
func (i *Inspector) changelog(ctx context.Context, topic string, partition int32, each func(*kgo.Record) error) error {
	name := app.ChangelogName(i.rt.Topology.App, topic)
	reader := kafka.NewReader(i.client, name, i.rt.Topology.Topics[name].ID, partition)
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return err
	}
	return reader.Read(ctx, start, end, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			if err := each(rec); err != nil {
				return fmt.Errorf("%s/%d/%d: %w", name, partition, rec.Offset, err)
			}
		}
		return nil
	})
}

// Forget asks the task that holds a claim to erase it, by way of the route's
// outcomes topic: it is done when the task has worked its way there. The claim
// is the one that Lookup finds; Forget returns its digest.
func (i *Inspector) Forget(ctx context.Context, d *rules.Derived) (dedup.Digest, error) {
	if d.Route.Mode != rules.ClaimMode {
		return d.Digest, kafka.OperatorErrorf("route %s is not in claim mode: its keys are not forgotten before their window is over", d.Route.Name)
	}
	if err := i.known(d.Route); err != nil {
		return d.Digest, err
	}
	token := dedup.Token{NamespaceID: i.rt.ByName[d.Route.Name].NamespaceID, Partition: i.rt.Hasher.Partition(&d.Routing), Digest: d.Digest}
	if d.HasAdjacent {
		entry, found, err := i.Lookup(ctx, d)
		switch {
		case err != nil:
			return d.Digest, err
		case found:
			token.Digest = entry.Row.Digest
		}
	}
	rec := &kgo.Record{Topic: d.Route.Claim.Outcomes, Timestamp: time.Now(), Headers: []kgo.RecordHeader{
		{Key: wire.HeaderClaimToken, Value: token.Append(nil)}, {Key: wire.HeaderOutcome, Value: []byte(dedup.OutcomeForget.String())},
	}}
	if err := i.client.ProduceSync(ctx, rec).FirstErr(); err != nil {
		return token.Digest, fmt.Errorf("produce to %s: %w", rec.Topic, kafka.Denied(err, "Write", kafka.ResourceTopic, rec.Topic))
	}
	return token.Digest, nil
}

// TaskKeys is what one task remembers, as of its last transaction.
type TaskKeys struct {
	Task string         `json:"task"`
	Keys []app.KeyCount `json:"keys"`
}

// Stats reads what the app's tasks remember, from their last checkpoints. Routes
// with which the app has never run are refused.
func (i *Inspector) Stats(ctx context.Context) ([]TaskKeys, error) {
	if err := i.known(i.routes.Routes...); err != nil {
		return nil, err
	}
	var all []TaskKeys
	for _, topic := range i.rt.Topology.TaskTopics() {
		for partition := range i.rt.Topology.Topics[topic].Partitions {
			name := app.ChangelogName(i.rt.Topology.App, topic)
			c, _, _, err := app.LastCheckpoint(ctx, kafka.NewReader(i.client, name, i.rt.Topology.Topics[name].ID, partition))
			if err != nil {
				return nil, err
			}
			counts := app.NewCounts(i.rt)
			if _, err := counts.Decode(c.Counts); err != nil {
				return nil, fmt.Errorf("task %v: %w", app.TaskID{Topic: topic, Partition: partition}, err)
			}
			all = append(all, TaskKeys{app.TaskID{Topic: topic, Partition: partition}.String(), counts.List(i.rt, &c)})
		}
	}
	return all, nil
}
