//go:build unix

package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/app"
)

// foundEvent is the JSON of get.
type foundEvent struct {
	Found bool
	Key   string
	First string
	Event *struct {
		At, Value string
		Time      int64
	}
	History *struct {
		Events []struct{ At, Verdict, Source string }
		Cut    string
	}
}

// TestSystemIngressGetFindsTheFirstEvent: from a 409 to the event, in the output, although
// the records of the repartition topic were deleted.
func TestSystemIngressGetFindsTheFirstEvent(t *testing.T) {
	byHTTP(t, "signals.yaml", strings.NewReplacer("duplicates: drop", "duplicates: forward"), []string{"signals.raw"}, func(t *testing.T, s *system, d *sender) {
		const first, byHash = `{"traceId":"t-1","n":1}`, `{"symbol":"AAPL","exchange":"NASDAQ","action":"buy","timestamp":1}`
		for _, other := range []string{`{"traceId":"t-0"}`, first, byHash, `{"traceId":"t-2"}`} {
			d.post(signalsURL, unsigned, other).is(other, http.StatusAccepted, accepted)
		}
		duplicate := d.post(signalsURL, unsigned, `{"traceId":"t-1","n":2}`).problem("a duplicate", http.StatusConflict, "duplicate")
		hashed := d.post(signalsURL, unsigned, byHash).problem("a duplicate by its details", http.StatusConflict, "duplicate")
		s.count("signals.unique", 6) // with the forwarded duplicates
		s.purgeJudged()
		for what, c := range map[string]struct {
			stdin string
			want  string
			args  []string
		}{
			"the key of the 409":         {"", first, []string{"--key", duplicate.Key}},
			"upper-case digits":          {"", first, []string{"--key", strings.ToUpper(duplicate.Key)}},
			"the raw id":                 {"", first, []string{"--key", "t-1"}},
			"the payload":                {first, first, nil},
			"the payload of a duplicate": {`{"traceId":"t-1","n":2}`, first, nil},
			"the key of a hash":          {"", byHash, []string{"--key", hashed.Key}},
		} {
			stdout, stderr, code := s.oncebus(c.stdin, append([]string{"get", "--route", "signals", "--json"}, c.args...)...)
			var got foundEvent
			if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != cli.ExitStopped {
				t.Fatalf("%s: %d %v\n%s%s", what, code, err, stdout, stderr)
			}
			if !got.Found || got.Event == nil || got.Event.Value != c.want || !strings.HasPrefix(got.Event.At, s.topic("signals.unique")+"/") {
				t.Errorf("%s: %s", what, stdout)
			}
		}
		people, _, _ := s.oncebus("", "get", "--route", "signals", "--key", "t-1")
		if !strings.Contains(people, "value             "+first+"\n") {
			t.Errorf("get for people:\n%s", people)
		}
		if without, _, code := s.oncebus("", "get", "--route", "signals", "--key", "t-1", "--event=false"); code != cli.ExitStopped || strings.Contains(without, "value ") {
			t.Errorf("get --event=false: %d\n%s", code, without)
		}
		if none, _, code := s.oncebus("", "get", "--route", "signals", "--key", "t-9"); code != cli.ExitStopped || !strings.Contains(none, "no row for key") {
			t.Errorf("get of an unknown id: %d\n%s", code, none)
		}
		s.purge(s.topic("signals.unique"))
		if gone, _, code := s.oncebus("", "get", "--route", "signals", "--key", "t-1"); code != cli.ExitStopped || !strings.Contains(gone, "event             not in topic") {
			t.Errorf("get after the output's retention: %d\n%s", code, gone)
		}
	})
}

// TestIngressGetFindsTheEventOfAnOrder: the key of an order does not name its task.
func TestIngressGetFindsTheEventOfAnOrder(t *testing.T) {
	inOneProcess(t, "orders.yaml", unchanged, []string{"orders.raw", "orders.outcomes"}, func(t *testing.T, s *system, d *sender) {
		const order = `{"account":"A","symbol":"X","side":"buy","quantity":"1","type":"MARKET","timestamp":1700000000000,"clientOrderId":"c","requestId":"r1"}`
		sign := withHMAC("ORDERS")
		if a := d.post("/orders", sign, order, async...); a.status != http.StatusAccepted {
			t.Fatal(a)
		}
		duplicate := d.post("/orders", sign, order).problem("a duplicate", http.StatusConflict, "in_progress")
		s.purgeJudged()
		stdout, stderr, code := s.oncebus("", "get", "--route", "orders", "--json", "--key", duplicate.Key)
		var got foundEvent
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != cli.ExitStopped || got.Event == nil || got.Event.Value != order || got.Key != duplicate.Key {
			t.Errorf("get: %d %v\n%s%s", code, err, stdout, stderr)
		}
		if h := got.History; h == nil || len(h.Events) != 2 || h.Events[1].Verdict != "in_progress" {
			t.Errorf("get lists the first order and its duplicate as %s", stdout)
		}
		// A retry just past the minute: its key has no row, but its event leads to the first one.
		const retry = `{"account":"A","symbol":"X","side":"buy","quantity":"1","type":"MARKET","timestamp":1700000045000,"clientOrderId":"c","requestId":"r2"}`
		adjacent := d.post("/orders", sign, retry).problem("a duplicate in the adjacent bucket", http.StatusConflict, "in_progress")
		if hinted, _, code := s.oncebus("", "get", "--key", adjacent.Key); code != cli.ExitStopped || !strings.Contains(hinted, "under the key of an adjacent bucket: pass the event") {
			t.Errorf("get by the key of an adjacent bucket: %d %s", code, hinted)
		}
		if found, stderr, code := s.oncebus(retry, "get", "--route", "orders"); code != cli.ExitStopped || !strings.Contains(found, "value             "+order+"\n") {
			t.Errorf("get by the event of an adjacent bucket: %d %s%s", code, found, stderr)
		}
		_, stderr, code = s.oncebus("", "get", "--route", "orders", "--key", "c")
		if code != cli.ExitWrong || !strings.Contains(stderr, "route orders has no key of that one id: its sources are order; pass the event, or its key of 64 hexadecimal digits") {
			t.Errorf("get by an id: %d %s", code, stderr)
		}
		_, stderr, code = s.oncebus("", "get", "--route", "orders", "--key", duplicate.Key, "--header", "a: b")
		if code != cli.ExitWrong || !strings.Contains(stderr, "leave FILE, --header and --record-key out") {
			t.Errorf("get by key and event: %d %s", code, stderr)
		}
	})
}

// TestSystemGetFromDuplicate: from a 409 and from a record in the duplicates topic to the first
// event, by one command each, after the internal topic was purged.
func TestSystemGetFromDuplicate(t *testing.T) {
	byHTTP(t, "signals.yaml", strings.NewReplacer("duplicates: drop", "duplicates: {to: APP.signals.duplicates}"), []string{"signals.raw"}, func(t *testing.T, s *system, d *sender) {
		const first = `{"traceId":"t-1","n":1}`
		for _, event := range []string{`{"traceId":"t-0"}`, first, `{"traceId":"t-2"}`} {
			d.post(signalsURL, unsigned, event).is(event, http.StatusAccepted, accepted)
		}
		conflict := d.post(signalsURL, unsigned, `{"traceId":"t-1","n":2}`).problem("a duplicate", http.StatusConflict, "duplicate")
		s.send("signals.raw", 0, time.Now(), `{"traceId":"t-1","n":3}`)
		duplicates := s.count("signals.duplicates", 2)
		unique := s.count("signals.unique", 3)
		s.purgeJudged()
		var output, conflicting, raw *kgo.Record
		for _, r := range unique {
			if string(r.Value) == first {
				output = r
			}
		}
		for _, r := range duplicates {
			if strings.Contains(string(r.Value), `"n":2`) {
				conflicting = r
			} else {
				raw = r
			}
		}
		record := func(r *kgo.Record) string { return fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset) }
		for what, args := range map[string][]string{
			"the key of the 409":              {"--key", conflict.Key},
			"the id":                          {"--id", "t-1"},
			"a record in duplicates, by HTTP": {"--record", record(conflicting)},
			"a record in duplicates":          {"--record", record(raw)},
			"the record in the output":        {"--record", record(output)},
			"the record in the input":         {"--record", headerOf(raw, "oncebus-source")},
			"pasted headers":                  {"--header", "oncebus-key: " + headerOf(raw, "oncebus-key"), "--header", "oncebus-route: signals", "--header", "oncebus-verdict: duplicate"},
		} {
			stdout, stderr, code := s.oncebus("", append([]string{"get", "--json"}, args...)...)
			var got foundEvent
			if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != cli.ExitStopped {
				t.Fatalf("%s: %d %v\n%s%s", what, code, err, stdout, stderr)
			}
			if !got.Found || got.Event == nil || got.Event.Value != first || got.Event.At != record(output) || got.Key != conflict.Key {
				t.Errorf("%s: %s", what, stdout)
			}
			if h := got.History; h == nil || len(h.Events) != 2 || h.Events[0].Verdict != "duplicate" || h.Events[1].At == h.Events[0].At || h.Cut != "" {
				t.Errorf("%s: the history is not that of two duplicates: %s", what, stdout)
			}
		}
		people, _, _ := s.oncebus("", "get", "--record", record(raw), "--history", "1")
		if !strings.Contains(people, "1 earlier record not shown") || !strings.Contains(people, record(raw)+" duplicate sent as "+headerOf(raw, "oncebus-source")) {
			t.Errorf("get for people:\n%s", people)
		}
		for args, want := range map[string]string{
			"--record x":                        "want TOPIC/PARTITION/OFFSET",
			"--record " + record(raw) + "9":     "so it has no record at",
			"--record " + raw.Topic + "/77/0":   "none with the number 77",
			"--record no.such.topic/0/0":        "no.such.topic",
			"--key " + conflict.Key + " --id x": "--key and --id exclude each other",
			"--id a --id b":                     "no key of these 2 ids",
		} {
			_, stderr, code := s.oncebus("", append([]string{"get"}, strings.Fields(args)...)...)
			if code == cli.ExitStopped || !strings.Contains(stderr, want) {
				t.Errorf("get %s: %d %s, want %q", args, code, stderr, want)
			}
		}
	})
}

// purge deletes all records of a topic.
func (s *system) purge(topic string) {
	s.t.Helper()
	ends, err := s.admin.ListEndOffsets(s.t.Context(), topic)
	if err != nil {
		s.t.Fatal(err)
	}
	offsets := kadm.Offsets{}
	ends.Each(func(o kadm.ListedOffset) { offsets.AddOffset(o.Topic, o.Partition, o.Offset, -1) })
	s.deleteRecords(offsets)
}

// purgeJudged deletes the records of the repartition topic that its tasks have judged. Behind them
// are the markers of transactions: a client that had not read these would miss records.
func (s *system) purgeJudged() {
	s.t.Helper()
	committed, err := s.admin.FetchOffsets(s.t.Context(), app.GroupName(s.app, app.StageDedup))
	if err != nil {
		s.t.Fatal(err)
	}
	offsets := kadm.Offsets{}
	committed.Each(func(o kadm.OffsetResponse) {
		if o.Topic == s.app+"-repartition" && o.At > 0 {
			offsets.AddOffset(o.Topic, o.Partition, o.At, -1)
		}
	})
	s.deleteRecords(offsets)
}

func (s *system) deleteRecords(offsets kadm.Offsets) {
	s.t.Helper()
	deleted, err := s.admin.DeleteRecords(s.t.Context(), offsets)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestSystemIngressGetCountsHits: with count_hits the row of a key has how many duplicates came, by HTTP and from
// Kafka, also after a restart, and self-audit finds nothing wrong with it.
func TestSystemIngressGetCountsHits(t *testing.T) {
	inOneProcess(t, "signals.yaml", strings.NewReplacer("duplicates: drop", "count_hits: true\n    duplicates: drop"), []string{"signals.raw"}, func(t *testing.T, s *system, d *sender) {
		began := time.Now().Add(-time.Minute).UnixMilli()
		for _, id := range []string{"t-1", "t-2", "t-1", "t-1"} {
			d.post(signalsURL, unsigned, fmt.Sprintf(`{"traceId":%q}`, id))
		}
		s.send("signals.raw", 0, time.Now(), `{"traceId":"t-1","from":"Kafka"}`)
		s.count("signals.unique", 2)
		hits := func() (n [2]uint64) {
			t.Helper()
			for i, id := range []string{"t-1", "t-2"} {
				stdout, stderr, code := s.oncebus("", "get", "--route", "signals", "--json", "--key", id)
				var got struct {
					Found   bool
					Hits    uint64
					LastHit int64 `json:"last_hit"`
				}
				if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != cli.ExitStopped || !got.Found || (got.Hits > 0) != (got.LastHit > began) {
					t.Fatalf("get: %d %v\n%s%s", code, err, stdout, stderr)
				}
				n[i] = got.Hits
			}
			return n
		}
		if got := hits(); got != [2]uint64{3, 0} {
			t.Errorf("hits %v, want 3 and 0", got)
		}
		people, _, _ := s.oncebus("", "get", "--route", "signals", "--key", "t-1")
		if !strings.Contains(people, "hits              3 duplicates, the last at ") {
			t.Errorf("get for people:\n%s", people)
		}
		if audit := s.selfAudit(cli.ExitStopped); audit.Verdict != "held" || len(audit.Findings) > 0 {
			t.Errorf("self-audit: %+v", audit)
		}
		s.service.kill()
		s.service = s.start("a", s.settings...)
		s.service.awaitReady()
		s.send("signals.raw", 0, time.Now(), `{"traceId":"t-1","from":"Kafka, later"}`)
		if got := hits(); got != [2]uint64{4, 0} {
			t.Errorf("hits after a kill %v, want 4 and 0", got)
		}
		s.count("signals.unique", 2)
	})
}
