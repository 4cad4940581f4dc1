package state

import (
	"testing"

	"oncebus/dedup"
)

// TestMergeKeepsNewest overwrites the same keys many times. A merge must retain one row of each key.
func TestMergeKeepsNewest(t *testing.T) {
	h := newHost(t, smallConfig())
	idle := watchIdle(h)
	s := mustOpen(t, h, t.TempDir())
	var m model
	for round := range 60 {
		applyRows(t, s, &m, 0, 100, func(r *dedup.Row) { r.Attempt = uint32(round) })
	}
	flush(t, s)
	awaitIdle(t, s, idle)
	// With full tables, each run has all keys and belongs to the top tier, which keeps most runs.
	most := topFanInFactor*h.cfg.MergeFanIn + h.cfg.MergeFanIn
	if st := s.Stats(); st.Runs > most || st.Rows > uint64(100*most) {
		t.Fatalf("%d rows in %d runs of 100 keys, 6,000 rows were written", st.Rows, st.Runs)
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}

// simulateMerges flushes runs of the given sizes and merges them by the default policy. It returns the greatest
// number of runs, and how often the policy wrote a row.
func simulateMerges(flushes int, rows func(i int) uint64) (mostRuns int, writes float64) {
	tiers := newTiers(DefaultConfig())
	var runs []*run
	var flushed, written uint64
	for i := range flushes {
		runs = append([]*run{{rows: rows(i)}}, runs...)
		flushed += rows(i)
		written += rows(i)
		for inputs := tiers.pickRuns(runs); inputs != nil; inputs = tiers.pickRuns(runs) {
			merged := &run{}
			for _, r := range inputs {
				merged.rows += r.rows
			}
			written += merged.rows
			runs = append([]*run{merged}, runs[len(inputs):]...)
		}
		mostRuns = max(mostRuns, len(runs))
	}
	return mostRuns, float64(written) / float64(flushed)
}

// TestMergePolicy bounds the number of runs and the writes of a row.
func TestMergePolicy(t *testing.T) {
	const flushRows = 256 << 10
	for _, c := range []struct {
		name      string
		rows      func(i int) uint64
		flushes   int
		runsMax   int
		writesMax float64
	}{
		{"full", func(int) uint64 { return flushRows }, 200, 3 + 15 + 4, 3},
		{"half", func(int) uint64 { return flushRows / 2 }, 400, 26, 3},
		{"eighth", func(int) uint64 { return flushRows / 8 }, 1000, 6 + 15 + 4, 4},
		{"tiny", func(int) uint64 { return 10 }, 5000, 20, 10},
		{"uneven", func(i int) uint64 { return []uint64{100, flushRows, 3000, 50, 90_000}[i%5] }, 2000, 16 + 16 + 4, 5},
		{"rising", func(i int) uint64 { return uint64(i+1) * 500 }, 500, 40, 5},
		{"falling", func(i int) uint64 { return uint64(500-i) * 500 }, 500, 40, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			runs, writes := simulateMerges(c.flushes, c.rows)
			if runs > c.runsMax {
				t.Errorf("up to %d runs, want at most %d", runs, c.runsMax)
			}
			if writes > c.writesMax {
				t.Errorf("a row is written %.1f times, want at most %.1f", writes, c.writesMax)
			}
		})
	}
}
