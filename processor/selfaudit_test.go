package processor_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/selfaudit"
)

// audits audits an app several times, each time from where the last audit ended.
type audits struct {
	b    *bench
	cfg  processor.Config
	last *selfaudit.Position
}

var auditBounds = selfaudit.Options{Keys: 100_000, Open: 100_000}

func (a *audits) next() *selfaudit.Result {
	a.b.t.Helper()
	auditor, err := selfaudit.New(a.b.t.Context(), a.cfg.Config, a.b.routes, slog.New(slog.DiscardHandler))
	must(a.b.t, err)
	defer auditor.Close()
	from := a.last
	if from != nil { // as the next command reads it
		var saved bytes.Buffer
		must(a.b.t, from.Write(&saved))
		from, err = selfaudit.ReadPosition(&saved)
		must(a.b.t, err)
	}
	r, err := auditor.Audit(a.b.t.Context(), from, auditBounds)
	must(a.b.t, err)
	a.last = r.To
	return r
}

// holds fails the test unless the range is clean and complete.
func (a *audits) holds() *selfaudit.Result {
	a.b.t.Helper()
	r := a.next()
	if r.Begins || r.Report.OneIn != 1 {
		a.b.t.Fatalf("audited nothing or a sample only: %+v", r)
	}
	for _, f := range r.Findings {
		a.b.t.Error(f)
	}
	return r
}

// finds fails the test unless the audit has one finding of this invariant at each of these places.
func (a *audits) finds(invariant string, places ...string) {
	a.b.t.Helper()
	var got []string
	r := a.next()
	for _, f := range r.Findings {
		got = append(got, f.At)
		if f.Invariant != invariant {
			a.b.t.Errorf("%v, want %s", f, invariant)
		}
	}
	slices.Sort(got)
	slices.Sort(places)
	if !slices.Equal(got, places) {
		a.b.t.Errorf("findings at %v, want %v: %v", got, places, r.Findings)
	}
}

// promiseHeld audits the app from its start, as 'oncebus self-audit' does.
func (b *bench) promiseHeld(cfg processor.Config) {
	b.t.Helper()
	(&audits{b: b, cfg: cfg}).holds()
}

const strangeRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key:
      - field: id
    window: 1h
    grace: 10m
    output: signals.unique
    duplicates: {to: signals.duplicates}
    dead_letter: dead
  - name: hooks
    topics: [hooks.raw]
    key:
      - field: id
    window: 1m
    grace: 10s
    output: hooks.unique
    duplicates: forward
    on_late: drop
    on_missing_key: drop
    dead_letter: dead
  - name: alerts
    topics: [alerts.raw]
    key:
      - field: id
    window: 1h
    on_missing_key: forward
    headers: [route, key, verdict]
    output: alerts.unique
    dead_letter: dead
  - name: keyed
    topics: [keyed.raw]
    prepartitioned: true
    key:
      - field: id
    window: 1h
    output: keyed.unique
    dead_letter: dead
`

func event(topic, value string, partition int32, at int64) *kgo.Record {
	return &kgo.Record{Topic: topic, Partition: partition, Timestamp: time.UnixMilli(at), Value: []byte(value)}
}

func strangeTraffic(round int) (records []*kgo.Record) {
	at := int64(testTime) + int64(round)*1000
	for n := range 200 {
		id := fmt.Sprintf(`{"id":"e%d-%d"}`, round, n)
		for copies := range 1 + n%3 {
			for _, topic := range []string{"signals.raw", "hooks.raw", "alerts.raw", "keyed.raw"} {
				partition := int32(n+copies) % 4
				if topic == "keyed.raw" {
					partition = int32(n) % 4
				}
				records = append(records, event(topic, id, partition, at+int64(n)))
			}
		}
	}
	for _, topic := range []string{"signals.raw", "hooks.raw", "alerts.raw", "keyed.raw"} {
		records = append(records,
			event(topic, `{"id":"again"}`, 1, at+int64(round)*70_000), // in hooks after its window, each time
			event(topic, `{"other":1}`, 1, at), event(topic, `not JSON`, 1, at),
			event(topic, fmt.Sprintf(`{"id":"late %d"}`, round), 2, at-10*3600_000), // late from round 1 on
			event(topic, `{"id":"ahead"}`, 2, time.Now().UnixMilli()+9*3600_000))
	}
	return records
}

// TestSelfAuditHolds audits unusual and clean histories, range after range, with erasures and restarts between the
// ranges.
func TestSelfAuditHolds(t *testing.T) {
	t.Parallel()
	b := newBench(t, strangeRoutes)
	for _, topic := range []string{"signals.raw", "hooks.raw", "alerts.raw", "keyed.raw"} {
		b.createTopic(topic, 4)
	}
	cfg := b.config("a")
	inputs := []string{"signals.raw", "hooks.raw", "alerts.raw", "keyed.raw"}
	i := b.ready(b.start(cfg))
	a := &audits{b: b, cfg: cfg}
	for round := range 4 {
		b.produce(strangeTraffic(round)...)
		if round > 0 {
			a.holds() // while it runs
		}
		b.drain(i, inputs...)
		if round == 2 {
			b.forget(b.inspector(cfg), b.derive(plainEvent("signals.raw", "e1-5", 0)))
			b.produce(event("signals.raw", `{"id":"e1-5"}`, 0, testTime))
			must(t, i.stop())
			cfg = b.config("b")
			i = b.ready(b.start(cfg))
			b.drain(i, inputs...)
		}
		r := a.holds()
		t.Logf("round %d: %+v", round, r.Report)
	}
	if got := a.holds(); got.Records != 0 {
		t.Errorf("an audit without a new record read %d", got.Records)
	}
}

// TestSelfAuditFindsPlantedViolations plants a copy in the output, a dead letter without a cause, and an event that
// the routing stage skips. The audit must find each.
func TestSelfAuditFindsPlantedViolations(t *testing.T) {
	t.Parallel()
	b := newBench(t, strangeRoutes)
	inputs := []string{"signals.raw", "hooks.raw", "alerts.raw", "keyed.raw"}
	for _, topic := range inputs {
		b.createTopic(topic, 4)
	}
	cfg := b.config("a")
	i := b.ready(b.start(cfg))
	a := &audits{b: b, cfg: cfg}
	b.produce(strangeTraffic(0)...)
	b.drain(i, inputs...)
	a.holds()

	out := b.read("signals.unique")[0]
	again := &kgo.Record{Topic: out.Topic, Partition: out.Partition, Key: out.Key, Value: out.Value, Headers: out.Headers, Timestamp: out.Timestamp}
	b.produce(again)
	a.finds("K1", place(again))
	alien := event("hooks.unique", `{"id":"never sent"}`, 0, testTime)
	b.produce(alien)
	a.finds("K1", place(alien))

	letter := b.read("dead")[0]
	copied := &kgo.Record{Topic: "dead", Partition: letter.Partition, Value: letter.Value, Headers: letter.Headers, Timestamp: letter.Timestamp}
	b.produce(copied)
	a.finds("K1", place(copied))
	a.holds()

	must(t, i.stop())
	b.produce(event("signals.raw", `{"id":"skipped"}`, 3, testTime), event("signals.raw", `{"id":"e0-7"}`, 3, testTime))
	ends, err := b.admin.ListEndOffsets(t.Context(), "signals.raw")
	must(t, err)
	end, _ := ends.Lookup("signals.raw", 3)
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: "signals.raw", Partition: 3, At: end.Offset, LeaderEpoch: -1})
	b.wait("the group to be empty, so that its offset can be moved", func() bool {
		moved, err := b.admin.CommitOffsets(t.Context(), "app-route", offsets)
		return err == nil && moved.Error() == nil
	})
	a.finds("K2", fmt.Sprintf("signals.raw/3/%d", end.Offset-2), fmt.Sprintf("signals.raw/3/%d", end.Offset-1))
}

func place(rec *kgo.Record) string {
	return strings.Join([]string{rec.Topic, fmt.Sprint(rec.Partition), fmt.Sprint(rec.Offset)}, "/")
}

// TestSelfAuditLeavesWhatWaits protects that events which were routed and which no task has judged are no finding,
// however long they wait, and that the audit after their verdicts counts each once.
func TestSelfAuditLeavesWhatWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg, disk, place := b.onDisk(500)
	i := b.ready(b.startWith(cfg, place))
	a := &audits{b: b, cfg: cfg}
	b.produce(signal("a", 0, testTime))
	b.drain(i, "signals.raw")
	a.holds()
	disk.free.Store(80)
	b.wait("the tasks to pause", func() bool { return diskPaused(i) && i.FetchingPaused(processor.StageDedup) })
	records, _ := traffic(100)
	b.produce(records...)
	b.wait("the routing stage, which goes on", b.routed)
	waiting := a.holds()
	if n := waiting.To.Waits(); n == 0 || n+int(waiting.Report.Routes[0].Inputs) != len(records) {
		t.Errorf("%d records wait, %+v, %d were sent", n, waiting.Report.Routes[0], len(records))
	}
	disk.free.Store(500)
	b.drain(i, "signals.raw")
	if r := a.holds(); r.Report.Routes[0].Inputs+waiting.Report.Routes[0].Inputs != int64(len(records)) {
		t.Errorf("%+v after %+v, %d were sent", r.Report.Routes[0], waiting.Report.Routes[0], len(records))
	}
}

// TestSelfAuditBeginsWhereRecordsWereDeleted covers a first audit of an app whose records were deleted: it audits
// nothing before the deletion and everything from there on. Records that are deleted later, before they were audited,
// are an error.
func TestSelfAuditBeginsWhereRecordsWereDeleted(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("a")
	i := b.ready(b.start(cfg))
	records, _ := traffic(100)
	b.produce(records...)
	b.drain(i, "signals.raw")
	b.deleteBelow("signals.raw", 0, 10)
	a := &audits{b: b, cfg: cfg}
	if r := a.next(); !r.Begins || !r.Held() || r.Report.Keys == 0 || len(r.Since) != 1 || !strings.HasPrefix(r.Since[0], "signals.raw/0: offsets 0 to ") {
		t.Fatalf("%+v", r)
	}
	again, _ := traffic(120) // 100 of them are duplicates of events before
	b.produce(again...)
	b.drain(i, "signals.raw")
	if r := a.holds(); r.Report.Routes[0].Unique == 0 || r.Report.Routes[0].Duplicates == 0 {
		t.Errorf("%+v", r.Report.Routes[0])
	}
	out := b.read("signals.unique")[0]
	copied := &kgo.Record{Topic: out.Topic, Partition: out.Partition, Key: out.Key, Value: out.Value, Headers: out.Headers, Timestamp: out.Timestamp}
	b.produce(copied)
	a.finds("K1", place(copied))

	b.produce(signal("z", 0, testTime), signal("y", 0, testTime))
	b.drain(i, "signals.raw")
	b.deleteBelow("signals.raw", 0, -1)
	auditor, err := selfaudit.New(t.Context(), cfg.Config, b.routes, slog.New(slog.DiscardHandler))
	must(t, err)
	defer auditor.Close()
	if _, err := auditor.Audit(t.Context(), a.last, auditBounds); err == nil || !strings.Contains(err.Error(), "records were deleted before they were audited: signals.raw/0: offsets ") {
		t.Errorf("the audit after a deletion: %v", err)
	}
}

// deleteBelow deletes the records of a partition below an offset; -1 means all records.
func (b *bench) deleteBelow(topic string, partition int32, offset int64) {
	b.t.Helper()
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: topic, Partition: partition, At: offset})
	_, err := b.admin.DeleteRecords(b.t.Context(), offsets)
	must(b.t, err)
}

// oneOutputRoutes are two routes with one output whose events have different times, and a third route with the
// namespace of the first and its keys.
const oneOutputRoutes = `routes:
  - name: timed
    namespace: ids
    topics: [timed.raw]
    key: [{field: id}]
    time: {field: ts, format: unix_ms}
    window: 30s
    output: all.unique
    dead_letter: dead
  - name: plain
    topics: [plain.raw]
    key: [{field: id}]
    window: 30s
    output: all.unique
    dead_letter: dead
  - name: other
    namespace: ids
    topics: [other.raw]
    key: [{field: id}]
    window: 30s
    output: all.unique
    dead_letter: dead
`

// TestSelfAuditOfRoutesWithOneOutput protects the audit of an output that several routes share: a record may belong
// to each of them, by the key and the time that the route's rule reads.
func TestSelfAuditOfRoutesWithOneOutput(t *testing.T) {
	t.Parallel()
	b := newBench(t, oneOutputRoutes)
	inputs := []string{"timed.raw", "plain.raw", "other.raw"}
	for _, topic := range inputs {
		b.createTopic(topic, 1)
	}
	cfg := b.config("a")
	i := b.ready(b.start(cfg))
	for n, topic := range inputs {
		for id := range n + 1 {
			b.produce(event(topic, fmt.Sprintf(`{"id":"%s%d","ts":%d}`, topic, id, testTime-5000), 0, testTime))
		}
	}
	b.drain(i, inputs...)
	a := &audits{b: b, cfg: cfg}
	r := a.holds()
	for n, route := range r.Report.Routes {
		if want := (selfaudit.RouteCounts{Inputs: int64(n) + 1, Unique: int64(n) + 1}); route != want {
			t.Errorf("route %d: %+v, want %+v", n, route, want)
		}
	}
	out := b.read("all.unique")[0]
	copied := &kgo.Record{Topic: out.Topic, Partition: out.Partition, Key: out.Key, Value: out.Value, Headers: out.Headers, Timestamp: out.Timestamp}
	b.produce(copied)
	a.finds("K1", place(copied))
}

// TestSelfAuditOfAKeyThatComesLate sends the first event of an order again after a later event of its key, whose row
// has no link to earlier windows.
func TestSelfAuditOfAKeyThatComesLate(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"dead_letter", "forward", "drop"} {
		b := newBench(t, "routes:\n  - {name: signals, topics: [signals.raw], key: [{order: {adjacent_buckets: true}}], window: 1m, on_late: "+policy+", output: signals.unique, dead_letter: dead}\n")
		b.createTopic("signals.raw", 1)
		cfg := b.config("a")
		i := b.ready(b.start(cfg))
		for _, after := range []int64{0, 121_000, 0} {
			b.produce(event("signals.raw", `{"account":"a","symbol":"S","side":"buy","quantity":1,"type":"market","timestamp":1729636859999}`, 0, testTime+after))
		}
		b.drain(i, "signals.raw")
		a := &audits{b: b, cfg: cfg}
		r := a.holds().Report.Routes[0]
		want := selfaudit.RouteCounts{Inputs: 3, Unique: 2, DeadLetters: 1}
		switch policy {
		case "forward":
			want.DeadLetters, want.Forwarded = 0, 1
		case "drop":
			want.DeadLetters, want.Duplicates = 0, 1 // no topic says which route dropped the event
		}
		if r != want {
			t.Errorf("on_late %s: %+v, want %+v", policy, r, want)
		}
	}
}
