package processor_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/move"
	"oncebus/processor/wire"
)

// poison is a record of an internal topic that oncebus did not write, and what oncebus says of it.
type poison struct {
	what       string
	key, value []byte
	says       string
}

// routedPoison are the kinds of foreign records that a client with the right to write there can put into the
// repartition topic. The route is a route of the app.
func routedPoison(route string) []poison {
	event := wire.Envelope{Route: []byte(route), Timestamp: testTime, EventTime: testTime}
	encoded := event.Append(nil)
	hashed := event
	hashed.Hashed.Length = 5
	progress := wire.Envelope{IsProgress: true}
	streamTime := wire.Envelope{Route: []byte(route), IsSeed: true, IsTime: true}
	return []poison{
		{"no key", nil, []byte("x"), `key null, value "x", 0 headers`},
		{"one byte", []byte{0}, nil, `key "\x00", value null`},
		{"foreign key", []byte("customer-17"), []byte(strings.Repeat("é", 99)), `"customer-17", value "` + strings.Repeat(`\u00e9`, 24) + `"... (198 bytes)`},
		{"unknown version", append([]byte{9}, encoded[1:]...), nil, "version 9, this build reads 2"},
		{"unknown flags", []byte{wire.EnvelopeVersion, 0x80, 0x80, 0x80, 0x80, 1}, nil, "unknown flags"},
		{"cut short", encoded[:len(encoded)-40], nil, "cut short"},
		{"bytes that the value lacks", hashed.Append(nil), []byte("1234"), "bytes 0 to 5 of the value are hashed, it has 4"},
		{"progress", progress.Append(nil), []byte("garbage"), `value "garbage"`},
		{"stream time", streamTime.Append(nil), []byte("garbage"), `value "garbage"`},
	}
}

// put writes a record to a partition of an internal topic, as a foreign producer.
func (b *bench) put(topic string, partition int32, p *poison) *kgo.Record {
	b.t.Helper()
	r := &kgo.Record{Topic: topic, Partition: partition, Key: p.key, Value: p.value}
	b.produce(r)
	return r
}

// awaitRefused waits until exactly this task waits for a decision, on this record.
func (b *bench) awaitRefused(i *instance, task app.TaskID, r *kgo.Record) app.Refusal {
	b.t.Helper()
	record := fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset)
	var found app.Refusal
	b.wait("the refusal of "+record, func() bool {
		select {
		case <-i.done:
			b.t.Fatalf("the process ended: %v", i.err)
		default:
		}
		all := b.refusals()
		if len(all) != 1 || all[0].Record != record {
			return false
		}
		found = all[0]
		return true
	})
	if found.Name() != task.String() || found.Problem != app.RecordUnreadable {
		b.t.Errorf("refused is %s because of %s, want %v", found.Name(), found.Problem, task)
	}
	return found
}

// TestUnreadableRoutedRecordWaits protects that each kind of foreign record in the repartition topic makes only its
// task wait. The other tasks, also those of the same process, judge meanwhile. An operator skips the record, and
// nothing else is skipped.
func TestUnreadableRoutedRecordWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	one, two := b.ready(b.start(b.config("one"))), b.start(b.config("two"))
	b.wait("both processes to own tasks", func() bool {
		return len(one.Assigned(processor.StageDedup)) == 2 && len(two.Assigned(processor.StageDedup)) == 2 && one.Ready() == nil && two.Ready() == nil
	})
	var at int32
	for id := range one.Assigned(processor.StageDedup) {
		at = id.Partition
	}
	task, sent := app.TaskID{Topic: "app-repartition", Partition: at}, 0
	everywhere := func(number int) {
		for p := range int32(4) {
			b.produce(signal(b.idIn(one, "signals.raw", p, number), 0, testTime))
			sent++
		}
	}
	for n, p := range routedPoison("signals") {
		everywhere(2 * n)
		b.drain(one, "signals.raw")
		bad := b.put("app-repartition", at, &p)
		refusal := b.awaitRefused(one, task, bad)
		everywhere(2*n + 1)
		b.wait(p.what+": the events of the other partitions", func() bool { return len(b.read("signals.unique")) == sent-1 })
		state := one.taskOf(at)
		for _, part := range []string{p.says, "oncebus accept --task " + task.String() + " --skip", "only oncebus may write this topic"} {
			if !strings.Contains(refusal.Text(), part) {
				t.Errorf("%s: the refusal says %q, want %q in it", p.what, refusal.Text(), part)
			}
			b.wait(p.what+": what /readyz and /state say", func() bool {
				ready := one.Ready()
				state = one.taskOf(at)
				return ready != nil && strings.Contains(ready.Error(), part) && strings.Contains(state.Reason, part)
			})
		}
		if state.State != processor.TaskWaiting.String() || state.Lag < 1 {
			t.Errorf("%s: task is %s with lag %d", p.what, state.State, state.Lag)
		}
		if n := gather(t, one)[`oncebus_refused_partitions{problem="record-unreadable"}`]; n != 1 {
			t.Errorf("%s: %v refused partitions", p.what, n)
		}
		b.accept([]app.Refusal{refusal}, app.SkipRecord, false)
		b.wait(p.what+": the event behind the record", func() bool { return len(b.read("signals.unique")) == sent })
		b.wait(p.what+": the end of the refusal", func() bool { return len(b.refusals()) == 0 && one.Ready() == nil })
	}
	if n := len(b.read("dead")); n != 0 {
		t.Errorf("%d dead letters: a record that is not ours is no event", n)
	}
	if n := gather(t, one)["oncebus_skipped_records_total"]; n != float64(len(routedPoison("signals"))) {
		t.Errorf("%v records skipped", n)
	}
}

// TestUnreadableRoutedRecordOutlivesRestarts protects that the record stops no process. Each process that gets the
// task asks for a decision again, and follows a decision that was made meanwhile.
func TestUnreadableRoutedRecordOutlivesRestarts(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one")))
	first := signal(b.idIn(i, "signals.raw", 0, 1), 0, testTime)
	b.produce(first)
	b.drain(i, "signals.raw")
	task := app.TaskID{Topic: "app-repartition", Partition: 0}
	kinds := routedPoison("signals")
	bad := b.put("app-repartition", 0, &kinds[0])
	b.awaitRefused(i, task, bad)
	must(t, i.stop())

	i = b.start(b.config("two"))
	refusal := b.awaitRefused(i, task, bad)
	assertFinding(t, b.diagnose(b.config("doctor"), 0), app.Fails, "decisions", `it has key null, value "x"`)
	assertFinding(t, b.diagnose(b.config("doctor"), 0), app.Fails, "decisions", " -> oncebus accept --task app-repartition/0 --skip")
	must(t, i.stop())

	b.accept([]app.Refusal{refusal}, app.SkipRecord, false)
	again := b.put("app-repartition", 0, &kinds[0]) // the decision is on one record, not on its bytes
	i = b.start(b.config("three"))
	refusal = b.awaitRefused(i, task, again)
	b.accept([]app.Refusal{refusal}, app.SkipRecord, false)
	b.ready(i)
	b.produce(first, signal(b.idIn(i, "signals.raw", 0, 2), 0, testTime))
	b.drain(i, "signals.raw")
	if out := b.read("signals.unique"); len(out) != 2 {
		t.Errorf("%d records came out, want 2", len(out))
	}
}

// loggedPoison are the kinds of foreign records that may be in a changelog.
func loggedPoison(whole wire.Checkpoint) []poison {
	checkpoint := whole.Append(nil)
	counts := whole
	counts.Counts, counts.Counted = "garbage", true
	digest := []byte("0123456789abcdef")
	row := dedup.Row{Digest: dedup.Digest(digest), First: testTime}
	encoded := row.AppendValue(nil)
	claim := row
	claim.Status, claim.HasResult, claim.Result = dedup.Completed, true, []byte("garbage")
	return []poison{
		{"no key", nil, []byte("x"), "a key of 0 bytes"},
		{"one byte", []byte{0}, nil, `key "\x00", value null`},
		{"foreign key", []byte("customer-17"), []byte("x"), "a key of 11 bytes"},
		{"row without a value", digest, nil, "corrupt row: empty"},
		{"row of an unknown version", digest, append([]byte{9}, encoded[1:]...), "version 9"},
		{"row that is cut short", digest, encoded[:len(encoded)-3], "corrupt row"},
		{"claim", digest, claim.AppendValue(nil), "claim version 103"},
		{"pack", wire.AppendPackKey(nil, 7, 1), []byte("garbage"), "no pack of version"},
		{"checkpoint that is cut short", []byte(wire.CheckpointKey), checkpoint[:len(checkpoint)-2], "corrupt checkpoint"},
		{"checkpoint of an unknown version", []byte(wire.CheckpointKey), append([]byte{99}, checkpoint[1:]...), "version 99"},
		{"checkpoint without a value", []byte(wire.CheckpointKey), nil, "corrupt checkpoint"},
		{"counts of a checkpoint", []byte(wire.CheckpointKey), counts.Append(nil), "corrupt checkpoint"},
		{"partial checkpoint", wire.AppendCheckpointKey(nil, 3), []byte("garbage"), "partial checkpoint"},
	}
}

// TestUnreadableChangelogRecordWaits protects that each kind of foreign record in a changelog makes its task wait at
// the restore. The other tasks judge meanwhile. An operator skips the record, for this restore and all later ones,
// and no row is lost.
func TestUnreadableChangelogRecordWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	records, all := traffic(50)
	sent := len(all)
	b.lived(cfg, records...)
	whole := b.newestCheckpoint("app-repartition-changelog")
	kinds := loggedPoison(whole)
	var bad []*kgo.Record
	for i := range kinds {
		bad = append(bad, b.put("app-repartition-changelog", 0, &kinds[i]))
	}
	must(t, os.RemoveAll(cfg.StateDir))
	task := app.TaskID{Topic: "app-repartition", Partition: 0}
	i := b.start(cfg)
	// A restore first looks for the newest checkpoint, so it meets foreign checkpoint records first.
	for k := range kinds {
		var refusal app.Refusal
		n := 0
		b.wait("the next refusal", func() bool {
			all := b.refusals()
			n = slices.IndexFunc(bad, func(r *kgo.Record) bool {
				return r != nil && len(all) == 1 && fmt.Sprintf("%s/0/%d", r.Topic, r.Offset) == all[0].Record
			})
			if n < 0 {
				return false
			}
			refusal = all[0]
			return true
		})
		if refusal.Name() != task.String() || !strings.Contains(refusal.Detail, kinds[n].says) || !strings.Contains(refusal.Detail, "duplicates of their keys would be emitted") {
			t.Errorf("%s: refused is %s: %s, want %q", kinds[n].what, refusal.Name(), refusal.Detail, kinds[n].says)
		}
		if k == 0 {
			b.wait("the other tasks", func() bool {
				return i.taskOf(1).State == "running" && i.taskOf(2).State == "running" && i.taskOf(3).State == "running"
			})
			b.produce(signal(b.idIn(i, "signals.raw", 1, 1), 0, testTime))
			b.wait("an event of another task", func() bool { return len(b.read("signals.unique")) == sent+1 })
		}
		b.accept([]app.Refusal{refusal}, app.SkipRecord, false)
		bad[n] = nil
	}
	b.ready(i)
	again, _ := traffic(50)
	b.produce(again...)
	b.drain(i, "signals.raw")
	if out := b.read("signals.unique"); len(out) != sent+1 {
		t.Errorf("%d records came out, want %d: rows were lost", len(out), sent+1)
	}
	must(t, i.stop())
	must(t, os.RemoveAll(cfg.StateDir))
	b.ready(b.start(cfg)) // the decisions hold
	if n := len(b.read("dead")); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// TestStandbyAtAnUnreadableRecord protects that a standby does not read on behind a foreign record, while the task
// that it follows goes on judging. The takeover waits for a decision, and later standbys follow the decision.
func TestStandbyAtAnUnreadableRecord(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg, prepare := b.standby("one")
	one := b.startWith(cfg, prepare)
	otherCfg, prepareOther := b.standby("other")
	other := b.startWith(otherCfg, prepareOther)
	b.share(one, other)
	records, all := traffic(100)
	b.produce(records...)
	b.drain(one, "signals.raw")
	b.follows(other, b.tasksOf(one))
	var task app.TaskID
	for task = range b.tasksOf(one) {
		break
	}
	foreign := poison{key: []byte("customer-17"), value: []byte("x")}
	bad := b.put("app-repartition-changelog", task.Partition, &foreign)
	b.wait("the end of the standby", func() bool { return strings.Contains(b.logs.String(), "reason=\"record app-repartition-changelog") })
	b.produce(signal(b.idIn(one, "signals.raw", task.Partition, 1), 0, testTime))
	b.wait("the event of the task", func() bool { return len(b.read("signals.unique")) == len(all)+1 })
	must(t, one.stop())
	b.accept([]app.Refusal{b.awaitRefused(other, task, bad)}, app.SkipRecord, false)
	b.ready(other)
	must(t, os.RemoveAll(cfg.StateDir))
	one = b.startWith(cfg, prepare)
	b.share(one, other)
	b.follows(one, b.tasksOf(other))
	b.follows(other, b.tasksOf(one))
	b.produce(records...)
	b.drain(one, "signals.raw")
	if out := b.read("signals.unique"); len(out) != len(all)+1 {
		t.Errorf("%d records came out, want %d", len(out), len(all)+1)
	}
}

// overwrite writes a row of the manifest topic that no build of oncebus writes.
func (b *bench) overwrite(key string) *kgo.Record {
	b.t.Helper()
	return b.put("app-manifest", 0, &poison{key: []byte(key), value: []byte("garbage")})
}

// TestUnreadableMarkWaits protects that a mark which cannot be read stops only its own partition. Refusals and
// decisions that cannot be read, and rows with other names, stop nothing.
func TestUnreadableMarkWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	b.lived(cfg, batch("early", 40)...)
	mark := b.overwrite("mark/signals.raw/1")
	for _, key := range []string{"refused/signals.raw/2", "accept/signals.raw/2", "refused/app-repartition/1", "accept/app-repartition/1", "customer-17", ""} {
		b.overwrite(key)
	}
	i := b.start(cfg)
	b.produce(batch("late", 40)...)
	refusals := b.awaitRefusals(i, 1, app.RecordUnreadable)
	if r := refusals[0]; r.Name() != "signals.raw/1" || !strings.Contains(r.Detail, fmt.Sprintf("record app-manifest/0/%d", mark.Offset)) || !strings.Contains(r.Detail, `value "garbage"`) {
		t.Errorf("refused is %+v", r)
	}
	b.wait("the events of the other partitions", func() bool { return len(b.read("signals.unique")) == 40+30 })
	b.accept(refusals, app.FromGroup, false)
	b.ready(i)
	b.wait("the output", func() bool { return len(b.read("signals.unique")) == 80 })
	must(t, i.stop())
	b.ready(b.start(cfg)) // the new mark is in the place of the bad one
}

// TestUnreadableRowsOfTheApp covers a row that says how the whole app runs. An unreadable one stops no running
// process. A process that starts does nothing without the row, says which row it is, and goes on when an operator has
// restored the row before it.
func TestUnreadableRowsOfTheApp(t *testing.T) {
	t.Parallel()
	for _, key := range []string{app.ManifestKey, "set", "set/1", "hold", "switch"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.config("one")
			i := b.living(cfg, batch("early", 40)...)
			bad := b.overwrite(key)
			b.produce(batch("while running", 40)...)
			b.wait("the events of the running process", func() bool { return len(b.read("signals.unique")) == 80 })
			must(t, i.stop())
			says := fmt.Sprintf("record app-manifest/0/%d: row %q cannot be read", bad.Offset, key)
			command := "oncebus accept --row '" + key + "'"
			if key == "hold" || key == "switch" { // a start goes as far as its partitions
				i = b.start(cfg)
				b.wait("the reason in /readyz", func() bool {
					err := i.Ready()
					return err != nil && strings.Contains(err.Error(), says) && strings.Contains(err.Error(), command)
				})
			} else {
				b.refused(cfg, says, command)
			}
			d := b.decider()
			rows, err := d.BadRows(t.Context())
			must(t, err)
			if len(rows) != 1 || rows[0].Command() != command {
				t.Errorf("%d rows are listed: %+v", len(rows), rows)
			}
			must(t, d.RepairRow(t.Context(), key))
			if err := d.RepairRow(t.Context(), key); err == nil {
				t.Error("a row that can be read was replaced")
			}
			if key != "hold" && key != "switch" {
				i = b.start(cfg)
			}
			b.ready(i)
			b.produce(batch("after", 40)...)
			b.wait("the events after the repair", func() bool { return len(b.read("signals.unique")) == 120 })
		})
	}
}

// TestUnreadableRecordOfAnEarlierGeneration covers the repartition topic that a move has left, from which the router
// forwards. At a foreign record only this partition waits.
func TestUnreadableRecordOfAnEarlierGeneration(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	i := b.ready(b.start(b.config("one")))
	b.produce(movedEvents(1, 0, 100)...)
	b.drain(i, "signals.raw")
	var late []*kgo.Record
	for _, rec := range b.routedRecords() {
		if rec.Partition == 0 {
			late = append(late, &kgo.Record{Topic: rec.Topic, Key: rec.Key, Value: rec.Value, Headers: rec.Headers})
		}
	}
	b.move(move.Options{Partitions: 5, Limit: time.Minute})
	b.awaitGeneration(i, 2)
	kinds := routedPoison("signals")
	b.produce(late[0])
	bad := b.put("app-repartition", 0, &kinds[0])
	b.produce(late[1])
	refusal := b.awaitRefused(i, app.TaskID{Topic: "app-repartition", Partition: 0}, bad)
	b.produce(movedEvents(2, 100, 100)...)
	b.wait("the events of the inputs", func() bool { return len(b.keysOf("signals.unique")) == 200 })
	b.wait("what /readyz says", func() bool { err := i.Ready(); return err != nil && strings.Contains(err.Error(), refusal.Command()) })
	b.accept([]app.Refusal{refusal}, app.SkipRecord, false)
	b.ready(i)
	b.drain(i, "signals.raw", "app-repartition")
	for _, want := range late[:2] {
		n := 0
		for _, rec := range b.read("app-repartition-2") {
			if bytes.Equal(rec.Key, want.Key) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("a record next to the bad one was forwarded %d times", n)
		}
	}
	b.checkOnce(200)
}
