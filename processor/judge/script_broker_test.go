package judge_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/restore"
	"oncebus/processor/wire"
	"oncebus/state"
)

// world is a process without a broker: its router, its tasks, and the logs of topics.
type world struct {
	t          testing.TB
	partitions int32
	limits     map[string]app.TopicLimits // that a script sets
	now        int64                      // the broker's clock, ms
	progressAt int64                      // when the last progress record was written, ms
	nextRoutes *rules.Routes              // from the next start on
	announced  int64                      // when it last was, in this life; 0 for never
	hasSets    bool                       // the app is at level 2: sets are those that it had
	sets       []*rules.Routes

	app      *app.App
	routes   *rules.Routes
	registry *prometheus.Registry
	metrics  *judge.Metrics
	logs     bytes.Buffer
	host     *state.Host
	dir      string
	lives    int

	logOf    map[string][]*kgo.Record // by topic/partition, committed
	sent     []*kgo.Record            // of the open transaction
	emitter  *judge.Emitter
	router   *judge.Router
	judging  *judge.Judging
	tasks    map[app.TaskID]*scriptTask
	held     bool
	lost     bool          // the store cannot be used
	emitted  []*kgo.Record // committed since the last step, without internal topics
	produced *kgo.Record   // by the last event
	refuse   refusing
	refused  bool // the open transaction has a refused record
}

// refusing says what a topic refuses: records with this text in their value, or all records if there is no text.
type refusing struct{ topic, text string }

// send adds a record to the open transaction, as a client does that produces the records of a refusing topic one at a
// time.
func (w *world) send(r *kgo.Record) error {
	w.sent = append(w.sent, r)
	if r.Topic != w.refuse.topic || !bytes.Contains(r.Value, []byte(w.refuse.text)) {
		return nil
	}
	w.refused = true
	return kerr.InvalidRecord
}

// scriptTask is a judge with the state that its worker would keep.
type scriptTask struct {
	*judge.Judge
	store   *state.Store // also while it cannot be used
	fetched int64        // input offset to judge next
}

// frozen returns a broker clock that stands still at an instant.
func frozen(now int64) *app.BrokerClock {
	c := &app.BrokerClock{Machine: func() app.Instant { return app.Instant{} }}
	c.Set(now)
	return c
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	w := &world{t: tb, partitions: 1, limits: map[string]app.TopicLimits{}, dir: tb.TempDir(), logOf: map[string][]*kgo.Record{}}
	var err error
	w.host, err = state.NewHost(state.DefaultConfig(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	must(tb, err)
	tb.Cleanup(func() {
		w.closeTasks()
		must(tb, w.host.Close())
	})
	return w
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func place(topic string, partition int32) string { return fmt.Sprint(topic, "/", partition) }

// start begins a life of the process, with the newest routes.
func (w *world) start() {
	w.routes = w.nextRoutes
	var manifest *app.Manifest
	if w.app != nil {
		manifest = w.app.Manifest
	}
	var err error
	if w.hasSets {
		if n := len(w.sets); n == 0 || w.sets[n-1] != w.routes {
			w.sets = append(w.sets, w.routes)
		}
		w.app, err = app.OfflineSets("app", w.partitions, w.sets...)
	} else {
		w.app, err = app.Offline("app", w.partitions, manifest, w.routes)
	}
	must(w.t, err)
	limits := *w.app.Limits.Load()
	for topic, l := range w.limits {
		if _, ok := limits[topic]; !ok {
			w.t.Fatalf("the app produces nothing to topic %s", topic)
		}
		l.AppendTime = limits[topic].AppendTime
		limits[topic] = l
	}
	w.app.Clock = frozen(w.now)
	w.registry = prometheus.NewRegistry()
	w.metrics = judge.NewMetrics(w.registry, w.routes)
	w.emitter = judge.NewEmitter(w.app, w.send)
	w.router = &judge.Router{App: w.app, Keys: judge.NewKeys(w.routes.NewDeriver(nil), w.metrics)}
	w.judging = &judge.Judging{Emitter: w.emitter, Keys: judge.NewKeys(w.routes.NewDeriver(nil), w.metrics), Shadows: judge.NewShadows(w.app, nil)}
	w.tasks = map[app.TaskID]*scriptTask{}
	w.lives++
	w.announced = 0
}

// restart ends the life of the process and begins another. With rebuild, it deletes the local state in between.
func (w *world) restart(rebuild bool) {
	var ids []app.TaskID
	for id := range w.tasks {
		ids = append(ids, id)
	}
	w.closeTasks()
	if rebuild {
		must(w.t, os.RemoveAll(w.dir))
		must(w.t, os.Mkdir(w.dir, 0o700))
	}
	w.start()
	for _, id := range ids {
		if slices.Contains(w.app.Topology.TaskTopics(), id.Topic) {
			w.task(id)
		}
	}
	w.run()
}

func (w *world) closeTasks() {
	for id, t := range w.tasks {
		must(w.t, t.store.Close())
		delete(w.tasks, id)
	}
}

// task returns the task of a partition, and opens the task if needed.
func (w *world) task(id app.TaskID) *scriptTask {
	if t := w.tasks[id]; t != nil {
		return t
	}
	t := &scriptTask{Judge: &judge.Judge{}}
	t.ID, t.App, t.Metrics, t.Changelog = id, w.app, w.metrics, w.app.ChangelogOf(id.Topic)
	t.Repartitioned = id.Topic == w.app.Topology.Repartition
	t.Log = slog.New(slog.NewTextHandler(&w.logs, nil))
	t.StartedAt = w.now
	var err error
	t.store, err = w.host.Open(filepath.Join(w.dir, strings.ReplaceAll(id.String(), "/", "-")), []byte(id.String()))
	must(w.t, err)
	w.tasks[id] = t
	if w.lost {
		w.lose(t)
	} else {
		w.restore(t)
	}
	return t
}

// commitMarker is the key of a control record, which readers do not see.
const commitMarker = "commit marker"

// restore reads the changelog from the store's position to its end, as package restore does.
func (w *world) restore(t *scriptTask) {
	changelog := w.logOf[place(t.Changelog, t.ID.Partition)]
	newest, err := wire.ReadStored(t.store.Checkpoint())
	must(w.t, err)
	from := t.store.Position()
	for _, rec := range changelog[from:] {
		if w.fold(&newest, rec) || string(rec.Key) == commitMarker {
			continue
		}
		for row, err := range wire.RowsOf(rec) {
			must(w.t, err)
			t.store.Put(*row)
		}
	}
	t.Store, t.Blind = t.store, false
	w.goOn(t, &newest)
	w.putExpired(t, changelog)
	if len(changelog) > 0 {
		must(w.t, t.store.Apply(int64(len(changelog)), t.Committed.Stored()))
	}
	t.Counts, err = restore.CountKeys(context.Background(), w.app, &t.Committed, t.Store)
	must(w.t, err)
	t.OpenCounts = t.Counts.Open(w.app)
	t.Waiting, err = restore.FindWaiting(context.Background(), w.app, &t.Committed, &t.Counts, t.Store, nil)
	must(w.t, err)
	w.rewind(t)
}

// putExpired puts back the first row of each digest whose newest row has expired. A store may return such a row:
// eviction removes runs, and an older run may still have the row.
func (w *world) putExpired(t *scriptTask, changelog []*kgo.Record) {
	first, newest := map[dedup.Digest]dedup.Row{}, map[dedup.Digest]dedup.Row{}
	for _, rec := range changelog {
		if wire.IsCheckpoint(rec.Key) || string(rec.Key) == commitMarker {
			continue
		}
		for row, err := range wire.RowsOf(rec) {
			must(w.t, err)
			if _, found := first[row.Digest]; !found {
				first[row.Digest] = *row
			}
			newest[row.Digest] = *row
		}
	}
	before := w.app.Horizons(&t.Committed)
	for digest, row := range newest {
		if old := first[digest]; row.First < before[row.NamespaceID] && old.First < before[old.NamespaceID] {
			t.store.Put(old)
		}
	}
}

// rewind moves a task's position in its input back to the last commit.
func (w *world) rewind(t *scriptTask) {
	t.fetched = t.Committed.Next
	if !t.Blind {
		return
	}
	t.fetched = math.MaxInt64
	for _, class := range w.app.FailOpen[t.ID.Topic] {
		t.fetched = min(t.fetched, t.Committed.BypassedTo(class))
	}
}

// lose takes the store away from a task, which then goes on from the newest checkpoint of its changelog.
func (w *world) lose(t *scriptTask) {
	var newest wire.Fold
	for _, rec := range w.logOf[place(t.Changelog, t.ID.Partition)] {
		w.fold(&newest, rec)
	}
	t.store.Discard()
	t.Store, t.Blind = nil, true
	w.goOn(t, &newest)
	w.rewind(t)
}

// goOn lets a task go on from a checkpoint.
func (w *world) goOn(t *scriptTask, newest *wire.Fold) {
	c := wire.Checkpoint{Epoch: -1}
	if newest.Has() {
		c = newest.Newest()
	}
	t.GoOn(&c)
}

// fold adds a changelog record to the fold of its checkpoints. It returns false if the record is no checkpoint.
func (w *world) fold(newest *wire.Fold, rec *kgo.Record) bool {
	number, ok := wire.CheckpointNumber(rec.Key)
	if ok {
		must(w.t, newest.Add(number, rec.Value))
		if !newest.IsWhole() {
			w.t.Fatalf("changelog record %d: a partial checkpoint is relative to a missing one", rec.Offset)
		}
	}
	return ok
}

// route processes raw records. Only records of an earlier generation can fail.
func route(r *judge.Router, e *judge.Emitter, records []*kgo.Record) {
	if err := r.Process(e, records); err != nil {
		panic(err)
	}
}

// produce appends a record to a raw topic and processes it.
func (w *world) produce(r *kgo.Record) {
	w.append(r)
	w.produced = r
	if slices.Contains(w.app.Topology.Prepartitioned, r.Topic) {
		w.task(app.TaskID{Topic: r.Topic, Partition: r.Partition})
	} else {
		route(w.router, w.emitter, []*kgo.Record{r})
		for w.refused {
			w.abort()
			route(w.router, w.emitter, []*kgo.Record{r})
		}
		w.commit()
		w.announce()
	}
	if !w.held {
		w.run()
	}
}

// announce writes that all inputs are read to their ends, as a router without a backlog does. A namespace with one
// source follows that source alone, so a minute after the last time its sources are counted again.
func (w *world) announce() {
	var p wire.Progress
	sources := 0
	for _, topic := range w.app.Topology.Routed {
		if w.app.Outcomes[topic] != nil {
			continue
		}
		in := wire.InputProgress{Topic: w.app.TopicNumbers[topic], Partitions: 1, CountedAt: w.now}
		for at := range w.logOf {
			var partition int
			if name, number, _ := strings.Cut(at, "/"); name == topic {
				partition, _ = strconv.Atoi(number)
				in.Partitions = max(in.Partitions, partition+1)
			}
		}
		for partition := range in.Partitions {
			in.Read = append(in.Read, wire.ReadProgress{Partition: int32(partition), To: w.now})
		}
		sources += in.Partitions
		p.Inputs = append(p.Inputs, in)
	}
	once := w.announced != 0 && sources == 1
	if once && w.now-w.announced < 60_000 && w.now >= w.announced {
		return
	}
	slices.SortFunc(p.Inputs, func(a, b wire.InputProgress) int { return int(a.Topic) - int(b.Topic) })
	w.announced = w.now
	if once {
		for i := range p.Inputs {
			p.Inputs[i].Read = nil
		}
		w.router.WriteProgress(w.emitter, &p, everyPartition)
		w.commit()
		return
	}
	for range 2 { // the second one says it of what the first one found
		w.router.WriteProgress(w.emitter, &p, everyPartition)
		w.commit()
	}
}

// writeHeartbeats writes the progress records since the last one that say nothing new. Without them, broker time
// might have changed by a step.
func (w *world) writeHeartbeats() {
	now := w.now
	for at := w.progressAt + 30_000; w.progressAt != 0 && at < now; at += 30_000 {
		w.now = at
		w.router.WriteProgress(w.emitter, &wire.Progress{}, everyPartition)
		w.commit()
	}
	w.now = now
	if !w.held {
		w.run()
	}
}

// writeProgress writes a progress record that says two things: every outcome stored before readTo is read, except
// those of the partition unread, and the executors have committed what was dispatched before executor (0 says nothing
// of executors).
func (w *world) writeProgress(readTo, executor int64, partitions, unread int) {
	var p wire.Progress
	w.progressAt = w.now
	for _, topic := range slices.SortedFunc(maps.Keys(w.app.Outcomes), func(a, b string) int {
		return int(w.app.TopicNumbers[a]) - int(w.app.TopicNumbers[b])
	}) {
		o := wire.NewOutcomesProgress(w.app.TopicNumbers[topic], readTo, partitions)
		for partition := range o.ReadTo {
			if partition != unread {
				o.ReadTo[partition] = readTo
			}
		}
		p.Outcomes = append(p.Outcomes, o)
	}
	for _, route := range w.app.Routes {
		if executor != 0 && route.Rule.HasGroup {
			p.Executors = append(p.Executors, wire.ExecutorProgress{Route: route.Name, Passed: []wire.Passed{{To: executor}}})
		}
	}
	w.router.WriteProgress(w.emitter, &p, everyPartition)
	w.commit()
	if !w.held {
		w.run()
	}
}

func (w *world) append(r *kgo.Record) {
	at := place(r.Topic, r.Partition)
	r.Offset = int64(len(w.logOf[at]))
	w.logOf[at] = append(w.logOf[at], r)
}

// run judges, in one transaction, what the tasks have not judged yet. After a refusal it aborts the transaction and
// repeats it.
func (w *world) run() {
	began := w.judge()
	for w.refused {
		w.abort()
		began = w.judge()
	}
	if began {
		w.end()
	}
}

// judge judges into the open transaction.
func (w *world) judge() (began bool) {
	for _, t := range w.sorted() {
		log := w.logOf[place(t.ID.Topic, t.ID.Partition)]
		if t.fetched >= int64(len(log)) || t.Blind && len(w.app.FailOpen[t.ID.Topic]) == 0 {
			continue
		}
		if err := t.Process(w.judging, log[t.fetched:]); err != nil {
			w.t.Fatalf("judge: %v", err)
		}
		t.fetched = int64(len(log))
		began = began || t.InTransaction
	}
	return began
}

func (w *world) sorted() []*scriptTask {
	var all []*scriptTask
	for _, t := range w.tasks {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *scriptTask) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	return all
}

// end commits the transaction of the tasks.
func (w *world) end() {
	for _, t := range w.sorted() {
		if t.InTransaction {
			must(w.t, t.AnswerShortened(w.emitter))
			t.WriteCheckpoint(w.emitter)
		}
	}
	w.commit()
}

// abort discards the transaction of the tasks.
func (w *world) abort() {
	w.sent, w.refused = nil, false
	w.emitter.Reset()
	for _, t := range w.sorted() {
		t.Discard()
		w.rewind(t)
	}
}

// commit writes the records of the open transaction to their logs and commits the tasks. The emitter uses the
// records' memory again, so the logs have copies.
func (w *world) commit() {
	for _, r := range w.sent {
		c := &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: slices.Clone(r.Key), Value: slices.Clone(r.Value), Timestamp: r.Timestamp}
		for _, h := range r.Headers {
			c.Headers = append(c.Headers, kgo.RecordHeader{Key: h.Key, Value: slices.Clone(h.Value)})
		}
		limits := w.app.Limit(c.Topic)
		if limits.AppendTime {
			c.Timestamp = time.UnixMilli(w.now)
		}
		if n := wire.RecordBytes(c); n > int(limits.MaxBytes) {
			w.t.Errorf("a record of %d bytes goes to topic %s, which takes %d", n, c.Topic, limits.MaxBytes)
		}
		internal := c.Topic == w.app.Topology.Repartition || strings.HasSuffix(c.Topic, "-changelog")
		if !internal {
			w.emitted = append(w.emitted, c)
			continue
		}
		w.append(c)
		r.Offset = c.Offset
		if c.Topic == w.app.Topology.Repartition {
			w.task(app.TaskID{Topic: c.Topic, Partition: c.Partition})
		}
	}
	for _, t := range w.sorted() {
		if t.InTransaction {
			w.append(&kgo.Record{Topic: t.Changelog, Partition: t.ID.Partition, Key: []byte(commitMarker)})
			must(w.t, t.Commit())
		}
	}
	w.sent = nil
	w.metrics.Publish(w.app, w.emitter.Counts)
	w.metrics.PublishDelays(w.app, &w.emitter.Delays)
	w.emitter.TakeRefusals()
	if n := w.emitter.Refusals(); n > 0 {
		w.t.Errorf("after the commit there are %d refusals", n)
	}
	w.emitter.Reset()
}

// everyPartition selects every partition for a progress record.
func everyPartition(int32) bool { return true }
