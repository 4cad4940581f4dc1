package front

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
	"oncebus/processor/wire"
)

// An Inspector reads the state of an app only from its topics. It works on any machine that reaches the
// brokers, whether or not a process of the app runs. It joins no consumer group, and reads only committed
// records.
type Inspector struct {
	cfg    app.Config
	routes *rules.Routes
	redact *security.Redactor
	log    *slog.Logger
	client *kgo.Client
	rt     *app.App
	// progress counts the offsets of all reads of the Inspector.
	progress readProgress
	// unknown has the names of the routes that the app has never run.
	unknown []string
}

// NewInspector connects to the brokers and reads the app's manifest. It creates and changes nothing. It returns
// an operator error if the app does not exist.
func NewInspector(ctx context.Context, cfg app.Config, routes *rules.Routes, log *slog.Logger, extra ...kgo.Opt) (*Inspector, error) {
	if err := errors.Join(cfg.Validate(), cfg.CheckSecret(routes.NeedsSecret())); err != nil {
		return nil, err
	}
	redact := security.NewRedactor(cfg.Config)
	opts, err := security.ClientOptions(cfg.Config, prometheus.NewRegistry(), slog.New(redact.Handler(log.Handler())), redact)
	if err != nil {
		return nil, err
	}
	i := &Inspector{cfg: cfg, routes: routes, redact: redact, log: slog.New(redact.Handler(log.Handler()))}
	opts = append(append(opts, cfg.FetchOptions()...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	i.client, err = kgo.NewClient(append(opts, extra...)...)
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
		return kafka.OperatorErrorf("there is no topic %s: no app %s has run on this cluster; check ONCEBUS_APP_ID and ONCEBUS_BROKERS", t.Manifest, i.cfg.AppID)
	}
	if app.Manifest == nil {
		return kafka.OperatorErrorf("%s has no manifest: app %s has never started", t.Manifest, i.cfg.AppID)
	}
	i.unknown = app.Unknown()
	if err := app.Check(i.cfg.KeySecret.Bytes()); err != nil {
		return err
	}
	i.rt = app.App()
	return nil
}

// Knows reports whether the app has ever run a route.
func (i *Inspector) Knows(r *rules.Route) bool { return !slices.Contains(i.unknown, r.Name) }

// known returns an operator error if the app has never run one of the routes.
func (i *Inspector) known(routes ...*rules.Route) error {
	var unknown []string
	for _, r := range routes {
		if !i.Knows(r) {
			unknown = append(unknown, r.Name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	return kafka.OperatorErrorf("app %s has never run with these routes: %s; check ONCEBUS_APP_ID and the routes file", i.cfg.AppID, strings.Join(unknown, ", "))
}

// Entry is the stored state of a key.
type Entry struct {
	Row   dedup.Row
	Claim dedup.Claim // empty outside claim mode
	// First is the topic/partition/offset of the first event.
	First string
	// Task is the task that has the row, as topic/partition; Partition is its partition.
	Task      string
	Partition int32
	// StreamTime is the stream time of the key's namespace in the task, in Unix milliseconds; dedup.NoStreamTime
	// if there is none.
	StreamTime int64
	// Window is the window by which the task judges the namespace.
	Window dedup.Window
}

// Held reports whether the row is within retention. A row that is older no longer decides, and will be evicted.
func (e *Entry) Held() bool { return e.Window.Retains(e.Row.First, e.StreamTime) }

// KeyState returns what the stored state of the key means for the next event.
func (e *Entry) KeyState() KeyState {
	switch w := e.Window; {
	case !w.Decides(&e.Row, e.StreamTime):
		return Free
	case w.Over(e.Row.First, e.StreamTime):
		return Expired
	}
	return Active
}

// KeyState says how the next event of a key would be judged.
type KeyState string

// Key states.
const (
	Active  KeyState = "active"  // as a duplicate
	Expired KeyState = "expired" // the window is over: only a late event would be a duplicate
	Free    KeyState = "free"    // as if no row existed
)

// Lookup returns the entry of a derived key; false if the key has no row. For a route that the app has never
// run it returns an operator error. With adjacent buckets the digest of the row may differ from the digest of
// the key. Lookup reads a whole changelog partition. In two cases it reads the changelogs of all tasks of a
// topic: for a prepartitioned topic, because its producers choose the partition, and for a key without Routing
// (rules.Deriver.OfKey).
func (i *Inspector) Lookup(ctx context.Context, d *rules.Derived) (Entry, bool, error) {
	if err := i.known(d.Route); err != nil {
		return Entry{}, false, err
	}
	topic, partitions := i.locate(d)
	for _, partition := range partitions {
		entry := Entry{Task: app.TaskID{Topic: topic, Partition: partition}.String(), Partition: partition}
		rows, digests := map[dedup.Digest]dedup.Row{}, digestsOf(d)
		var last wire.Fold
		err := i.changelog(ctx, topic, partition, func(rec *kgo.Record) error {
			if number, ok := wire.CheckpointNumber(rec.Key); ok {
				return last.Add(number, rec.Value)
			}
			return addRows(rows, digests, rec)
		})
		if err != nil {
			return Entry{}, false, err
		}
		entry.StreamTime, entry.Window = i.timeOf(&last, d.Route)
		row, found := priorOf(d, rows, entry.Window, entry.StreamTime)
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

// timeOf returns the stream time of a route's namespace in a task, and the window by which the task judges it.
// The window comes from the route set that the newest checkpoint of the task names.
func (i *Inspector) timeOf(last *wire.Fold, r *rules.Route) (streamTime int64, window dedup.Window) {
	if !last.IsWhole() {
		return dedup.NoStreamTime, r.Span()
	}
	c, id := last.Newest(), i.rt.ByName[r.Name].NamespaceID
	window, known := i.rt.WindowAt(&c, id)
	if !known { // the checkpoint's set is newer than the manifest that was read
		window = c.Window(id, r.Span())
	}
	return c.StreamTimes.Of(id), window
}

// addRows adds the rows of a changelog record that have one of the digests.
func addRows(rows map[dedup.Digest]dedup.Row, digests []dedup.Digest, rec *kgo.Record) error {
	for row, err := range wire.RowsOf(rec) {
		if err != nil {
			return err
		}
		if slices.Contains(digests, row.Digest) {
			rows[row.Digest] = *row
		}
	}
	return nil
}

// priorOf returns the row against which the event would be judged. If no row would decide, it returns the
// newest row of the same order in an adjacent bucket, even if that row is expired or free.
func priorOf(d *rules.Derived, rows map[dedup.Digest]dedup.Row, w dedup.Window, streamTime int64) (dedup.Row, bool) {
	own, held := rows[d.Digest]
	ev := dedup.Event{Digest: d.Digest, Time: d.Time, Shift: d.Shift, Fingerprint: d.Fingerprint}
	prior, found := priorInBuckets(&ev, d, own, held, rows, w, streamTime)
	if !d.Route.ForwardsCollisions() || d.Fingerprint == 0 {
		return prior, found
	}
	second, hasSecond := rows[dedup.CollisionDigest(d.Digest, d.Fingerprint)]
	collides := held && ev.Collides(&own, w, streamTime)
	if row, ok := ev.PriorOfCollision(prior, found, second, hasSecond, collides, w, streamTime); ok {
		return row, true
	}
	return prior, found // the row of the event that holds the key
}

// digestsOf returns the digests of all keys that an event may have.
func digestsOf(d *rules.Derived) []dedup.Digest {
	digests := []dedup.Digest{d.Digest}
	if d.HasAdjacent {
		digests = append(digests, d.Adjacent[:]...)
	}
	if d.Route.ForwardsCollisions() && d.Fingerprint != 0 {
		for _, digest := range slices.Clone(digests) {
			digests = append(digests, dedup.CollisionDigest(digest, d.Fingerprint))
		}
	}
	return digests
}

// priorInBuckets does the same as priorOf, but it ignores the second key of the event itself. It looks at the
// first keys, and at the second keys of adjacent buckets.
func priorInBuckets(ev *dedup.Event, d *rules.Derived, own dedup.Row, held bool, rows map[dedup.Digest]dedup.Row, w dedup.Window, streamTime int64) (dedup.Row, bool) {
	if !d.HasAdjacent {
		return own, held
	}
	second := dedup.CollisionDigest(d.Digest, d.Fingerprint)
	var adjacent []dedup.Row
	for _, digest := range digestsOf(d) {
		if digest == d.Digest || digest == second {
			continue
		}
		if row, ok := rows[digest]; ok && ev.IsAdjacent(&row, d.Route.AdjacentStep()) {
			adjacent = append(adjacent, row)
		}
	}
	prior, held := ev.Prior(own, held, adjacent, d.Route.AdjacentStep(), w, streamTime)
	if !held && len(adjacent) > 0 {
		return slices.MaxFunc(adjacent, func(a, b dedup.Row) int { return cmp.Compare(a.First, b.First) }), true
	}
	return prior, held
}

// locate returns the topic whose partitions contain the route's keys, and the partitions that may contain this
// key.
func (i *Inspector) locate(d *rules.Derived) (topic string, partitions []int32) {
	topic = i.rt.Topology.Repartition
	switch {
	case d.Route.Prepartitioned:
		topic = d.Route.Topics[0]
	case d.Routing != dedup.Digest{}:
		return topic, []int32{i.rt.Hasher.Partition(&d.Routing)}
	}
	for partition := range i.rt.Topology.Topics[topic].Partitions {
		partitions = append(partitions, partition)
	}
	return topic, partitions
}

// changelog calls each with every committed record of a task's changelog. If the task trims the changelog
// meanwhile, it reads from the new start again.
func (i *Inspector) changelog(ctx context.Context, topic string, partition int32, each func(*kgo.Record) error) error {
	_, err := i.changelogFrom(ctx, app.TaskID{Topic: topic, Partition: partition}, 0, each)
	return err
}

// changelogFrom is like changelog, but begins at an offset. It returns the offset after the last record.
func (i *Inspector) changelogFrom(ctx context.Context, task app.TaskID, from int64, each func(*kgo.Record) error) (end int64, err error) {
	name := app.ChangelogName(i.rt.Topology.App, task.Topic)
	reader := kafka.NewReader(i.client, name, i.rt.Topology.Topics[name].ID, task.Partition)
	for {
		start, end, err := reader.Bounds(ctx)
		if err != nil {
			return from, err
		}
		start = max(start, from)
		err = reader.Read(ctx, start, end, i.progress.tracked(start, end, func(records []*kgo.Record, _ int64) error {
			for _, rec := range records {
				if err := each(rec); err != nil {
					return fmt.Errorf("%s/%d/%d: %w", name, task.Partition, rec.Offset, err)
				}
			}
			return nil
		}))
		if !errors.Is(err, kerr.OffsetOutOfRange) {
			return max(from, end), err
		}
	}
}

// TaskKeys has the key counts of a task, as of its last transaction.
type TaskKeys struct {
	Task string         `json:"task"`
	Keys []app.KeyCount `json:"keys"`
	// Duplicates are the duplicates of each route that has any, as of the same transaction.
	Duplicates []app.RouteDuplicates `json:"-"`
	// Tenants are the accounts of the tenants of each route that has any.
	Tenants []wire.RouteTenants `json:"-"`

	// uncounted reports that the task has not counted its rows yet, because a move has just given it new keys.
	uncounted bool
}

// Stats returns the key counts of all tasks, from their newest checkpoints. It returns an operator error if the
// app has never run one of the routes.
func (i *Inspector) Stats(ctx context.Context) ([]TaskKeys, error) {
	if err := i.known(i.routes.Routes...); err != nil {
		return nil, err
	}
	return i.readStats(ctx)
}

// Shadows returns the states of the shadows in force, as of the tasks' last transactions.
func (i *Inspector) Shadows(ctx context.Context) ([]app.ShadowState, error) {
	if !i.rt.HasShadows() {
		return []app.ShadowState{}, nil
	}
	tasks, err := readCheckpoints(ctx, i.client, i.rt, i.log, nil)
	if err != nil {
		return nil, err
	}
	return i.rt.Shadows(tasks), nil
}

func (i *Inspector) readStats(ctx context.Context) ([]TaskKeys, error) {
	tasks, err := readCheckpoints(ctx, i.client, i.rt, i.log, i.progress.show)
	if err != nil {
		return nil, err
	}
	var all []TaskKeys
	for n := range tasks {
		c, counts := &tasks[n].Checkpoint, app.NewCounts(i.rt)
		if _, err := counts.Decode(c, i.rt.Set); err != nil {
			return nil, fmt.Errorf("task %v: %w", tasks[n].Task, err)
		}
		counts.LoadSenders(i.rt, c.Senders)
		all = append(all, TaskKeys{tasks[n].Task.String(), counts.List(i.rt, c), counts.Duplicates(i.rt), c.Tenants, c.Counted && c.Sequence == 0})
	}
	return all, nil
}
