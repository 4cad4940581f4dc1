package deadletter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

const testRoutes = `routes:
  - name: signals
    topics: [signals.raw, more.raw]
    key: [{field: id}]
    window: 1h
    output: signals.unique
    dead_letter: dead
  - name: operations
    mode: claim
    topics: [operations.raw]
    key: [{field: id}]
    window: 1h
    output: operations.run
    outcomes: outcomes
    replies: replies
    dead_letter: dead
`

// testClient is a client that knows topics, and has no brokers.
func testClient(t *testing.T) *Client {
	t.Helper()
	routes, err := rules.ParseRoutes("routes.yaml", []byte(testRoutes))
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{routes: routes, deriver: routes.NewDeriver(nil), topics: map[string]app.Topic{}, progress: newProgress()}
	c.found = &app.Found{Topology: &app.Topology{App: "app", Repartition: "app-repartition", Manifest: "app-manifest"}}
	for _, name := range append(c.Topics(), c.inputs()...) {
		c.topics[name] = app.Topic{Partitions: 4}
	}
	return c
}

func headers(pairs ...string) (all []kgo.RecordHeader) {
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, kgo.RecordHeader{Key: pairs[i], Value: []byte(pairs[i+1])})
	}
	return all
}

// letter makes a dead letter as the service writes it: the headers of the original, then its own.
func letter(foreign []kgo.RecordHeader, own ...string) *Letter {
	return Read(&kgo.Record{
		Topic: "dead", Partition: 3, Offset: 9, Key: []byte("k"), Value: []byte(`{"id":"7"}`), Timestamp: time.UnixMilli(1000),
		Headers: append(foreign, headers(own...)...),
	})
}

func own(reason, source string, more ...string) []string {
	return append(more, wire.HeaderRoute, "signals", wire.HeaderVerdict, "missing_key", wire.HeaderReason, reason,
		wire.HeaderSource, source, wire.HeaderFirst, source, wire.HeaderFirstTime, "1000")
}

// TestRestoredFromTheDeadLetterAlone: without its original a dead letter gives back the headers
// before those of oncebus, whatever their names are, and counts the attempt.
func TestRestoredFromTheDeadLetterAlone(t *testing.T) {
	c := testClient(t)
	foreign := headers("traceparent", "00-1", "__connect.errors.topic", "theirs", "x", "")
	l := letter(foreign, own("no key", "signals.raw/2/5", wire.HeaderRedriveAttempt, "2", "__connect.errors.topic", "ours")...)
	if skip := c.refuse(l, 3); skip != nil {
		t.Fatalf("refused: %+v", skip)
	}
	rec, skip := c.restore(l, nil)
	if skip != nil {
		t.Fatalf("skipped: %+v", skip)
	}
	want := append(slices.Clone(foreign), headers(wire.HeaderRedriveAttempt, "3")...)
	if got := rec.Headers; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("headers %v, want %v", got, want)
	}
	if rec.Topic != "signals.raw" || rec.Partition != 2 || string(rec.Key) != "k" || string(rec.Value) != `{"id":"7"}` || rec.Timestamp.UnixMilli() != 1000 {
		t.Errorf("restored %s/%d key %s value %s time %v", rec.Topic, rec.Partition, rec.Key, rec.Value, rec.Timestamp)
	}
}

// TestRestoredFromItsOriginal: the original has the headers that a dead letter lacks. A record
// of a recreated topic at its position has another value or time.
func TestRestoredFromItsOriginal(t *testing.T) {
	c := testClient(t)
	l := letter(headers("x", "1"), own("no key", "signals.raw/2/5")...)
	original := &kgo.Record{Topic: "signals.raw", Partition: 2, Offset: 5, Key: []byte("k"), Value: []byte(`{"id":"7"}`), Timestamp: time.UnixMilli(1000),
		Headers: headers("oncebus-key", "forged", "x", "1", "oncebus-reply-to", "gone", "Oncebus-Redrive-Attempt", "9")}
	rec, _ := c.restore(l, original)
	if want := headers("oncebus-key", "forged", "x", "1", wire.HeaderRedriveAttempt, "1"); fmt.Sprint(rec.Headers) != fmt.Sprint(want) {
		t.Errorf("headers %v, want %v", rec.Headers, want)
	}
	other := *original
	other.Value = []byte(`{"id":"8"}`)
	rec, _ = c.restore(l, &other)
	if want := headers("x", "1", wire.HeaderRedriveAttempt, "1"); fmt.Sprint(rec.Headers) != fmt.Sprint(want) || string(rec.Value) != `{"id":"7"}` {
		t.Errorf("another record was taken for the original: value %s, headers %v", rec.Value, rec.Headers)
	}
}

// TestWhatCannotBeRedriven: every kind of dead letter is either redriven or says why not.
func TestWhatCannotBeRedriven(t *testing.T) {
	c := testClient(t)
	for name, test := range map[string]struct {
		letter *Letter
		class  Class
		cause  Cause
	}{
		"missing key":                  {letter(nil, own("no key: field id is missing", "signals.raw/0/1")...), MissingKey, ""},
		"at its bound":                 {letter(nil, own("no key", "signals.raw/0/1", wire.HeaderRedriveAttempt, "3")...), MissingKey, AtBound},
		"foreign":                      {letter(headers("a", "b")), Foreign, NoEvent},
		"without a source":             {letter(nil, wire.HeaderRoute, "signals", wire.HeaderReason, "no key"), Foreign, NoEvent},
		"batch":                        {letter(nil, own(wire.ReasonBatch+"0 to 9 decompresses to too much", "signals.raw/0/0", wire.HeaderBatchLast, "signals.raw/0/9")...), Batch, NoEvent},
		"reply":                        {letter(nil, own(wire.ReasonReply+wire.ReasonTooLarge+"replies", "operations.raw/0/0")...), Reply, NoEvent},
		"answer":                       {letter(nil, own(wire.ReasonAnswer+wire.ReasonTooLarge+"answers", "outcomes/0/0")...), Answer, NoEvent},
		"a topic of no route":          {letter(nil, own("no key", "others.raw/0/1")...), MissingKey, UnknownTopic},
		"an internal topic":            {letter(nil, own("no key", "app-manifest/0/1")...), MissingKey, UnknownTopic},
		"a partition that is gone":     {letter(nil, own("no key", "signals.raw/4/1")...), MissingKey, UnknownTopic},
		"by HTTP":                      {letter(nil, own("no key", "app-repartition/17/1")...), MissingKey, ""},
		"another topic than the first": {letter(nil, own("no key", "more.raw/0/1")...), MissingKey, ""},
	} {
		cause := Cause("")
		if skip := c.refuse(test.letter, 3); skip != nil {
			if cause = skip.Cause; skip.Why == "" {
				t.Errorf("%s: no way out", name)
			}
		}
		if test.letter.Class != test.class || cause != test.cause {
			t.Errorf("%s: class %q, cause %q; want %q, %q", name, test.letter.Class, cause, test.class, test.cause)
		}
	}
	l := letter(nil, own("no key", "signals.raw/0/1")...)
	l.Route = "renamed"
	if skip := c.refuse(l, 3); skip == nil || skip.Cause != UnknownRoute {
		t.Errorf("a route that is not in the file: %+v", skip)
	}
}

// TestPointersNeedTheirOriginal: a dead letter that was not carried whole is redriven as long
// as the input has the original.
func TestPointersNeedTheirOriginal(t *testing.T) {
	c := testClient(t)
	l := Read(&kgo.Record{Topic: "dead", Timestamp: time.UnixMilli(5000), Headers: headers(own("too much", "signals.raw/2/5",
		wire.HeaderTimestamp, "1000", wire.HeaderValueSize, "1", wire.HeaderValueHash, "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881")...)})
	if _, skip := c.restore(l, nil); skip == nil || skip.Cause != NotWhole {
		t.Errorf("without the original: %+v", skip)
	}
	original := &kgo.Record{Key: []byte("k"), Value: []byte("x"), Timestamp: time.UnixMilli(1000), Headers: headers("a", "1")}
	rec, skip := c.restore(l, original)
	if skip != nil || string(rec.Value) != "x" || string(rec.Key) != "k" || rec.Timestamp.UnixMilli() != 1000 || len(rec.Headers) != 2 {
		t.Errorf("restored %+v, %+v", rec, skip)
	}
	original.Value = []byte("y")
	if _, skip := c.restore(l, original); skip == nil {
		t.Error("another value was taken for the original")
	}
}

// TestOutcomeIsRestored: token and kind of an outcome are its own headers, not those of oncebus.
func TestOutcomeIsRestored(t *testing.T) {
	c := testClient(t)
	letterOf := func(token string) *Letter {
		return letter(headers("x", "1"), own(wire.ReasonOutcome+"the lease is over", "outcomes/1/5", wire.HeaderRoute, "operations", wire.HeaderClaimToken, token, wire.HeaderOutcome, "completed")...)
	}
	l := letterOf("token")
	rec, skip := c.restore(l, nil)
	if want := headers("x", "1", wire.HeaderClaimToken, "token", wire.HeaderOutcome, "completed", wire.HeaderRedriveAttempt, "1"); skip != nil || fmt.Sprint(rec.Headers) != fmt.Sprint(want) {
		t.Errorf("%+v, headers %v, want %v", skip, rec.Headers, want)
	}
	if l.Class != Outcome || rec.Topic != "outcomes" || rec.Partition != 1 {
		t.Errorf("class %s to %s/%d", l.Class, rec.Topic, rec.Partition)
	}
	if _, skip := c.restore(letterOf(string(make([]byte, wire.OutcomeHeaderMax))), nil); skip == nil || skip.Cause != NotWhole {
		t.Errorf("a token that may be shortened: %+v", skip)
	}
}

// TestOrderIsThatOfTheRawPartitions: whatever the order of dead letters, the records of a raw
// partition are planned in its order, and nothing is planned twice.
func TestOrderIsThatOfTheRawPartitions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var entries []entry
		for n := range rng.IntN(60) {
			entries = append(entries, entry{at: Position{"dead", int32(rng.IntN(3)), int64(n)}, origin: Position{"raw", int32(rng.IntN(3)), int64(rng.IntN(40))}})
		}
		before := len(entries)
		order(entries)
		last, seen := map[int32]int64{}, map[Position]bool{}
		for _, e := range entries {
			if at, ok := last[e.origin.Partition]; ok && at > e.origin.Offset {
				t.Fatalf("offset %d of raw/%d comes after %d", e.origin.Offset, e.origin.Partition, at)
			}
			last[e.origin.Partition], seen[e.at] = e.origin.Offset, true
		}
		if len(seen) != before || len(entries) != before {
			t.Fatalf("%d of %d entries", len(seen), before)
		}
	}
}

func TestBatchesAreBounded(t *testing.T) {
	p := &plan{}
	for _, bytes := range []int64{1, batchBytesMax, 5, 5, 2 * batchBytesMax, 1, 1, 1} {
		p.entries = append(p.entries, entry{bytes: bytes})
	}
	var sizes []int
	for len(p.entries) > 0 {
		sizes = append(sizes, len(p.batch(2)))
	}
	if want := []int{1, 1, 2, 1, 2, 1}; !slices.Equal(sizes, want) {
		t.Errorf("batches of %v records, want %v", sizes, want)
	}
}

// TestProgressIsASet: progress names offsets, in any order, and its records restore it.
func TestProgressIsASet(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	p, want := newProgress(), map[Position]State{}
	topics := map[string][16]byte{"a": {1}, "b": {2}}
	changed := map[chunkID]bool{}
	for range 3000 {
		at := Position{[]string{"a", "b"}[rng.IntN(2)], int32(rng.IntN(2)), int64(rng.IntN(3 * chunkOffsets))}
		to := []State{Open, Redriven, Dropped}[rng.IntN(3)]
		changed[p.set(at.Topic, topics[at.Topic], at.Partition, at.Offset, to)] = true
		want[at] = to
	}
	read := newProgress()
	for id := range changed {
		if err := read.add(p.record("manifest", id)); err != nil {
			t.Fatal(err)
		}
	}
	for _, progress := range []*Progress{p, read} {
		for at, state := range want {
			if got := progress.Of(topics[at.Topic], at.Partition, at.Offset); got != state {
				t.Fatalf("%v is %v, want %v", at, got, state)
			}
		}
		if got := progress.Of([16]byte{9}, 0, 5); got != Open {
			t.Errorf("an offset of a recreated topic is %v", got)
		}
	}
	for _, id := range read.below(topics["a"], 0, chunkOffsets+1) {
		delete(read.chunks, id)
		if err := p.add(read.record("manifest", id)); err != nil || p.chunks[id] != nil {
			t.Errorf("the tombstone of %v removed nothing, %v", id, err)
		}
		if id.first != 0 {
			t.Errorf("chunk %v is not below offset %d", id, chunkOffsets+1)
		}
	}
	for _, key := range []string{"dead-letters/zz/0/0", "dead-letters/00/0/0", "dead-letters/", fmt.Sprintf("dead-letters/%032x/0/1", 1)} {
		if err := p.add(&kgo.Record{Key: []byte(key), Value: []byte("{}")}); err == nil {
			t.Errorf("record key %s was read", key)
		}
	}
}

func TestFilter(t *testing.T) {
	routes := testClient(t).routes
	l := letter(nil, own("no key: field id is missing", "signals.raw/0/1", wire.HeaderKey, "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb")...)
	for name, test := range map[string]struct {
		filter Filter
		want   bool
	}{
		"all":            {Filter{}, true},
		"route":          {Filter{Route: "signals"}, true},
		"another route":  {Filter{Route: "operations"}, false},
		"class":          {Filter{Reason: "missing_key"}, true},
		"another class":  {Filter{Reason: "invalid"}, false},
		"part of reason": {Filter{Reason: "field id"}, true},
		"no part":        {Filter{Reason: "field x"}, false},
		"topic":          {Filter{Topic: "signals.raw"}, true},
		"another topic":  {Filter{Topic: "signals"}, false},
		"since":          {Filter{Since: 1000}, true},
		"later":          {Filter{Since: 1001}, false},
		"until":          {Filter{Until: 1001}, true},
		"earlier":        {Filter{Until: 1000}, false},
		"dedup key":      {Filter{Key: NewKeyFilter("CA978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", routes, nil)}, true},
		"id":             {Filter{Key: NewKeyFilter("a", routes, nil)}, true},
		"record key":     {Filter{Key: NewKeyFilter("k", routes, nil)}, true},
		"another key":    {Filter{Key: NewKeyFilter("b", routes, nil)}, false},
		"an empty key":   {Filter{Key: NewKeyFilter("", routes, nil)}, false},
	} {
		if got := test.filter.Selects(l); got != test.want {
			t.Errorf("%s: selected %v, want %v", name, got, test.want)
		}
	}
}

// TestMisfits: a record that its input would refuse, or delete before it is read, is not sent.
func TestMisfits(t *testing.T) {
	now := time.UnixMilli(10_000_000)
	wide := app.InputLimits{TopicLimits: app.TopicLimits{MaxBytes: 1000, BeforeMaxMS: app.Forever, AfterMaxMS: app.Forever}, RetentionMS: app.Forever}
	rec := &kgo.Record{Topic: "raw", Value: []byte("v"), Timestamp: now.Add(-time.Minute)}
	if skip := misfit(rec, &wide, now); skip != nil {
		t.Errorf("a record that fits: %+v", skip)
	}
	for name, narrow := range map[string]func(*app.InputLimits){
		"size":      func(l *app.InputLimits) { l.MaxBytes = 50 },
		"no key":    func(l *app.InputLimits) { l.Compacted = true },
		"too old":   func(l *app.InputLimits) { l.BeforeMaxMS = 59_000 },
		"retention": func(l *app.InputLimits) { l.RetentionMS = 59_000 },
	} {
		limits := wide
		narrow(&limits)
		if skip := misfit(rec, &limits, now); skip == nil || skip.Cause != Unfit {
			t.Errorf("%s: %+v", name, skip)
		}
	}
	young := wide
	young.BeforeMaxMS, young.RetentionMS = 1000, 1000
	if skip := misfit(&kgo.Record{Topic: "raw", Timestamp: time.UnixMilli(-1)}, &young, now); skip != nil {
		t.Errorf("a record without a timestamp is too old: %+v", skip)
	}
	ahead := wide
	ahead.AfterMaxMS = 1000
	if skip := misfit(&kgo.Record{Topic: "raw", Timestamp: now.Add(time.Minute)}, &ahead, now); skip == nil {
		t.Error("a timestamp ahead of the broker fits")
	}
}

func TestPositions(t *testing.T) {
	if at, err := ParsePosition("a.b/3/17"); err != nil || at != (Position{"a.b", 3, 17}) || at.String() != "a.b/3/17" {
		t.Errorf("%v, %v", at, err)
	}
	for _, text := range []string{"", "a", "a/1", "a/b/1", "a/1/b", "/1/1", "a/-1/1", "a/1/-1", "a/1/1/1", "a/4294967296/1"} {
		if at, err := ParsePosition(text); err == nil {
			t.Errorf("%q is %v", text, at)
		}
	}
}
