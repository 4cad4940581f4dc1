//go:build unix

package main_test

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const refusedRoutes = `
routes:
  - name: ids
    topics: [APP.ids.raw]
    key: [{field: id}]
    window: 1h
    output: APP.ids.unique
    dead_letter: APP.dead-letter
`

// noise returns n characters that no codec shortens by half.
func noise(n int) string {
	raw := make([]byte, n)
	_, _ = rand.Read(raw) // never fails
	return base64.RawStdEncoding.EncodeToString(raw)[:n]
}

// incompressible makes a record with this many bytes of text that no codec shortens by half.
func (w *world) incompressible(id string, bytes int) *kgo.Record {
	return &kgo.Record{
		Topic: w.topic("ids.raw"), Partition: int32(w.rng.IntN(realPartitions)), Key: []byte(id), Timestamp: time.Now().Truncate(time.Millisecond),
		Value: fmt.Appendf(nil, `{"id":%q,"text":%q}`, id, noise(bytes)),
	}
}

// TestRealRefusedRecords: a broker refuses records for good, first because they exceed a
// segment of the output topic, which oncebus does not measure. Then max.message.bytes is
// lowered while oncebus runs. These events become dead letters; all others are emitted
// once, also those whose batches were too large.
func TestRealRefusedRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, refusedRoutes)
	w.createTopics([]string{"max.message.bytes=4000000"}, "ids.raw", "dead-letter")
	w.createTopics([]string{"max.message.bytes=4000000", "segment.bytes=1048576"}, "ids.unique")
	inputs, outputs := []string{"ids.raw"}, []string{"ids.unique", "dead-letter"}
	good, bad := newLedger(), newLedger()
	reasons := map[string]string{}
	send := func(phase string, size int, reason string) {
		var records []*kgo.Record
		for n := range 600 {
			id := fmt.Sprint(phase, "-", n)
			if n%200 == 100 {
				reasons[id] = reason
				r := w.incompressible(id, size)
				r.Partition = int32(n / 200 % realPartitions) // all of them in one batch would exceed the limit of the input
				records = append(records, bad.add(id, r))
				continue
			}
			records = append(records, good.add(id, w.incompressible(id, 300)))
		}
		w.produce(records...)
		w.drained(inputs, outputs)
	}
	s := w.start("a")
	s.awaitReady()
	send("segment", 1_500_000, "refused by topic "+w.topic("ids.unique")+": RECORD_LIST_TOO_LARGE")
	w.alter(w.topic("ids.unique"), "max.message.bytes", "20000")
	send("limit", 30_000, "max.message.bytes is 20000")

	good.checkOnce(t, w.output("ids.unique"))
	letters := map[string]*kgo.Record{}
	for _, r := range w.output("dead-letter") {
		id, sent, err := bad.match(r)
		if err != nil {
			t.Errorf("dead letter: %v", err)
			continue
		}
		if letters[id] != nil {
			t.Errorf("%s: a second dead letter at %s", id, at(r))
		}
		letters[id] = r
		complain(t, touched(sent, r), "dead letter at %s", at(r))
		if reason := headerOf(r, "oncebus-reason"); !strings.Contains(reason, reasons[id]) {
			t.Errorf("%s: oncebus-reason is %q, want %q in it", id, reason, reasons[id])
		}
	}
	if len(letters) != len(bad.events) {
		t.Errorf("%d dead letters, want %d", len(letters), len(bad.events))
	}
	// Sent again in a form that fits, such an event is unique.
	again := newLedger()
	w.produce(again.add("segment-100", w.incompressible("segment-100", 300)))
	w.drained(inputs, outputs)
	out := w.output("ids.unique")
	if last := len(good.events) + 1; len(out) != last {
		t.Errorf("%d events in the output, want %d", len(out), last)
	}
	s.stop()
}

// TestRealLargeEvents: events of 2 MB that are small as gzip come out whole of an output that takes 1 MiB,
// among small ones in every partition. The other output's broker stores batches uncompressed, so it
// refuses them, and they are dead letters with their value. All others are emitted once.
func TestRealLargeEvents(t *testing.T) {
	t.Parallel()
	_, route, _ := strings.Cut(refusedRoutes, "routes:\n")
	w := newWorld(t, refusedRoutes+strings.ReplaceAll(route, "ids", "plain"))
	w.createTopics([]string{"max.message.bytes=1048588"}, "ids.raw", "plain.raw", "ids.unique", "dead-letter")
	w.createTopics([]string{"max.message.bytes=1048588", "compression.type=uncompressed"}, "plain.unique")
	good, refused := newLedger(), newLedger()
	var records []*kgo.Record
	for n := range 240 {
		for _, name := range []string{"ids", "plain"} {
			id := fmt.Sprintf("%s-%d", name, n)
			r, ledger := w.incompressible(id, 300), good
			if n%40 == 20 {
				r.Value = fmt.Appendf(nil, `{"id":%q,"text":%q}`, id, strings.Repeat("0123456789", 200_000))
				if name == "plain" {
					ledger = refused
				}
			}
			r.Topic, r.Partition = w.topic(name+".raw"), int32(n%realPartitions)
			copied := *r
			records = append(records, ledger.add(id, r), ledger.add(id, &copied))
		}
	}
	w.produce(records...)
	s := w.start("a")
	s.awaitReady()
	w.drained([]string{"ids.raw", "plain.raw"}, []string{"ids.unique", "plain.unique", "dead-letter"})
	good.checkOnce(t, append(w.output("ids.unique"), w.output("plain.unique")...))
	dead := w.output("dead-letter")
	for _, r := range dead {
		_, sent, err := refused.match(r)
		if reason := headerOf(r, "oncebus-reason"); err != nil || !strings.Contains(reason, "refused by topic "+w.topic("plain.unique")+": MESSAGE_TOO_LARGE") {
			t.Errorf("dead letter at %s: %v, %s", at(r), err, reason)
			continue
		}
		complain(t, touched(sent, r), "dead letter at %s", at(r))
	}
	if len(dead) != 2*len(refused.events) { // a refused event takes no key, so its duplicate is refused too
		t.Errorf("%d dead letters, want %d", len(dead), 2*len(refused.events))
	}
	s.stop()
}
