//go:build unix

package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest"
	"oncebus/processor/oracle"
)

// matrix has the rows of the fault matrix for which one broker is enough. Row u1 is the scenario previous.
var matrix = strings.Fields("b1 b2 b3 b5 b6 c1 c2 g1 g2 h1 l1 l2 l3 n1 n2 n3 n4 p1 p2 p3 p4 p5 p6 p7 p8 s1 s2 s3 s4 s5 t1 t2 t3")

// TestRowsOfTheCheckExist: the table .ci/paths, which says what checks a change needs, names only rows that are in
// the matrix.
func TestRowsOfTheCheckExist(t *testing.T) {
	table, err := os.ReadFile("../../.ci/paths")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`(?m)^[^#\n]* faults:(\S+)`).FindAllStringSubmatch(string(table), -1) {
		for row := range strings.SplitSeq(found[1], ",") {
			if len(selectFaults(allFaults, []string{row}, 1, kafkatest.KafkaVersion)) == 0 {
				t.Errorf(".ci/paths: there is no row %s with one broker", row)
			}
		}
	}
}

func TestEveryRowHasAFault(t *testing.T) {
	rows := map[string]bool{}
	for _, f := range selectFaults(allFaults, nil, 1, kafkatest.KafkaVersion) {
		rows[f.row] = true
	}
	for row := range trafficRows {
		rows[row] = true
	}
	if got := slices.Sorted(maps.Keys(rows)); !slices.Equal(got, matrix) {
		t.Errorf("rows with one broker: %v, want %v", got, matrix)
	}
	for _, f := range selectFaults(allFaults, []string{"b4"}, 3, kafkatest.KafkaVersion) {
		rows[f.row] = true
	}
	if !rows["b4"] {
		t.Error("no fault of row b4 with three brokers")
	}
	if got := selectFaults(allFaults, []string{"transaction-version"}, 1, "3.9.2"); len(got) > 0 {
		t.Error("Kafka 3.9 has the feature transaction.version")
	}
}

func TestFaultNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range allFaults {
		if seen[f.name] {
			t.Errorf("two faults are called %s", f.name)
		}
		seen[f.name] = true
		if f.slots > 0 && f.all {
			t.Errorf("fault %s needs %d processes and all of them", f.name, f.slots)
		}
	}
}

// TestDeck: a deck begins with one fault of each row and has each fault as often as its weight says.
func TestDeck(t *testing.T) {
	d := &deck{faults: selectFaults(allFaults, nil, 1, kafkatest.KafkaVersion)}
	rng := rand.New(rand.NewPCG(1, 2))
	first := d.draw(rng)
	drawn, rows := map[string]int{first.name: 1}, map[string]bool{first.row: true}
	for n := 1; len(d.cards) > 0; n++ {
		f := d.draw(rng)
		drawn[f.name]++
		if rows[f.row] = true; n+1 == len(matrix)-len(trafficRows) && len(rows) != n+1 {
			t.Errorf("the first %d faults are from %d rows", n+1, len(rows))
		}
	}
	for _, f := range d.faults {
		if drawn[f.name] != max(1, f.weight) {
			t.Errorf("fault %s is in the deck %d times, want %d", f.name, drawn[f.name], max(1, f.weight))
		}
	}
}

func TestFlowHeader(t *testing.T) {
	at := time.UnixMicro(1_700_000_000_123_456)
	headers := []kgo.RecordHeader{{Key: "id", Value: []byte("x")}, {Key: headerFlow, Value: appendFlow(flows-1, at)}}
	flow, sent, ok := flowOf(headers)
	if !ok || flow != flows-1 || sent != at.UnixMicro() {
		t.Errorf("read back %d, %d, %v", flow, sent, ok)
	}
	if _, _, ok := flowOf(headers[:1]); ok {
		t.Error("found a flow in a topic without one")
	}
}

func TestQuantiles(t *testing.T) {
	var all []time.Duration
	for i := range 100 {
		all = append(all, time.Duration(100-i)*time.Second)
	}
	if got, want := quantilesIn(all), (quantiles{N: 100, P50: 50, P99: 99, Max: 100}); got != want {
		t.Errorf("quantiles of 1 to 100 s: %+v, want %+v", got, want)
	}
	if got := quantilesIn(nil); got != (quantiles{}) {
		t.Errorf("quantiles of nothing: %+v", got)
	}
}

// TestShareEqual: after shareEqual, records that are equal in both readings share their memory; other records are
// unchanged.
func TestShareEqual(t *testing.T) {
	record := func(offset int64, value string) oracle.Record {
		return oracle.Record{Offset: offset, Value: []byte(value)}
	}
	live := map[string][]oracle.Record{"t": {record(1, "one"), record(2, "two")}}
	final := map[string][]oracle.Record{"t": {record(1, "one"), record(2, "other"), record(3, "three")}}
	shareEqual(live, final)
	if &final["t"][0].Value[0] != &live["t"][0].Value[0] {
		t.Error("equal records do not share their memory")
	}
	if got := string(final["t"][1].Value); got != "other" {
		t.Errorf("a record that differs became %q", got)
	}
}

// TestHistory: a history is the same after encoding and decoding, including missing and empty values.
func TestHistory(t *testing.T) {
	cfg := oracle.Config{Repartition: "r", Partitions: 2, Topics: map[string]uint16{"raw": 1}, Routes: []oracle.Route{{Name: "a", NamespaceID: 3}}}
	record := oracle.Record{Topic: "t", Partition: 1, Offset: 5, Timestamp: 9, Key: []byte{}, Headers: []oracle.Header{{Key: "k"}, {Key: "l", Value: []byte{0xff}}}}
	h := oracle.History{
		Sent:     []oracle.Sent{{Record: record, Route: "a", ID: "x"}},
		Requests: []oracle.Request{{Route: "a", ID: "x", Value: []byte("v"), Headers: record.Headers, Status: 202, Verdict: "unique", Key: "k"}, {Value: []byte{}}},
		Live:     map[string][]oracle.Record{"t": {record, {Topic: "t", Offset: 6, Value: []byte("v")}}}, Final: map[string][]oracle.Record{"t": {record}},
		Offsets: []oracle.Sample{{Partition: 1, Offset: -1, Reset: true}},
		Stores:  []oracle.Store{{Partition: 1, Position: 7, Checkpoint: []byte{1}, Rows: map[string][]byte{"\xff\x00": {2}}}},
		Open:    []string{"t/0"}, Lag: map[string]int64{"g t/0": 4}, Cut: []string{"c/0"}, Refused: map[string]int{"t": 1},
	}
	var file bytes.Buffer
	if err := writeHistory(&file, &cfg, &h); err != nil {
		t.Fatal(err)
	}
	gotConfig, got, err := readHistory(&file)
	if err != nil || !reflect.DeepEqual(gotConfig, cfg) || !reflect.DeepEqual(got, h) {
		t.Errorf("read back %+v, %+v, %v; want %+v, %+v", gotConfig, got, err, cfg, h)
	}
}

// TestProgress: a task has passed a moment as soon as its checkpoint covers a record that was made after the moment.
func TestProgress(t *testing.T) {
	a := &app{id: "a"}
	o := &observer{app: a, flows: make([]int64, flows), tasks: make([]taskProgress, partitions)}
	t0 := time.UnixMicro(1_000_000)
	for flow := range o.flows {
		o.flows[flow] = t0.UnixMicro() + 1
	}
	now := t0.Add(time.Second)
	for p := range int32(partitions) {
		o.note(&kgo.Record{
			Topic: a.repartition(), Partition: p, Offset: 7,
			Headers: []kgo.RecordHeader{{Key: headerFlow, Value: appendFlow(0, t0.Add(time.Millisecond))}},
		}, now)
	}
	if err := o.passed(t0); err == nil {
		t.Error("passed although no checkpoint covers the records")
	}
	for p := range partitions {
		o.advance(p, 7, now)
	}
	if o.passed(t0) == nil || o.drained() == nil {
		t.Error("passed although the checkpoints end before the records")
	}
	for p := range partitions {
		o.advance(p, 8, now)
	}
	if err := errors.Join(o.passed(t0), o.drained()); err != nil {
		t.Errorf("not passed: %v", err)
	}
}

// TestProgressOfARecordReadLate: the observer reads several topics, so it may read a checkpoint before the record
// that the checkpoint covers. Such a record counts as judged.
func TestProgressOfARecordReadLate(t *testing.T) {
	a := &app{id: "a"}
	o := &observer{app: a, flows: make([]int64, flows), tasks: make([]taskProgress, partitions)}
	now := time.UnixMicro(2_000_000)
	o.advance(1, 8, now)
	o.note(&kgo.Record{
		Topic: a.repartition(), Partition: 1, Offset: 7, Headers: []kgo.RecordHeader{{Key: headerFlow, Value: appendFlow(0, now)}},
	}, now)
	if err := o.drained(); err != nil || o.tasks[1].sent != now.UnixMicro() {
		t.Errorf("drained: %v, the newest judged record was made at %d", err, o.tasks[1].sent)
	}
}

// TestLateCommits: after its successor has written, a process that was stopped may only write transactions that it
// began later. Transactions that it had begun before are found although they have the same producer and perhaps the
// same epoch.
func TestLateCommits(t *testing.T) {
	const zombie, successor, third = 1, 2, 3
	stopped := time.UnixMicro(1_000_000)
	before, after := stopped.Add(-time.Second), stopped.Add(10*time.Second)
	history := []write{
		{partition: 0, offset: 10, producer: successor, sequence: 6, seen: before},
		{partition: 0, offset: 20, producer: zombie, sequence: 7, seen: before},
		{partition: 0, offset: 30, producer: successor, sequence: 8, seen: after},
		{partition: 1, offset: 90, producer: third, sequence: 40, seen: before}, // the zombie never had this partition
		{partition: 1, offset: 95, producer: successor, sequence: 41, seen: after},
	}
	for name, c := range map[string]struct {
		write write
		late  bool
	}{
		"caught up":                       {write{partition: 0, offset: 40, producer: zombie, sequence: 9}, false},
		"begun before":                    {write{partition: 0, offset: 40, producer: zombie, sequence: 8}, true},
		"from a much earlier transaction": {write{partition: 0, offset: 40, producer: zombie, sequence: 7}, true},
		"begun before the successor's":    {write{partition: 0, offset: 25, producer: zombie, sequence: 7}, false},
		"another's":                       {write{partition: 1, offset: 99, producer: zombie, sequence: 42}, false},
	} {
		c.write.seen = after.Add(time.Second)
		o := &observer{writers: append(slices.Clone(history), c.write)}
		if late := o.lateCommits(map[int64]bool{zombie: true}, stopped); len(late) > 0 != c.late {
			t.Errorf("%s: late %v, want %v", name, late, c.late)
		}
		if !o.wroteAgain(map[int64]bool{zombie: true}, after) {
			t.Errorf("%s: the zombie wrote nothing", name)
		}
	}
}

// TestReadCheckpoint: the observer reads the checkpoint that a task writes.
func TestReadCheckpoint(t *testing.T) {
	value := binary.AppendVarint(binary.AppendVarint(binary.AppendVarint([]byte{1, 0}, 1234), -1), 99)
	if next, sequence := readCheckpoint(append(value, 3, 7)); next != 1234 || sequence != 99 {
		t.Errorf("next %d, sequence %d, want 1234 and 99", next, sequence)
	}
	if next, sequence := readCheckpoint(nil); next != 0 || sequence != 0 {
		t.Errorf("without bytes: next %d, sequence %d", next, sequence)
	}
}

// TestRound: a round is complete when every row, or every fault, has struck.
func TestRound(t *testing.T) {
	for _, test := range []struct {
		round string
		left  []string // what is left after one strike
	}{
		{"", nil},
		{roundRows, []string{"n1"}},
		{roundFaults, []string{"n1 lost", "p1 kill-late"}},
	} {
		r := newReport(settings{round: test.round})
		r.expect([]*fault{{row: "p1", name: "kill"}, {row: "p1", name: "kill-late"}, {row: "n1", name: "lost"}})
		for _, f := range r.ByFault {
			if f.Name == "kill" {
				f.Struck = 1
			}
		}
		if left := r.roundLeft(); !slices.Equal(left, test.left) || r.roundComplete() {
			t.Errorf("round %q: left %q, want %q; complete %v", test.round, left, test.left, r.roundComplete())
		}
		for _, f := range r.ByFault {
			f.Struck = 1
		}
		if want := test.round != ""; r.roundComplete() != want {
			t.Errorf("round %q: complete %v after all struck", test.round, !want)
		}
	}
}

func TestParseFlags(t *testing.T) {
	s, err := parseFlags([]string{"-duration", "30m", "-faults", "p1, b1 broker-down"})
	if err != nil || s.minFaults != 120 || s.seed == 0 || !slices.Equal(s.filter, []string{"p1", "b1", "broker-down"}) {
		t.Errorf("settings %+v, %v", s, err)
	}
	for _, args := range [][]string{
		{"-duration", "1s"}, {"-nodes", "2"}, {"-faults", "nothing"}, {"-scenario", "nothing"}, {"-interval", "0s"}, {"-epoch", "1s"}, {"-rate", "0"},
	} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

// claimEpoch returns the history of a small epoch in claim mode. A duplicate waits for the outcome of the first
// event, and both get replies.
func claimEpoch(route int) (*oracle.Config, *oracle.History) {
	const topic, outcomes, at = 3, 4, 1_000_000
	rules := claimRoutes[route].rules
	rules.Route, rules.NamespaceID = claimRoutes[route].name, 7
	rules.Repartition, rules.Changelog, rules.Outcomes, rules.OutcomesNumber = "repartition", "log", claimOutcomes, outcomes
	rules.Output, rules.Replies, rules.Dead = claimRun, claimReplies, claimDead
	h := &oracle.History{Live: map[string][]oracle.Record{}}
	add := func(topic, key string, value []byte, headers ...oracle.Header) {
		h.Live[topic] = append(h.Live[topic], oracle.Record{
			Topic: topic, Offset: int64(len(h.Live[topic])), Timestamp: at, Key: []byte(key), Value: value, Headers: headers,
		})
	}
	digest := bytes.Repeat([]byte{9}, 16)
	const recordKey, outcome = 1, 32 // flags of the envelopes
	envelope := func(flags byte, topic, offset uint64, tail string) string {
		b := append([]byte{2, flags | recordKey, byte(len(rules.Route))}, rules.Route...)
		b = binary.BigEndian.AppendUint64(append(binary.AppendUvarint(b, topic), 0), at)
		return string(binary.AppendUvarint(b, offset)) + tail
	}
	event := "\x00" + string(digest) + string(make([]byte, 32)) // at the timestamp
	text := func(pairs ...string) (headers []oracle.Header) {
		for n := 0; n < len(pairs); n += 2 {
			headers = append(headers, oracle.Header{Key: pairs[n], Value: []byte(pairs[n+1])})
		}
		return headers
	}
	raw := append(append([]byte{1, rules.NamespaceID}, digest...), 0, topic, 0, 0, 1, 0, 0, 0, 0) // partition | first | attempt | sum
	token := base64.RawURLEncoding.EncodeToString(raw)
	own := text("oncebus-claim-token", token, "oncebus-outcome", "completed")

	add("repartition", envelope(0, topic, 0, event+"r-1"), []byte("do"))
	add(claimRun, "r-1", []byte("do"), text("oncebus-route", rules.Route, "oncebus-verdict", "unique", "oncebus-attempt", "1")...)
	add("repartition", envelope(0, topic, 1, event+"r-2"), []byte("do"))
	if rules.Wait == 0 {
		add(claimReplies, "r-2", nil, text("oncebus-route", rules.Route, "oncebus-verdict", "in_progress", "oncebus-claim-status", "in_progress", "oncebus-attempt", "1")...)
	}
	add(claimOutcomes, "o-1", []byte("done"), append(text("type", "text"), own...)...)
	add("repartition", envelope(outcome, outcomes, 0, "\x01"+string(rune(len(token)))+token+"o-1"), []byte("done"), append(text("type", "text"), own...)...)
	reply := func(key, verdict string) {
		add(claimReplies, key, []byte("done"), text("type", "text", "oncebus-route", rules.Route, "oncebus-verdict", verdict, "oncebus-claim-status", "completed", "oncebus-attempt", "1")...)
	}
	reply("r-1", "unique")
	if rules.Wait > 0 {
		reply("r-2", "replayed")
	}
	row := append(binary.AppendVarint([]byte{1, 2, rules.NamespaceID, 3}, at), topic, 0, 0, 1)
	add("log", string(digest), row)
	return &oracle.Config{Claims: []oracle.Claims{rules}}, h
}

// TestClaimErrorsAreFound: the check finds every record of an epoch in claim mode that is missing, repeated or
// changed.
func TestClaimErrorsAreFound(t *testing.T) {
	for route, r := range claimRoutes {
		cfg, h := claimEpoch(route)
		counts, wrong := judgeClaims(cfg, h)
		if len(wrong) > 0 || counts["events"] != 2 || counts[claimRun] != 1 || counts[claimReplies] != 2 || counts[claimOutcomes] != 1 {
			t.Fatalf("%s: a correct epoch: %v, %v", r.name, counts, wrong)
		}
		for name, c := range map[string]struct {
			topic string
			plant func([]oracle.Record) []oracle.Record
			want  string
		}{
			"two live claims":       {claimRun, func(all []oracle.Record) []oracle.Record { return append(all, all[0]) }, "extra: dispatch r-1"},
			"nothing ran":           {claimRun, func([]oracle.Record) []oracle.Record { return nil }, "missing: dispatch r-1"},
			"the duplicate's reply": {claimReplies, func(all []oracle.Record) []oracle.Record { return withoutKey(all, "r-2") }, "missing: reply to r-2"},
			"the first's reply":     {claimReplies, func(all []oracle.Record) []oracle.Record { return withoutKey(all, "r-1") }, "missing: reply to r-1"},
			"two replies":           {claimReplies, func(all []oracle.Record) []oracle.Record { return append(all, all[1]) }, "extra: reply to"},
			"another result":        {claimReplies, func(all []oracle.Record) []oracle.Record { all[len(all)-1].Value = []byte("dome"); return all }, "extra: reply to"},
			"null for no result":    {claimReplies, func(all []oracle.Record) []oracle.Record { all[len(all)-1].Value = nil; return all }, "null"},
			"a header is lost": {claimReplies, func(all []oracle.Record) []oracle.Record {
				all[len(all)-1].Headers = all[len(all)-1].Headers[1:]
				return all
			}, `type="text"`},
			"a foreign reply":     {claimReplies, func(all []oracle.Record) []oracle.Record { return append(all, oracle.Record{Key: []byte("r-1")}) }, "3 records, 2 of them"},
			"an outcome lost":     {"repartition", func(all []oracle.Record) []oracle.Record { return all[:2] }, "outcome lost"},
			"an outcome twice":    {"repartition", func(all []oracle.Record) []oracle.Record { return append(all, all[2]) }, "which is missing there or was routed before"},
			"an outcome changed":  {"repartition", func(all []oracle.Record) []oracle.Record { all[2].Value = nil; return all }, "differs from the outcome in"},
			"an outcome astray":   {"repartition", func(all []oracle.Record) []oracle.Record { all[2].Partition = 1; return all }, "of a claim in partition 0"},
			"the claim's row":     {"log", func([]oracle.Record) []oracle.Record { return nil }, `is "" in the changelog`},
			"another attempt":     {"log", func(all []oracle.Record) []oracle.Record { all[0].Value[len(all[0].Value)-1]++; return all }, "attempt 2, first"},
			"the outcome's row":   {"log", func(all []oracle.Record) []oracle.Record { all[0].Value[3] = 1; return all }, `is "in_progress, attempt 1`},
			"none was to compare": {claimOutcomes, func([]oracle.Record) []oracle.Record { return nil }, "no record to compare"},
		} {
			cfg, h := claimEpoch(route)
			h.Live[c.topic] = c.plant(h.Live[c.topic])
			_, wrong := judgeClaims(cfg, h)
			found := slices.ContainsFunc(wrong, func(v oracle.Violation) bool {
				return v.Invariant == claimPromise && strings.Contains(v.Message, c.want)
			})
			if !found {
				t.Errorf("%s, %s: found %v, want %q", r.name, name, wrong, c.want)
			}
		}
	}
}

func withoutKey(all []oracle.Record, key string) []oracle.Record {
	return slices.DeleteFunc(all, func(r oracle.Record) bool {
		return string(r.Key) == key && string(r.Value) == "done" || string(r.Key) == key && r.Value == nil
	})
}

// TestExecutorPlans: outcomes for later are sent when they are due. If the transaction fails, they are planned again.
func TestExecutorPlans(t *testing.T) {
	x := &executor{app: &app{id: "a"}, rng: rand.New(rand.NewPCG(1, 2))}
	var run kgo.FetchPartition
	for range 2_000 {
		run.Records = append(run.Records, &kgo.Record{Headers: []kgo.RecordHeader{{Key: "oncebus-claim-token", Value: []byte("token")}}})
	}
	now := time.UnixMilli(1_000_000)
	fetches := kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "a." + claimRun, Partitions: []kgo.FetchPartition{run}}}}}
	batch, later := x.plan(fetches, now)
	if len(x.later) > 0 || len(later) < 200 {
		t.Errorf("%d outcomes are deferred before the transaction, %d after", len(x.later), len(later))
	}
	kinds := map[string]int{}
	for _, r := range batch {
		kinds[string(r.Headers[1].Value)]++
	}
	for _, kind := range []string{"submitted", "completed", "failed", "rejected", "forget"} {
		if kinds[kind] < 10 {
			t.Errorf("%d outcomes of 2000 events are %s: %v", kinds[kind], kind, kinds)
		}
	}
	x.later = later
	for range 2 { // the first time the transaction fails
		if batch, later = x.plan(nil, now.Add(laterMax)); len(batch) != len(x.later) || len(later) > 0 {
			t.Errorf("%d of %d outcomes are sent when all are due, %d deferred again", len(batch), len(x.later), len(later))
		}
	}
}

// TestOutcomesOnTheirWay: an outcome counts as unrouted until it was read from both topics, in either order.
func TestOutcomesOnTheirWay(t *testing.T) {
	o := &observer{app: &app{id: "a"}, unmet: map[outcomePlace]bool{}}
	o.meet(outcomePlace{1, 5}, true)
	o.meet(outcomePlace{1, 6}, false)
	if o.unrouted() == nil {
		t.Error("no outcome is unrouted")
	}
	o.meet(outcomePlace{1, 5}, false)
	o.meet(outcomePlace{1, 6}, true)
	if err := o.unrouted(); err != nil || len(o.unmet) > 0 {
		t.Errorf("%v, %v", err, o.unmet)
	}
}
