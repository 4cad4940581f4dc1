//go:build unix

package main_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const duplicateRoutes = `
routes:
  - name: drop
    topics: [APP.drop.raw]
    key: [{field: id}]
    window: 1h
    output: APP.drop.unique
    headers: [route, key, verdict]
    duplicates: drop
    dead_letter: APP.dead-letter
  - name: flag
    topics: [APP.flag.raw]
    key: [{field: id}]
    window: 1h
    output: APP.flag.unique
    headers: [route, key, verdict]
    duplicates: forward
    dead_letter: APP.dead-letter
  - name: to
    topics: [APP.to.raw]
    key: [{field: id}]
    window: 1h
    output: APP.to.unique
    headers: [route, key, verdict]
    duplicates: {to: APP.to.duplicates}
    dead_letter: APP.dead-letter
`

// forged returns headers with which a producer imitates oncebus, so that its
// duplicate looks unique or its record judged.
func forged() []kgo.RecordHeader {
	return []kgo.RecordHeader{
		withHeader("oncebus-verdict", []byte("unique")), withHeader("Oncebus-Key", []byte(strings.Repeat("0", 64))),
		withHeader("ONCEBUS-FIRST", []byte("elsewhere/0/0")), withHeader("oncebus-route", []byte("other")), withHeader("oncebus-claim-token", []byte("1")),
	}
}

// TestRealDuplicates: duplicates are dropped, forwarded to the output, or sent to
// another topic. Emitted ones have the first record, its time and the reason. Forged
// headers change no verdict and are removed.
func TestRealDuplicates(t *testing.T) {
	t.Parallel()
	w := newWorld(t, duplicateRoutes)
	policies := []string{"drop", "flag", "to"}
	inputs := []string{"drop.raw", "flag.raw", "to.raw"}
	outputs := []string{"drop.unique", "flag.unique", "to.unique", "to.duplicates", "dead-letter"}
	w.createTopics(nil, inputs...)
	const events, copies = 60, 4
	base := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	ledgers := map[string]*ledger{}
	for _, policy := range policies {
		l := newLedger()
		l.asks = true
		ledgers[policy] = l
		var records []*kgo.Record
		for n := range copies {
			for e := range events {
				r := &kgo.Record{
					Topic: w.topic(policy + ".raw"), Partition: w.rng.Int32N(realPartitions),
					Key: fmt.Appendf(nil, "key-%d", e), Value: fmt.Appendf(nil, `{"id":"e-%d","copy":%d}`, e, n),
					Timestamp: base.Add(time.Duration(e*copies+n) * time.Millisecond),
				}
				if (e+n)%2 == 0 {
					r.Headers = forged()
				}
				records = append(records, l.add(fmt.Sprintf("e-%d", e), r))
			}
		}
		w.produce(records...)
	}
	s := w.start("a")
	s.awaitReady()
	w.drained(inputs, outputs)

	byVerdict := func(name string) (unique, duplicate []*kgo.Record) {
		for _, r := range w.output(name) {
			if headerOf(r, "oncebus-verdict") == "duplicate" {
				duplicate = append(duplicate, r)
			} else {
				unique = append(unique, r)
			}
		}
		return unique, duplicate
	}
	for _, policy := range policies {
		t.Run(policy, func(t *testing.T) {
			unique, duplicate := byVerdict(policy + ".unique")
			if policy == "to" {
				var firsts []*kgo.Record
				if firsts, duplicate = byVerdict("to.duplicates"); len(firsts) > 0 {
					t.Errorf("%d records in the topic of the duplicates are unique, the first at %s", len(firsts), at(firsts[0]))
				}
			}
			want := events * (copies - 1)
			if policy == "drop" {
				want = 0
			}
			if len(duplicate) != want {
				t.Errorf("%d duplicates were emitted, want %d", len(duplicate), want)
			}
			first := ledgers[policy].checkOnce(t, unique)
			ledgers[policy].checkDuplicates(t, policy, first, duplicate)
		})
	}
	if letters := w.output("dead-letter"); len(letters) > 0 {
		t.Errorf("%d dead letters, the first with reason %q", len(letters), headerOf(letters[0], "oncebus-reason"))
	}
	s.stop()
}

// checkDuplicates checks that duplicates are unchanged, have the emitted record as
// the first, and follow it if they are in the same topic.
func (l *ledger) checkDuplicates(t *testing.T, route string, first map[string]*kgo.Record, duplicates []*kgo.Record) {
	t.Helper()
	seen := map[string]bool{}
	var wrong []string
	for _, r := range duplicates {
		event, sent, err := l.match(r)
		if err != nil {
			wrong = append(wrong, err.Error())
			continue
		}
		id := event + "/" + headerOf(r, headerTestCopy)
		if seen[id] || first[event] != nil && headerOf(first[event], headerTestCopy) == headerOf(r, headerTestCopy) {
			wrong = append(wrong, at(r)+": copy "+id+" came out before")
		}
		seen[id] = true
		wrong = append(wrong, touched(sent, r)...)
		if first[event] == nil {
			continue // missing: checkOnce has reported it
		}
		_, original, err := l.match(first[event])
		if err != nil {
			wrong = append(wrong, err.Error())
			continue
		}
		for name, want := range map[string]string{
			"oncebus-route":      route,
			"oncebus-key":        headerOf(first[event], "oncebus-key"),
			"oncebus-first":      at(original),
			"oncebus-first-time": strconv.FormatInt(original.Timestamp.UnixMilli(), 10),
			"oncebus-source":     at(sent),
		} {
			if got := headerOf(r, name); got != want {
				wrong = append(wrong, fmt.Sprintf("%s: %s is %q, want %q", at(r), name, got, want))
			}
		}
		if headerOf(r, "oncebus-reason") == "" {
			wrong = append(wrong, at(r)+": no oncebus-reason")
		}
		if f := first[event]; f.Topic == r.Topic && (f.Partition != r.Partition || f.Offset > r.Offset) {
			wrong = append(wrong, fmt.Sprintf("%s: a forwarded duplicate of %s is not after it", at(r), at(f)))
		}
	}
	complain(t, wrong, "%d duplicates", len(duplicates))
}
