//go:build synctests

package processor_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// faultsMin is how many faults a seed must have to count.
const faultsMin = 20

// seenSeeds is the number of seeds from which on each of seenAlways must have occurred.
const seenSeeds = 100

var seenAlways = []string{"unique", "duplicate", "late", "invalid", "missing_key", "limited", "bypassed", "refused by a broker", "requests", "responses with a verdict"}

// TestSim runs whole processors, with their real stores, against an embedded
// cluster on a virtual network and a virtual clock, and breaks things in an
// order that a seed decides. Every seed runs in a process of its own, as many
// at a time as there are cores.
//
//	ONCEBUS_SIM_SEEDS  how many seeds to run, from ONCEBUS_SIM_FIRST (1) on; 300
//	ONCEBUS_SIM_HOURS  simulated hours of all seeds together; 0: a few minutes each
//	ONCEBUS_SIM_SEED   runs this seed only, in this process. Its settings and
//	                   faults are the same, the interleaving of goroutines is
//	                   not, so hunt with several runs
//	ONCEBUS_SIM_LOG    directory for the logs and histories of failed seeds
func TestSim(t *testing.T) {
	hours := simNumber(t, "ONCEBUS_SIM_HOURS", 0)
	if seed := simNumber(t, "ONCEBUS_SIM_SEED", 0); seed > 0 {
		simulate(t, uint64(seed), time.Duration(hours*float64(time.Hour)))
		return
	}
	seeds, first := int(simNumber(t, "ONCEBUS_SIM_SEEDS", 300)), int(simNumber(t, "ONCEBUS_SIM_FIRST", 1))
	if seeds < 1 {
		t.Fatal("ONCEBUS_SIM_SEEDS: no seeds, nothing would be shown")
	}
	each := hours / float64(seeds)
	began := time.Now()
	var mu sync.Mutex
	var total simReport
	done := 0
	next := make(chan int)
	var wg sync.WaitGroup
	for range goruntime.NumCPU() {
		wg.Go(func() {
			for seed := range next {
				report, problem := simProcess(seed, each)
				mu.Lock()
				total.add(report)
				if done++; done%50 == 0 && done < seeds {
					t.Logf("%d of %d seeds after %v: %s", done, seeds, time.Since(began).Round(time.Second), total.line())
				}
				if problem != "" {
					total.failed++
					t.Errorf("seed %d failed; replay with: make sim SEED=%d HOURS=%g\n%s", seed, seed, each, problem)
				}
				mu.Unlock()
			}
		})
	}
	for seed := first; seed < first+seeds; seed++ {
		next <- seed
	}
	close(next)
	wg.Wait()
	for _, what := range seenAlways {
		if seeds >= seenSeeds && total.Seen[what] == 0 {
			t.Errorf("%d seeds, and the oracle judged nothing of this kind: %s", seeds, what)
		}
	}
	t.Logf("simulated %d seeds in %v\n%s", seeds, time.Since(began).Round(time.Second), total.text())
}

func simNumber(t *testing.T, name string, otherwise float64) float64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || n < 0 {
		t.Fatalf("%s: %q is no number", name, s)
	}
	return n
}

// simReport is the result of one seed, or of all of them together.
type simReport struct {
	Faults     map[string]int // by kind, each of which took effect
	Hours      float64        // virtual
	Records    int            // raw records
	Violations int
	// Seen counts what the oracle judged: emitted records by verdict, requests by HTTP, their responses with a
	// verdict, bypassed records, and refusals by brokers.
	Seen map[string]int

	failed int           // seeds
	cpu    time.Duration // of all processes
}

func (r *simReport) add(o simReport) {
	if r.Faults == nil {
		r.Faults = map[string]int{}
	}
	for kind, n := range o.Faults {
		r.Faults[kind] += n
	}
	if r.Seen == nil {
		r.Seen = map[string]int{}
	}
	for what, n := range o.Seen {
		r.Seen[what] += n
	}
	r.Hours += o.Hours
	r.Records += o.Records
	r.Violations += o.Violations
	r.cpu += o.cpu
}

func (r *simReport) faults() int {
	n := 0
	for _, of := range r.Faults {
		n += of
	}
	return n
}

func (r *simReport) line() string {
	return fmt.Sprintf("faults %d, simulated hours %.1f, records %d, violations %d, failed seeds %d, CPU %v",
		r.faults(), r.Hours, r.Records, r.Violations, r.failed, r.cpu.Round(time.Second))
}

// text returns the report with the faults by kind.
func (r *simReport) text() string {
	var b strings.Builder
	fmt.Fprintln(&b, r.line())
	fmt.Fprintln(&b, "judged:", r.Seen)
	kinds := slices.SortedFunc(maps.Keys(r.Faults), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Faults[b], r.Faults[a]), cmp.Compare(a, b))
	})
	for _, kind := range kinds {
		fmt.Fprintf(&b, "  %-40s %d\n", kind, r.Faults[kind])
	}
	return b.String()
}

// simProcess runs one seed in a process of its own, and says what went wrong, if anything did. The process has one
// core: synctest bubbles are faster that way, and the scheduler mixes goroutines well enough.
func simProcess(seed int, hours float64) (simReport, string) {
	dir, err := os.MkdirTemp("", "oncebus-sim-run-")
	if err != nil {
		return simReport{}, err.Error()
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "report.json")
	cmd := exec.Command(os.Args[0], "-test.run=^TestSim$", "-test.timeout=0", "-test.v")
	cmd.Env = append(os.Environ(), "ONCEBUS_SIM_LOG="+simLogDir(), fmt.Sprint("ONCEBUS_SIM_SEED=", seed), fmt.Sprint("ONCEBUS_SIM_HOURS=", hours), "ONCEBUS_SIM_REPORT="+file,
		"TMPDIR="+dir, "GOTRACEBACK=all", "GOGC="+cmp.Or(os.Getenv("GOGC"), "400"), "GOMAXPROCS="+cmp.Or(os.Getenv("GOMAXPROCS"), "1"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	runErr := cmd.Run()
	var report simReport
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &report)
	}
	if state := cmd.ProcessState; state != nil {
		report.cpu = state.UserTime() + state.SystemTime()
	}
	switch n := report.faults(); {
	case runErr != nil:
		return report, fmt.Sprintf("%v\n%s", runErr, out.String())
	case err != nil:
		return report, fmt.Sprintf("no report: %v\n%s", err, out.String())
	case n < faultsMin:
		return report, fmt.Sprintf("only %d faults took effect, want at least %d", n, faultsMin)
	}
	return report, ""
}

// simLogDir returns the directory for the logs and histories of failed seeds.
func simLogDir() string {
	return cmp.Or(os.Getenv("ONCEBUS_SIM_LOG"), filepath.Join(os.TempDir(), "oncebus-sim"))
}

// simulate runs one seed.
func simulate(t *testing.T, seed uint64, length time.Duration) {
	synctest.Test(t, func(t *testing.T) { newSim(t, seed, length).run() })
}
