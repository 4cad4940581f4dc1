//go:build unix

package main_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const hostileRoutes = `
routes:
  - name: ids
    topics: [APP.ids.raw]
    key: [{field: id}]
    max_key_bytes: 64
    window: 1h
    output: APP.ids.unique
    dead_letter: APP.dead-letter
  - name: hashes
    topics: [APP.hashes.raw]
    key: [{hash: [a, b]}]
    window: 1h
    output: APP.hashes.unique
    dead_letter: APP.dead-letter
  - name: headers
    topics: [APP.headers.raw]
    prepartitioned: true
    key: [{header: request-id}]
    max_key_bytes: 64
    window: 1h
    output: APP.headers.unique
    dead_letter: APP.dead-letter
`

// badRecord is a record that no route can judge, or that is too large for every
// output.
type badRecord struct {
	name    string
	input   string // name of the input topic
	verdict string
	reason  string // part of the reason, in lower case
	record  *kgo.Record
	cut     bool // the dead letter is a pointer to the record
}

func withHeader(name string, value []byte) kgo.RecordHeader {
	return kgo.RecordHeader{Key: name, Value: value}
}

func badRecords() []badRecord {
	ids := func(name, verdict, reason, value string) badRecord {
		return badRecord{name: name, input: "ids.raw", verdict: verdict, reason: reason, record: &kgo.Record{Value: []byte(value)}}
	}
	hashes := func(name, reason, value string) badRecord {
		b := ids(name, "invalid", reason, value)
		b.input = "hashes.raw"
		return b
	}
	headers := func(name, verdict, reason string, headers ...kgo.RecordHeader) badRecord {
		return badRecord{name: name, input: "headers.raw", verdict: verdict, reason: reason,
			record: &kgo.Record{Value: []byte("any bytes"), Headers: headers}}
	}
	const deep = 200_000
	nested := strings.Repeat("[", deep) + strings.Repeat("]", deep)
	all := []badRecord{
		ids("not JSON", "invalid", "json", "id=7"),
		ids("JSON cut short", "invalid", "json", `{"id":"7`),
		ids("two JSON values", "invalid", "json", `{"id":"7"} {"id":"8"}`),
		ids("not UTF-8", "invalid", "utf-8", "{\"id\":\"\xff\"}"),
		ids("missing field", "missing_key", "id", `{"other":"7"}`),
		ids("null field", "missing_key", "id", `{"id":null}`),
		ids("empty id", "missing_key", "id", `{"id":""}`),
		ids("an object for an id", "invalid", "object", `{"id":{"id":"7"}}`),
		ids("an array for an id", "invalid", "array", `{"id":["7"]}`),
		ids("a boolean for an id", "invalid", "boolean", `{"id":true}`),
		ids("key over the limit", "invalid", "limit", fmt.Sprintf(`{"id":%q}`, strings.Repeat("k", 65))),
		ids("member name twice", "invalid", "id", `{"id":"7","id":"8"}`),
		ids("empty payload", "invalid", "", ""),
		{name: "null payload", input: "ids.raw", verdict: "invalid", record: &kgo.Record{Key: []byte("k")}},
		ids("too large for the output", "invalid", "max.message.bytes", fmt.Sprintf(`{"id":"large","text":%q}`, noise(30_000))),
		hashes("number beyond float64", "", `{"a":1e400,"b":1}`),
		hashes("deep nesting", "", `{"a":`+nested+`,"b":1}`),
		hashes("half of a surrogate pair", "", `{"a":"\ud800","b":1}`),
		headers("no such header", "missing_key", "request-id"),
		headers("empty header", "missing_key", "request-id", withHeader("request-id", nil)),
		headers("header over the limit", "invalid", "limit", withHeader("request-id", []byte(strings.Repeat("\x00", 65)))),
		headers("hostile headers", "missing_key", "request-id",
			withHeader("", nil), withHeader("Request-ID", []byte("1")), withHeader("request-id\x00", []byte("1")),
			withHeader("ONCEBUS-Envelope", []byte("1")), withHeader("oncebus-envelope", []byte{0xff}), withHeader("oncebus-key", []byte(strings.Repeat("a", 64))),
			withHeader(strings.Repeat("h", 10_000), []byte(strings.Repeat("v", 10_000)))),
	}
	future := ids("far future", "invalid", "ahead", `{"id":"future"}`)
	future.record.Timestamp = time.Now().AddDate(1, 0, 0).Truncate(time.Millisecond)
	large := ids("too large for the dead-letter topic too", "invalid", "max.message.bytes", fmt.Sprintf(`{"id":"larger","text":%q}`, noise(600_000)))
	large.cut = true
	return append(all, future, large)
}

// TestRealBadInput: every kind of bad record becomes one dead letter, unchanged, with
// reason and position. The next record of the partition is processed.
func TestRealBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hostileRoutes)
	w.createTopics([]string{"message.timestamp.after.max.ms=9223372036854775807"}, "ids.raw", "hashes.raw", "headers.raw")
	w.createTopics([]string{"max.message.bytes=20000"}, "ids.unique", "hashes.unique", "headers.unique")
	w.createTopics([]string{"max.message.bytes=500000", "message.timestamp.after.max.ms=9223372036854775807"}, "dead-letter")
	inputs, outputs := []string{"ids.raw", "hashes.raw", "headers.raw"}, []string{"ids.unique", "hashes.unique", "headers.unique", "dead-letter"}

	bad := badRecords()
	sent, good := newLedger(), map[string]*ledger{}
	for _, input := range inputs {
		good[input] = newLedger()
	}
	var records []*kgo.Record
	for i, b := range bad {
		b.record.Topic, b.record.Partition = w.topic(b.input), int32(i%realPartitions)
		if b.record.Timestamp.IsZero() {
			b.record.Timestamp = time.Now().Truncate(time.Millisecond)
		}
		next := &kgo.Record{
			Topic: b.record.Topic, Partition: b.record.Partition, Timestamp: time.Now().Truncate(time.Millisecond),
			Value:   fmt.Appendf(nil, `{"id":"good-%d","a":%d,"b":"good"}`, i, i),
			Headers: []kgo.RecordHeader{withHeader("request-id", fmt.Appendf(nil, "good-%d", i))},
		}
		records = append(records, sent.add(b.name, b.record), good[b.input].add(fmt.Sprintf("good-%d", i), next))
	}
	w.produce(records...)
	s := w.start("a")
	s.awaitReady()
	w.drained(inputs, outputs)

	for _, input := range inputs {
		good[input].checkOnce(t, w.output(strings.Replace(input, "raw", "unique", 1)))
	}
	letters := map[string]*kgo.Record{}
	for _, r := range w.output("dead-letter") {
		name := headerOf(r, headerTestEvent)
		if name == "" { // a pointer has only the headers of oncebus
			name = "too large for the dead-letter topic too"
		}
		if letters[name] != nil {
			t.Errorf("%s: a second dead letter at %s", name, at(r))
		}
		letters[name] = r
	}
	for _, b := range bad {
		t.Run(b.name, func(t *testing.T) {
			letter := letters[b.name]
			if letter == nil {
				t.Fatal("no dead letter")
			}
			checkLetter(t, b, letter)
		})
	}
	if len(letters) != len(bad) {
		t.Errorf("%d dead letters, want %d", len(letters), len(bad))
	}
	s.stop()
}

// checkLetter checks content and headers of a dead letter.
func checkLetter(t *testing.T, b badRecord, letter *kgo.Record) {
	t.Helper()
	if !b.cut {
		complain(t, touched(b.record, letter), "dead letter at %s", at(letter))
	} else if len(letter.Value) > 0 {
		t.Errorf("the pointer has a value of %d bytes", len(letter.Value))
	}
	for name, want := range map[string]string{
		"oncebus-route":   strings.TrimSuffix(b.input, ".raw"),
		"oncebus-verdict": b.verdict,
		"oncebus-source":  at(b.record),
	} {
		if got := headerOf(letter, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	reason := headerOf(letter, "oncebus-reason")
	if reason == "" || !strings.Contains(strings.ToLower(reason), b.reason) {
		t.Errorf("oncebus-reason is %q, want %q in it", reason, b.reason)
	}
	t.Log(reason)
}
