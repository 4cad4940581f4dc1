//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRealChangesAtSmallSize takes all steps of the part changes on a real broker, with few keys.
func TestRealChangesAtSmallSize(t *testing.T) {
	if testing.Short() {
		t.Skip("a real broker and two processes for a minute")
	}
	dir := t.TempDir()
	s := settings{
		what: []string{"changes"}, rounds: 1, results: dir, duplicates: 50, old: 10, commitInterval: 50 * time.Millisecond, flushAge: time.Minute,
		sessionTimeout: 6 * time.Second, rate: 2000, changesKeys: []int{5000}, changesShape: shape{2, 1, 4}, changesTraffic: time.Second,
	}
	if err := run(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	reports, err := filepath.Glob(filepath.Join(dir, "scale-changes-*.md"))
	if err != nil || len(reports) != 1 {
		t.Fatalf("reports %v: %v", reports, err)
	}
	text, err := os.ReadFile(reports[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"### 5 k seeded keys", "| seed | 5000 |", "| verify | ", "| true | ", "From 4 to 48 partitions", "| its return, standby |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the report has no %q:\n%s", want, text)
		}
	}
}

func TestSilencesLastUntilThePartitionAdvances(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	s := newSilences()
	for _, look := range []struct{ ms, offset int }{{0, 5}, {50, 5}, {70, 6}, {400, 6}} {
		s.see(at(look.ms), "out/0", int64(look.offset))
	}
	if got := s.until(at(500))["out/0"]; got != 430 {
		t.Errorf("silent for %v ms, want 430 with the present silence", got)
	}
	s.reset()
	s.see(at(600), "out/0", 7)
	s.see(at(610), "out/0", 8)
	if got := s.until(at(620))["out/0"]; got != 530 {
		t.Errorf("silent for %v ms after a reset, want the whole silence of 530", got)
	}
	s.reset()
	if got := longestOf(s.until(at(640))); got != 30 {
		t.Errorf("silent for %v ms, want 30", got)
	}
}

func TestSlowestSecond(t *testing.T) {
	var samples []sample
	for i, events := range []int64{0, 50, 100, 100, 110, 160, 210} { // each half a second
		samples = append(samples, sample{time.UnixMilli(int64(500 * i)), events})
	}
	if got := slowest(samples); got != 10 {
		t.Errorf("%v events in the slowest second, want 10", got)
	}
	if got := slowest(samples[:2]); got != 100 {
		t.Errorf("%v events/s in half a second, want 100", got)
	}
	if got := slowest(nil); got != 0 {
		t.Errorf("%v events/s without samples", got)
	}
}
