//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/state/failpoint"
)

// TestCrowdDeck: apps that run side by side get only faults that hit one app. One card starts a chain of kills and
// replaces the cards of the single kill points.
func TestCrowdDeck(t *testing.T) {
	all := selectFaults(allFaults, nil, 3, kafkatest.KafkaVersion)
	cards := crowdDeck(all)
	chains, others := 0, 0
	for _, f := range cards {
		switch {
		case f.chain:
			chains += f.weight
		case isPoint(f.name):
			t.Errorf("fault %s is in the deck by itself", f.name)
		default:
			others += max(1, f.weight)
		}
		if row := f.row; row == "b1" || row == "b2" || row == "b3" || row == "b4" || row == "p8" {
			t.Errorf("fault %s of row %s hits all apps", f.name, row)
		}
	}
	if chains < others/5 || chains > others/2 {
		t.Errorf("%d chains of kills and %d others", chains, others)
	}
	for _, f := range killsOnly(cards) {
		if f.row != "p1" {
			t.Errorf("fault %s of row %s among the kills", f.name, f.row)
		}
	}
	if network := selectFaults(all, []string{"n1"}, 1, kafkatest.KafkaVersion); !slices.Equal(killsOnly(crowdDeck(network)), network) {
		t.Error("a run without kills has not its own faults in every app")
	}
	names := map[string]bool{}
	for _, f := range crowdFaults(all) {
		names[f.name] = true
	}
	for _, point := range failpoint.Names {
		if !names[killPrefix+point] || !isPoint(killPrefix+point) {
			t.Errorf("the report has no row for the kills at %s", point)
		}
	}
}

// TestMixedDeck: a mixed deck has each fault as often as its weight says, and its order does not depend on rows.
func TestMixedDeck(t *testing.T) {
	d := &deck{faults: []*fault{{name: "one"}, {name: "three", weight: 3}}, mixed: true}
	rng := rand.New(rand.NewPCG(1, 2))
	drawn := map[string]int{}
	for range 8 {
		drawn[d.draw(rng).name]++
	}
	if drawn["one"] != 2 || drawn["three"] != 6 {
		t.Errorf("two decks have %v", drawn)
	}
}

// killReport returns a report that expects kills at each fault point.
func killReport(s settings) *report {
	s.apps = 2
	r := newReport(s)
	r.expect(pointFaults())
	return r
}

// TestQuota: a run ends when enough faults have struck and every fault point has killed enough processes. Until then
// the report names the fault points that have not.
func TestQuota(t *testing.T) {
	r := killReport(settings{minPoint: 2, minFaults: 40})
	for _, f := range r.ByFault {
		f.Struck, r.Faults = 2, r.Faults+2
	}
	if left := r.pointsLeft(); len(left) > 0 || r.quotaComplete() {
		t.Errorf("with %d faults: left %v, complete %v", r.Faults, left, r.quotaComplete())
	}
	r.Faults = 40
	if !r.quotaComplete() {
		t.Error("with 40 faults, two at each point, the quota is not complete")
	}
	r.result(&fault{row: "p1", name: "kill-after-end"}).Struck = 1
	if left := r.pointsLeft(); !slices.Equal(left, []string{"kill-after-end (1)"}) || r.quotaComplete() {
		t.Errorf("with one kill at after-end: left %v, complete %v", left, r.quotaComplete())
	}
	if err := r.verdict(&harness{}); err == nil || !strings.Contains(err.Error(), "kill-after-end (1)") {
		t.Errorf("the verdict is %v", err)
	}
	if r := killReport(settings{}); r.quotaComplete() || len(r.pointsLeft()) > 0 {
		t.Error("a run without -min-point has a quota")
	}
}

// TestNextPoint: the chosen points are the points with the fewest kills, where a process that is armed now counts as
// killed. No point is left out for long.
func TestNextPoint(t *testing.T) {
	r := killReport(settings{})
	rng := rand.New(rand.NewPCG(1, 2))
	rare := &fault{row: "p1", name: "kill-flush-written"}
	for _, f := range r.ByFault {
		f.Struck = 100
	}
	r.result(rare).Struck = 0
	chosen := map[string]int{}
	for range 300 {
		f := r.nextPoint(rng)
		chosen[f.name]++
		r.pointDone(f)
	}
	if n := chosen[rare.name]; n < 120 || n > 210 || len(chosen) != len(failpoint.Names) {
		t.Errorf("the rarest point was chosen %d times of 300: %v", n, chosen)
	}
	for range 3_000 { // all processes are armed at the same time
		chosen[r.nextPoint(rng).name]++
	}
	for name, n := range chosen {
		if n < 150 {
			t.Errorf("%s was chosen %d times", name, n)
		}
	}
}

// TestUncheckedFaults: faults of an epoch count as unchecked until the oracle has judged
// the epoch.
func TestUncheckedFaults(t *testing.T) {
	r := killReport(settings{minFaults: 1})
	h := &harness{journal: discard(t)}
	for _, name := range []string{"e1", "e1", "e2", "e3"} {
		k := &strike{epoch: &epoch{h: h, name: name}, fault: pointFaults()[0], began: time.Now()}
		r.struck(h, k, nil)
		r.struck(h, k, errNotStruck)
	}
	r.epoch(epochResult{Name: "e1", Report: "everything"})
	r.epoch(epochResult{Name: "e2"}) // its end failed
	if r.Faults != 4 || len(r.Unchecked) != 2 || r.Unchecked["e2"] != 1 || r.Unchecked["e3"] != 1 {
		t.Errorf("%d faults, unchecked %v", r.Faults, r.Unchecked)
	}
	if page := r.markdown(); !strings.Contains(page, "epoch e3 is not checked: 1 faults") || !strings.Contains(page, "| after-poll | 4 |") {
		t.Errorf("the page says\n%s", page)
	}
}

func discard(t *testing.T) *os.File {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

// TestReportIsWrittenAgain: a run writes its results so far into the same files each time, and leaves the files of
// earlier runs unchanged.
func TestReportIsWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	h := &harness{set: settings{results: dir, apps: 2}, began: time.Now()}
	first := killReport(h.set)
	for n := range 3 {
		first.Faults = n
		if err := first.write(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := killReport(h.set).write(h); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) != 2 {
		t.Fatalf("files %v, %v", files, err)
	}
	content, err := os.ReadFile(first.path + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(content, &got); err != nil || got.Faults != 2 || got.Apps != 2 {
		t.Errorf("read back %d faults, %d apps, %v", got.Faults, got.Apps, err)
	}
}

// TestHaltedRunDrawsNoFault: a run that is asked to end draws no more faults.
func TestHaltedRunDrawsNoFault(t *testing.T) {
	halt, stop := context.WithCancel(t.Context())
	h := &harness{ctx: t.Context(), halt: halt}
	r := killReport(settings{})
	if !h.goesOn(r) {
		t.Error("the run ends by itself")
	}
	stop()
	if h.goesOn(r) {
		t.Error("the run goes on")
	}
	h.halt = t.Context()
	h.violations = []violation{{"K1", "lost"}}
	if h.goesOn(r) {
		t.Error("the run goes on after a violation")
	}
}

func TestCrowdFlags(t *testing.T) {
	s, err := parseFlags([]string{"-apps", "8", "-rate", "480", "-min-faults", "5000", "-min-point", "200", "-seed", "3", "-lenient", "-epoch", "2m"})
	if err != nil || s.apps != 8 || s.minPoint != 200 || s.minFaults != 5000 {
		t.Errorf("settings %+v, %v", s, err)
	}
	want := "ONCEBUS_TEST_KAFKA=3.9.2 go run ./benchmarks/faults -duration 30m0s -seed 3 -nodes 1 -interval 6s -apps 8 -epoch 2m0s -rate 480 -min-faults 5000 -min-point 200 -lenient"
	if got := s.command("3.9.2"); got != want {
		t.Errorf("command %q, want %q", got, want)
	}
	for _, args := range [][]string{{"-apps", "0"}, {"-apps", "99"}, {"-apps", "9", "-rate", "8"}, {"-apps", "2", "-round", "rows"}, {"-apps", "2", "-scenario", "restart"}, {"-min-point", "-1"}} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

// TestFaultsThatTheDecksHadNotReached: a run may miss a fault only if the decks of its apps were not played far
// enough. The kills at fault points do not count for this.
func TestFaultsThatTheDecksHadNotReached(t *testing.T) {
	r := killReport(settings{})
	r.expect([]*fault{{row: "n1", name: "rare"}, {row: "n1", name: "frequent"}})
	for _, f := range r.ByFault {
		if isPoint(f.Name) {
			f.Struck, r.Faults = 100, r.Faults+100
		}
	}
	if err := r.verdict(&harness{}); err != nil {
		t.Errorf("after kills alone: %v", err)
	}
	r.result(&fault{row: "n1", name: "frequent"}).Struck = 60
	r.Faults += 60
	if err := r.verdict(&harness{}); err == nil || !strings.Contains(err.Error(), "fault n1 rare never struck") {
		t.Errorf("after 60 other faults: %v", err)
	}
}

// TestNotStruckIsNoFault: a kill whose fault point was not reached is counted separately.
func TestNotStruckIsNoFault(t *testing.T) {
	r := killReport(settings{})
	h := &harness{journal: discard(t)}
	k := &strike{epoch: &epoch{h: h, name: "e1"}, fault: pointFaults()[0], began: time.Now()}
	r.struck(h, k, errors.Join(errNotStruck))
	if r.Faults != 0 || r.NotStruck != 1 || len(r.Unchecked) != 0 {
		t.Errorf("%d faults, %d not struck, unchecked %v", r.Faults, r.NotStruck, r.Unchecked)
	}
}
