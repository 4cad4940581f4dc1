package oracle

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// claimLog builds the logs of a run, of one partition and one key.
type claimLog struct {
	live map[string][]Record
	now  int64
	n    int64

	after int64 // event time of the next event, ms after the first one
	id    byte  // of its key
	from  int32 // partition of its source
}

func (l *claimLog) add(topic string, key, value string, headers ...string) {
	r := Record{Topic: topic, Offset: int64(len(l.live[topic])), Timestamp: l.now, Key: []byte(key)}
	if value != "" {
		r.Value = []byte(value)
	}
	for n := 0; n < len(headers); n += 2 {
		r.Headers = append(r.Headers, Header{headers[n], []byte(headers[n+1])})
	}
	l.live[topic] = append(l.live[topic], r)
}

// route adds a record of the repartition topic. rest has the outcome, or what follows the
// key of an event.
func (l *claimLog) route(key, value string, flags uint64, rest []byte) {
	l.n++
	var event []byte
	if flags&flagOutcome == 0 {
		event = append(binary.AppendVarint(nil, l.after), l.id)
		event = append(event, make([]byte, 47)...)
	}
	l.add("repartition", string(envelopeBytes(flags|flagRecordKey, "ops", position{0, l.from, l.n}, 1000, event, rest, []byte(key))), value)
}

func (l *claimLog) event(key string) {
	l.route(key, "", 0, nil)
}

// outcome adds an outcome of the claim that the record at offset first made.
func (l *claimLog) outcome(key string, kind, first, attempt byte, value string) {
	raw := append(make([]byte, 18), 0, 0, 0, first, attempt, 0, 0, 0, 0)
	token := base64.RawURLEncoding.EncodeToString(raw)
	l.route(key, value, flagOutcome, append([]byte{kind, byte(len(token))}, token...))
}

// ask adds a start or renewal of the claim that the record at offset first made.
func (l *claimLog) ask(key string, kind, first, attempt byte, id string) {
	raw := append(make([]byte, 18), 0, 0, 0, first, attempt, 0, 0, 0, 0)
	token := base64.RawURLEncoding.EncodeToString(raw)
	tail := append([]byte{kind, byte(len(token))}, token...)
	l.route(key, "", flagOutcome, append(append(tail, byte(len(id))), id...))
}

func (l *claimLog) answer(key, kind, answer, attempt, id, startedBy string) {
	l.add("answers", key, "", "oncebus-outcome", kind, "oncebus-answer", answer, "oncebus-attempt", attempt, "oncebus-start-id", id, "oncebus-started-by", startedBy)
}

// notice adds an answer superseded without a question.
func (l *claimLog) notice(first, attempt byte) {
	raw := append(make([]byte, 18), 0, 0, 0, first, attempt, 0, 0, 0, 0)
	l.add("answers", "", "", "oncebus-claim-token", base64.RawURLEncoding.EncodeToString(raw), "oncebus-answer", "superseded")
}

// TestClaimsCheckerForetellsStarts: one start id gets the grant of an attempt, and no lease
// ends it then. A renewal moves the lease.
func TestClaimsCheckerForetellsStarts(t *testing.T) {
	rules := *testClaims
	rules.Answers, rules.Wait = "answers", 0
	const start, renew = kindStart, kindStart + 1
	asked := func() *claimLog {
		l := &claimLog{live: map[string][]Record{}, now: 1000}
		l.event("a")
		l.run("a", "1")
		l.now += 90
		l.ask("q1", renew, 1, 1, "")
		l.answer("q1", "renew", "granted", "1", "", "")
		l.now += 90
		l.event("b")
		l.reply("b", "in_progress", "in_progress", "1", "")
		l.now += 11
		l.event("c")
		l.run("c", "2")
		l.notice(1, 1)
		l.ask("q2", start, 1, 1, "x")
		l.answer("q2", "start", "superseded", "2", "x", "")
		for range 2 {
			l.ask("q3", start, 1, 2, "y")
			l.answer("q3", "start", "granted", "2", "y", "y")
		}
		l.ask("q4", start, 1, 2, "z")
		l.answer("q4", "start", "superseded", "2", "z", "y")
		l.now += 500
		l.event("d")
		l.reply("d", "in_progress", "in_progress", "2", "")
		l.live["log"] = []Record{{Topic: "log", Key: make([]byte, 16), Value: append(binary.AppendVarint([]byte{1, 2, 0, 1}, 1000), 0, 0, 1, 2)}}
		return l
	}
	if wrong, counts := CheckClaims(&rules, asked().live); len(wrong) > 0 || counts["start granted"] != 2 || counts["start superseded"] != 2 || counts["renew granted"] != 1 {
		t.Fatalf("%q, %v", wrong, counts)
	}
	for name, change := range map[string]func(*claimLog){
		"two start ids got the grant":           func(l *claimLog) { l.live["answers"][5].Headers[1].Value = []byte("granted") },
		"an old attempt was granted":            func(l *claimLog) { l.live["answers"][2].Headers[1].Value = []byte("granted") },
		"an answer is missing":                  func(l *claimLog) { l.live["answers"] = l.live["answers"][1:] },
		"a superseded attempt is not announced": func(l *claimLog) { l.live["answers"] = slices.Delete(l.live["answers"], 1, 2) },
		"another attempt is announced":          func(l *claimLog) { l.notice(1, 2) },
		"a started attempt ran again":           func(l *claimLog) { l.run("d", "3") },
		"a renewed lease ended":                 func(l *claimLog) { l.run("b", "2") },
	} {
		l := asked()
		change(l)
		if wrong, _ := CheckClaims(&rules, l.live); len(wrong) == 0 {
			t.Errorf("%s: nothing is found", name)
		}
	}
}

func (l *claimLog) run(key, attempt string) {
	l.add("run", key, "", "oncebus-verdict", "unique", "oncebus-attempt", attempt)
}

func (l *claimLog) reply(key, verdict, status, attempt, value string) {
	l.add("replies", key, value, "oncebus-verdict", verdict, "oncebus-claim-status", status, "oncebus-attempt", attempt)
}

var testClaims = &Claims{Repartition: "repartition", Changelog: "log", Output: "run", Replies: "replies", Dead: "dead", Window: 1 << 30, Skew: 1 << 30, Lease: 100, Wait: 1, ByClock: true}

// goodRun is a key's life: claimed, one duplicate waits and one gets a reply, failed,
// claimed again, the lease over, completed, an old outcome refused, replayed.
func goodRun() *claimLog {
	l := &claimLog{live: map[string][]Record{}, now: 1000}
	l.event("a")
	l.run("a", "1")
	l.event("b") // waits for the outcome
	l.event("c")
	l.reply("c", "in_progress", "in_progress", "1", "")
	l.outcome("o1", 2, 1, 1, "no")
	l.reply("a", "unique", "failed", "1", "no")
	l.reply("b", "replayed", "failed", "1", "no")
	l.event("d")
	l.run("d", "2")
	l.now += 101
	l.event("e")
	l.run("e", "3")
	l.outcome("o2", 1, 5, 2, "old")
	l.add("dead", "o2", "old", "oncebus-verdict", "invalid")
	l.outcome("o3", 1, 5, 3, "yes")
	l.reply("d", "replayed", "completed", "3", "yes")
	l.reply("e", "unique", "completed", "3", "yes") // its event was dispatched as the attempt
	l.outcome("o4", 1, 5, 3, "yes")                 // twice is once
	l.outcome("o5", 1, 5, 3, "no")                  // executed twice
	l.add("dead", "o5", "no", "oncebus-verdict", "invalid")
	l.event("f")
	l.reply("f", "replayed", "completed", "3", "yes")
	row := append(binary.AppendVarint([]byte{1, 2, 0, 3}, 1000), 0, 0, 5, 3)
	l.live["log"] = []Record{{Topic: "log", Key: make([]byte, 16), Value: row}}
	return l
}

// TestClaimsCheckerTimesLeases: a lease runs from the dispatch of its
// event, and again from the start of the task.
func TestClaimsCheckerTimesLeases(t *testing.T) {
	for _, c := range []struct {
		header string // oncebus-lease of the checkpoint after both events
		again  bool
		wrong  string
	}{
		{header: "", again: true},
		{header: "1000 0", again: true},
		{header: "1001 0"},                 // dispatched a moment later
		{header: "1000 1000", again: true}, // the task started then
		{header: "1101 1001"},              // the task started a moment later
		{header: "1100 1101", wrong: "the task started after the transaction began"},
		{header: "soon", wrong: "oncebus-lease is"},
	} {
		l := &claimLog{live: map[string][]Record{}, now: 1000}
		l.event("a")
		l.run("a", "1")
		l.now += 101
		l.event("b")
		attempt := byte(1)
		if c.again {
			attempt = 2
			l.run("b", "2")
		}
		row := append(binary.AppendVarint([]byte{1, 2, 0, 1}, 1000), 0, 0, 1, attempt)
		l.live["log"] = []Record{{Topic: "log", Key: make([]byte, 16), Value: row}}
		if c.header != "" {
			l.add("log", "checkpoint", string(binary.AppendVarint([]byte{3, 0}, 2))+"\x00\x02\x00", "oncebus-lease", c.header)
		}
		wrong, _ := CheckClaims(testClaims, l.live)
		if len(wrong) > 0 != (c.wrong != "") || !strings.Contains(strings.Join(wrong, "\n"), c.wrong) {
			t.Errorf("leases by %q: %q, want %q", c.header, wrong, c.wrong)
		}
	}
}

// TestClaimsCheckerFindsDefects: it accepts a correct run, and finds each
// record that is missing, repeated or changed.
func TestClaimsCheckerFindsDefects(t *testing.T) {
	if wrong, emitted := CheckClaims(testClaims, goodRun().live); len(wrong) > 0 || emitted["replies"] != 6 {
		t.Fatalf("%v: %s", emitted, strings.Join(wrong, "\n"))
	}
	for _, topic := range []string{"run", "replies", "dead", "log"} {
		for n := range goodRun().live[topic] {
			for name, plant := range map[string]func([]Record) []Record{
				"missing": func(all []Record) []Record { return slices.Delete(all, n, n+1) },
				"doubled": func(all []Record) []Record {
					twin := all[n]
					if topic == "log" { // a row of a key without an event
						twin.Key = slices.Repeat([]byte{7}, 16)
					}
					return append(all, twin)
				},
				"changed": func(all []Record) []Record {
					r := &all[n]
					switch topic {
					case "replies":
						r.Value = append([]byte("x"), r.Value...)
					case "log":
						r.Value = []byte{3, 0, 0, 1, 0, 0}
					default:
						r.Headers = nil
					}
					return all
				},
			} {
				l := goodRun()
				l.live[topic] = plant(l.live[topic])
				if wrong, _ := CheckClaims(testClaims, l.live); len(wrong) == 0 {
					t.Errorf("%s %d %s: no finding", topic, n, name)
				}
			}
		}
	}
	l := goodRun()
	l.live["repartition"][0].Key = nil
	if wrong, _ := CheckClaims(testClaims, l.live); !strings.Contains(fmt.Sprint(wrong), "no envelope") {
		t.Errorf("a record without an envelope: %v", wrong)
	}
}

// TestClaimsCheckerRepliesWithoutAClaim: late and invalid events get a reply each, and a late
// one whose claim is stored gets its result.
func TestClaimsCheckerRepliesWithoutAClaim(t *testing.T) {
	claims := *testClaims
	claims.Window, claims.Grace, claims.Skew = 100, 10, 500
	play := func() *claimLog {
		l := &claimLog{live: map[string][]Record{}, now: 1000}
		l.event("a")
		l.run("a", "1")
		l.outcome("o", 1, 1, 1, "yes")
		l.reply("a", "unique", "completed", "1", "yes")
		l.id, l.after = 1, 501
		l.event("future")
		l.add("dead", "future", "", "oncebus-verdict", "invalid")
		l.reply("future", "invalid", "", "0", "")
		l.after = 111
		l.event("tick")
		l.run("tick", "1")
		l.id, l.after = 0, 0
		l.event("retry")
		l.reply("retry", "replayed", "completed", "1", "yes")
		l.id = 2
		l.event("late")
		l.add("dead", "late", "", "oncebus-verdict", "late")
		l.reply("late", "late", "", "0", "")
		l.id, l.after = 0, 205 // after the window
		l.event("b")
		l.run("b", "2")
		l.live["run"][2].Headers[0].Value = []byte("after_window")
		l.after = 100 // before that of b
		l.event("before")
		l.add("dead", "before", "", "oncebus-verdict", "late")
		l.reply("before", "late", "in_progress", "2", "")
		one := append(binary.AppendVarint([]byte{1, 2, 0, 1}, 1205), 0, 0, 7, 2)
		two := append(binary.AppendVarint([]byte{1, 2, 0, 1}, 1111), 0, 0, 4, 1)
		l.live["log"] = []Record{{Topic: "log", Key: make([]byte, 16), Value: one}, {Topic: "log", Key: append([]byte{1}, make([]byte, 15)...), Value: two}}
		return l
	}
	if wrong, counts := CheckClaims(&claims, play().live); len(wrong) > 0 || counts["late"] != 2 || counts["late duplicates"] != 1 {
		t.Fatalf("%v: %s", counts, strings.Join(wrong, "\n"))
	}
	for n := range play().live["replies"] {
		l := play()
		l.live["replies"] = slices.Delete(l.live["replies"], n, n+1)
		if wrong, _ := CheckClaims(&claims, l.live); len(wrong) != 1 {
			t.Errorf("without reply %d: %q", n, wrong)
		}
	}
}

// TestClaimsCheckerFollowsABypass: an event is forwarded without a claim, and a duplicate of one
// that has a claim. Later duplicates of both get forwarded, once no outcome can arrive.
func TestClaimsCheckerFollowsABypass(t *testing.T) {
	play := func() *claimLog {
		l := &claimLog{live: map[string][]Record{}, now: 1000}
		l.event("a")
		l.run("a", "1")
		l.event("twin") // waits
		forward := func(key string) {
			l.event(key)
			l.add("run", key, "", "oncebus-verdict", "bypassed")
			l.reply(key, "bypassed", "bypassed", "0", "")
		}
		forward("a again")
		l.id = 1
		forward("b")
		l.event("later")
		l.reply("later", "duplicate", "forwarded", "1", "")
		l.id = 0
		l.outcome("o1", 2, 1, 1, "no")
		l.reply("a", "unique", "forwarded", "1", "no")
		l.reply("twin", "replayed", "forwarded", "1", "no")
		l.outcome("o2", 3, 1, 1, "no")
		l.event("retry")
		l.reply("retry", "duplicate", "forwarded", "1", "")
		one := append(binary.AppendVarint([]byte{1, 2, 0, 2}, 1000), 0, 0, 1, 1)
		two := append(binary.AppendVarint([]byte{1, 2, 0, 2}, 1000), 0, 0, 4, 1)
		checkpoint := binary.AppendVarint([]byte{3, flagBypassed}, 2)
		l.live["log"] = []Record{
			{Topic: "log", Key: []byte("checkpoint"), Value: append(checkpoint, 0, 2, 0, 1, 0, 4)},
			{Topic: "log", Key: make([]byte, 16), Value: one}, {Topic: "log", Key: append([]byte{1}, make([]byte, 15)...), Value: two},
		}
		return l
	}
	if wrong, counts := CheckClaims(testClaims, play().live); len(wrong) > 0 || counts["bypassed"] != 2 || counts["of a forwarded one"] != 2 {
		t.Fatalf("%v: %s", counts, strings.Join(wrong, "\n"))
	}
	for n := range play().live["replies"] {
		l := play()
		l.live["replies"] = slices.Delete(l.live["replies"], n, n+1)
		if wrong, _ := CheckClaims(testClaims, l.live); len(wrong) != 1 {
			t.Errorf("without reply %d: %q", n, wrong)
		}
	}
}

// claimStory is the story with an event of claim mode and its outcome.
func claimStory() *scenario {
	w := story()
	w.cfg.Topics["ops.raw"] = 5
	w.cfg.Claims = []Claims{{Route: "ops", NamespaceID: 3, Window: window, Grace: grace, Skew: skew, Output: "ops.run", Replies: "ops.replies"}}
	s := Sent{Route: "ops", ID: idAt(0, "op"), Record: Record{
		Topic: "ops.raw", Partition: 1, Timestamp: base + 6000, Key: []byte("r"), Headers: []Header{{"x", nil}, {"oncebus-verdict", []byte("forged")}},
	}}
	w.h.Sent = append(w.h.Sent, s)
	r := w.repartition(s, 6000)
	w.emit(s, "ops.run")
	row := append(binary.AppendVarint([]byte{1, 2, 3, 1}, s.Timestamp), 5, 1, 0, 1)
	d := digestOf("ops", s.ID)
	w.append(Record{Topic: w.cfg.Changelog, Timestamp: r.Timestamp, Key: d, Value: row})
	w.rows[0][string(d)] = row
	w.seen(r, 3, s.Timestamp)
	outcome := w.append(Record{Topic: w.cfg.Repartition, Key: []byte{envelopeVersion, flagOutcome}})
	w.seen(outcome, 3, 0)
	w.emit(s, "ops.replies")
	w.commit(0)
	return w
}

// TestClaimsAndOtherRoutes: Check leaves the content of claims to CheckClaims, and
// checks their stream time, stores and readings.
func TestClaimsAndOtherRoutes(t *testing.T) {
	w := claimStory()
	if report, violations := Check(w.cfg, w.end()); len(violations) > 0 || report.Routed != 16 || report.Sent != 17 {
		t.Fatal(report, ids(t, violations))
	}
	w = claimStory()
	w.append(Record{Topic: w.cfg.Repartition, Key: []byte{envelopeVersion, flagProgress}, Value: []byte{0, 0}})
	if _, violations := Check(w.cfg, w.end()); len(violations) > 0 {
		t.Fatal("a progress record after the last checkpoint:", ids(t, violations))
	}
	for name, c := range map[string]struct {
		want  string
		plant func(w *scenario)
	}{
		"lost": {"K2", func(w *scenario) {
			w.h.Sent = append(w.h.Sent, Sent{Route: "ops", ID: "x", Record: Record{Topic: "ops.raw", Offset: 9}})
		}},
		"routed twice": {"K1", func(w *scenario) {
			s := w.h.Sent[len(w.h.Sent)-1]
			w.seen(w.repartition(s, 6001), 3, s.Timestamp)
			w.commit(0)
		}},
		"a stream time too early":   {"K5", func(w *scenario) { w.times[0][3]--; w.commit(0) }},
		"a store without its claim": {"K5", func(w *scenario) { w.rows[0] = map[string][]byte{}; w.times[0][1]++; w.commit(0) }},
		"an aborted reply seen":     {"K7", func(w *scenario) { w.end().Final["ops.replies"] = nil }},
	} {
		w := claimStory()
		if c.plant(w); w.h.Final == nil {
			w.end()
		}
		if _, violations := Check(w.cfg, w.h); !slices.Contains(ids(t, violations), c.want) {
			t.Errorf("%s: found %v, want %s", name, violations, c.want)
		}
	}
}

// eventOf adds an event with details.
func (l *claimLog) eventOf(key string, fingerprint byte) {
	details := []byte{fingerprint, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	l.route(key, "", flagDetails, details)
}

// TestClaimsCheckerForetellsCollisions: an event that collides runs once, under a second
// key. It accepts no run of its duplicate, and no claim under the first key.
func TestClaimsCheckerForetellsCollisions(t *testing.T) {
	rules := *testClaims
	rules.ForwardsCollisions, rules.Wait = true, 0
	sum := sha256.Sum256(append(append([]byte("oncebus collision\n"), make([]byte, 16)...), 2, 0, 0, 0, 0, 0, 0, 0))
	collided := func() *claimLog {
		l := &claimLog{live: map[string][]Record{}, now: 1000}
		l.eventOf("a", 1)
		l.run("a", "1")
		l.eventOf("b", 2)
		l.add("run", "b", "", "oncebus-verdict", "collision", "oncebus-attempt", "1")
		l.eventOf("c", 2)
		l.reply("c", "in_progress", "in_progress", "1", "")
		row := func(first byte) []byte {
			return append(append(binary.AppendVarint([]byte{1, 3, 0, 1}, 1000), 0, 0, first), 1, 0, 0, 0, 0, 0, 0, 0, 1)
		}
		l.live["log"] = []Record{{Topic: "log", Key: make([]byte, 16), Value: row(1)}, {Topic: "log", Key: sum[:16], Value: row(2)}}
		return l
	}
	if wrong, counts := CheckClaims(&rules, collided().live); len(wrong) > 0 || counts["collided"] != 1 {
		t.Fatalf("%q, %v", wrong, counts)
	}
	for name, change := range map[string]func(*claimLog){
		"the duplicate ran":          func(l *claimLog) { l.run("c", "2") },
		"the collision is unique":    func(l *claimLog) { l.live["run"][1].Headers[0].Value = []byte("unique") },
		"it has the first key's row": func(l *claimLog) { l.live["log"][1].Key = make([]byte, 16) },
	} {
		l := collided()
		change(l)
		if wrong, _ := CheckClaims(&rules, l.live); len(wrong) == 0 {
			t.Errorf("%s: nothing is found", name)
		}
	}
}
