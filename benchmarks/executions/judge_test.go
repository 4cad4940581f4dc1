//go:build unix

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// played returns a run of two operations and a duplicate, in which everything was executed once and answered once.
func played() (map[string]executions, *senders, *replies) {
	first, second := request{operation: 1, id: "first-1"}, request{operation: 2, id: "first-2", byHTTP: true}
	again := request{operation: 1, id: "again-1", duplicate: true}
	out := &senders{
		sent: []request{first, second, again}, byTopic: map[string]string{"ops.raw/0/0": "first-1", "ops.raw/0/1": "again-1"},
		responses: map[string]int{}, answered: 1,
	}
	log := &replies{
		bySource: map[string]int{"ops.raw/0/0": 1, "ops.raw/0/1": 1, "app-repartition/0/5": 1}, kinds: map[string]int{},
		requests: map[string]bool{"first-1": true, "first-2": true, "again-1": true},
		results:  map[string]string{"first-1": first.result(), "first-2": second.result(), "again-1": first.result()}, runs: 2,
	}
	return map[string]executions{"op-1": {"a": 1}, "op-2": {"b": 1}}, out, log
}

// TestJudge: the judge accepts a run without a defect, and names each kind of defect.
func TestJudge(t *testing.T) {
	fenced := settings{fenced: true}
	if found := judge(played()); found.err(fenced) != nil || found.Operations != 2 || found.Duplicates != 1 || found.Executed != 2 || found.Results != 3 {
		t.Fatalf("%+v", found)
	} else if found.err(settings{}) == nil {
		t.Error("a run without fences and without doubles counts as evidence")
	}
	for want, plant := range map[string]func(counted map[string]executions, out *senders, log *replies){
		"operation op-2 was not executed":                    func(counted map[string]executions, _ *senders, _ *replies) { delete(counted, "op-2") },
		"operation op-1 was executed 2 times, as 1 attempts": func(counted map[string]executions, _ *senders, _ *replies) { counted["op-1"]["a"] = 2 },
		"operation op-1 was executed 2 times, as 2 attempts": func(counted map[string]executions, _ *senders, _ *replies) { counted["op-1"]["c"] = 1 },
		"request again-1 has no reply":                       func(_ map[string]executions, _ *senders, log *replies) { delete(log.requests, "again-1") },
		"event ops.raw/0/1, has no reply":                    func(_ map[string]executions, _ *senders, log *replies) { delete(log.bySource, "ops.raw/0/1") },
		"event app-repartition/0/5 has 2 replies":            func(_ map[string]executions, _ *senders, log *replies) { log.bySource["app-repartition/0/5"] = 2 },
		"request first-2 got the result":                     func(_ map[string]executions, _ *senders, log *replies) { log.results["first-2"] = "other" },
		"0 of 1 requests by HTTP have a response":            func(_ map[string]executions, out *senders, _ *replies) { out.answered = 0 },
		"dead letter": func(_ map[string]executions, _ *senders, log *replies) { log.wrong = []string{"dead letter"} },
	} {
		counted, out, log := played()
		plant(counted, out, log)
		found := judge(counted, out, log)
		if len(found.Wrong) != 1 || !strings.Contains(found.Wrong[0], want) || found.err(fenced) == nil {
			t.Errorf("%s: found %q", want, found.Wrong)
		}
		if doubled := strings.Contains(want, "as 2 attempts"); doubled != (found.err(settings{}) == nil) {
			t.Errorf("%s: without fences: %v", want, found.err(settings{}))
		}
	}
}

// TestCountExecutions: each line with the state done counts, over all journals. A line that is still being written
// does not count.
func TestCountExecutions(t *testing.T) {
	dir := t.TempDir()
	result := func(n int) string { return "eyJhY2NvdW50Ijoib3At" + []string{"MSJ9", "MiJ9"}[n-1] } // {"account":"op-n"}
	for name, text := range map[string]string{
		"one": `{"id":"executor-x"}` + "\n" + `{"state":"asked","token":"a"}` + "\n" +
			fmt.Sprintf(`{"state":"done","token":"a","result":%q}`, result(1)) + "\n" + `{"state":"sent","token":"a"}` + "\n",
		"two": `{"id":"executor-y"}` + "\n" + fmt.Sprintf(`{"state":"done","token":"b","result":%q}`, result(1)) + "\n" +
			fmt.Sprintf(`{"state":"done","token":"c","result":%q}`, result(2)) + "\n" + `{"state":"done","tok`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	counted, err := countExecutions([]string{filepath.Join(dir, "one"), filepath.Join(dir, "two"), filepath.Join(dir, "missing")})
	if err != nil {
		t.Fatal(err)
	}
	if len(counted) != 2 || len(counted["op-1"]) != 2 || counted["op-1"].total() != 2 || counted["op-2"].total() != 1 {
		t.Errorf("counted %v", counted)
	}
}

// TestPlan: each duplicate comes after its operation and within the run, and there are as many duplicates and HTTP
// requests as the settings say.
func TestPlan(t *testing.T) {
	s := settings{operations: 10_000, duplicates: 30, duration: time.Hour}
	all := plan(s, rand.New(rand.NewPCG(1, 1)))
	first, http, duplicates := map[int]time.Duration{}, 0, 0
	for _, q := range all {
		if q.byHTTP {
			http++
		}
		if q.duplicate {
			duplicates++
			if at, sent := first[q.operation]; !sent || at > q.due || q.due >= s.duration {
				t.Fatalf("duplicate at %v, its operation at %v", q.due, at)
			}
			continue
		}
		first[q.operation] = q.due
	}
	if len(first) != s.operations || duplicates < 2700 || duplicates > 3300 || http < 6000 || http > 7000 {
		t.Errorf("%d operations, %d duplicates, %d of %d by HTTP", len(first), duplicates, http, len(all))
	}
	if !slices.IsSortedFunc(all, func(a, b request) int { return int(a.due - b.due) }) {
		t.Error("not in the order of time")
	}
}
