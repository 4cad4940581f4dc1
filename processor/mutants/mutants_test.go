//go:build mutants

package mutants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	module = "../.." // of the tree, relative to this package
	// suiteTimeout limits one run of one suite. A suite that reaches it has
	// found no defect.
	suiteTimeout = 4 * time.Minute
	// simSeeds is how many seeds of the simulation must find no mutant that
	// no other test finds.
	simSeeds = 16
	// atATime is how many mutants are tested concurrently: one more than CI has
	// cores, because tests also wait.
	atATime = 3
)

// A suite is a test binary with the tests to run.
type suite struct {
	name string
	pkg  string // directory in the module
	tags string
	run  string // -test.run
	skip string // -test.skip
	env  []string

	short bool // as make test and make race run it
}

// The suites, in the order in which they test a mutant after its aims. They do not
// include tests with a real Kafka, which no mutant needs.
var (
	dedupSuite      = suite{name: "dedup", pkg: "dedup", skip: "^(Bench|Fuzz)"}
	rulesSuite      = suite{name: "rules", pkg: "dedup/rules", skip: "^(Bench|Fuzz)"}
	stateSuite      = suite{name: "state", pkg: "state", skip: "^(Bench|Fuzz)"}
	kafkaSuite      = suite{name: "kafka", pkg: "processor/kafka", skip: "^(Bench|Fuzz)"}
	wireSuite       = suite{name: "wire", pkg: "processor/wire", skip: "^(Bench|Fuzz)"}
	judgeSuite      = suite{name: "judge", pkg: "processor/judge", skip: "^(Bench|Fuzz)"}
	appSuite        = suite{name: "app", pkg: "processor/app", skip: "^(Bench|Fuzz)"}
	assignSuite     = suite{name: "assign", pkg: "processor/assign", skip: "^(Bench|Fuzz)"}
	restoreSuite    = suite{name: "restore", pkg: "processor/restore", skip: "^(Bench|Fuzz)"}
	frontSuite      = suite{name: "front", pkg: "processor/front", skip: "^(Bench|Fuzz)"}
	signatureSuite  = suite{name: "signature", pkg: "processor/ingress/signature", skip: "^(Bench|Fuzz)"}
	ingressSuite    = suite{name: "ingress", pkg: "processor/ingress", skip: "^(Bench|Fuzz)"}
	letterSuite     = suite{name: "deadletter", pkg: "processor/deadletter", skip: "^(Bench|Fuzz)"}
	auditSuite      = suite{name: "audit", pkg: "processor/audit", skip: "^(Bench|Fuzz)"}
	portableSuite   = suite{name: "portable", pkg: "processor/portable", skip: "^(Bench|Fuzz)"}
	processorSuite  = suite{name: "processor", pkg: "processor", skip: "^TestReal"}
	conformSuite    = suite{name: "conformance", pkg: "processor/conformance", skip: "^(Bench|Fuzz)"}
	executorSuite   = suite{name: "executor", pkg: "deployments/executor", skip: "^(Bench|Fuzz)"}
	hangingSuite    = suite{name: "hanging", pkg: "processor/hanging", skip: "^(Bench|Fuzz)"}
	exploreSuite    = suite{name: "explore", pkg: "processor/explore", skip: "^(Bench|Fuzz)"}
	switchoverSuite = suite{name: "switchover", pkg: "processor/switchover", skip: "^(Bench|Fuzz)"}
	simulation      = suite{name: "simulation", pkg: "processor", tags: "synctests", run: "^TestSim$"}
)

// packageSuites are the suites without the processor's, which uses all their packages.
var packageSuites = []suite{
	dedupSuite, rulesSuite, stateSuite, kafkaSuite, wireSuite, judgeSuite, appSuite, assignSuite, restoreSuite, frontSuite, signatureSuite, ingressSuite, letterSuite, exploreSuite, auditSuite,
	portableSuite, conformSuite, executorSuite, hangingSuite,
}

// aimed returns s with only the tests that match a pattern.
func (s suite) aimed(run string) suite {
	s.run = run
	return s
}

// seeds returns the simulation, a suite for each seed.
func seeds(t *testing.T, n int) []suite {
	t.Helper()
	var all []suite
	for seed := range n {
		s := simulation
		s.name = fmt.Sprint(s.name, " ", seed+1)
		// Like make sim, but its logs are removed with the mutant.
		s.env = []string{fmt.Sprint("ONCEBUS_SIM_SEED=", seed+1), "ONCEBUS_SIM_LOG=" + t.TempDir(), "GOGC=400", "GOMAXPROCS=1"}
		all = append(all, s)
	}
	return all
}

// catalogue has all mutants.
var catalogue = slices.Concat(list, claimList, trimList, checkpointList, budgetList, edgeList, mendList, redriveList, exploreList, ledgerList, warmList, auditList, moveList, seedList, windowList, shadowList, setList, clusterList, claimChangeList, executorList, providerList, formatList, tenantList, answerList, sourceList, hangingList)

// TestMutants plants every defect of the list in turn. A mutant passes if a test
// fails because of it. It fails if no suite finds it, if the text to replace is
// missing, or if it does not compile. With ONCEBUS_MUTANTS_SIM=n only the
// simulation runs, and must find within n seeds those that it can find. ONCEBUS_MUTANTS_PART=k/n
// plants each n-th mutant only, from number k on. ONCEBUS_MUTANTS_FILES plants those that concern one of these files.
// From ONCEBUS_MUTANTS_UNTIL on, in seconds since 1970, no mutant is planted; the order differs with it, so that no mutant is always the one left out.
func TestMutants(t *testing.T) {
	sim := 0
	if s := os.Getenv("ONCEBUS_MUTANTS_SIM"); s != "" {
		var err error
		if sim, err = strconv.Atoi(s); err != nil || sim < 1 {
			t.Fatalf("ONCEBUS_MUTANTS_SIM=%s: want the number of seeds", s)
		}
	}
	if os.Getenv("ONCEBUS_MUTANTS_CONTROL") == "skip" {
		t.Log("no control run: make test has shown that the tests pass without a mutant")
	} else if !t.Run("none", func(t *testing.T) { control(t, sim) }) {
		t.Fatal("the tests fail without a mutant, so a failure with one proves nothing")
	}
	part, parts := partOf(t)
	files := strings.Fields(os.Getenv("ONCEBUS_MUTANTS_FILES"))
	until := untilOf(t)
	table := &table{}
	caches := turns(t)
	t.Run("planted", func(t *testing.T) {
		for _, i := range rand.New(rand.NewPCG(uint64(until.Unix()), 0)).Perm(len(catalogue)) {
			m := catalogue[i]
			if i%parts != part || len(files) > 0 && !m.concerns(t, files) {
				continue
			}
			if sim > 0 && m.notInSim != "" {
				table.skip(m.name, m.notInSim)
				continue
			}
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				cache := <-caches
				defer func() { caches <- cache }()
				if time.Now().After(until) {
					table.skip(m.name, "the time was over")
					return
				}
				table.try(t, &m, sim, cache)
			})
		}
	})
	t.Log(table)
}

// partOf returns which part of the catalogue to plant, and how many there are.
func partOf(t *testing.T) (part, parts int) {
	t.Helper()
	text := os.Getenv("ONCEBUS_MUTANTS_PART")
	if text == "" {
		return 0, 1
	}
	if _, err := fmt.Sscanf(text, "%d/%d", &part, &parts); err != nil || part < 0 || part >= parts {
		t.Fatalf("ONCEBUS_MUTANTS_PART=%s: want k/n, with k from 0 to n-1", text)
	}
	t.Logf("part %d of %d", part, parts)
	return part, parts
}

// untilOf returns the time after which no mutant is planted.
func untilOf(t *testing.T) time.Time {
	t.Helper()
	text := os.Getenv("ONCEBUS_MUTANTS_UNTIL")
	if text == "" {
		return time.Now().AddDate(1, 0, 0)
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("ONCEBUS_MUTANTS_UNTIL=%s: want seconds since 1970", text)
	}
	return time.Unix(seconds, 0)
}

// concerns reports whether the mutant is in one of the files, or a test in one of them aims at it.
func (m *mutant) concerns(t *testing.T, files []string) bool {
	t.Helper()
	return slices.ContainsFunc(files, func(file string) bool {
		if slices.ContainsFunc(m.edits, func(e edit) bool { return e.file == file }) {
			return true
		}
		return slices.ContainsFunc(m.aims, func(s suite) bool {
			return s.pkg == path.Dir(file) && slices.ContainsFunc(testsIn(t, file), regexp.MustCompile(firstElement(s.run)).MatchString)
		})
	})
}

// firstElement returns the part of a pattern of -test.run that selects tests, without that for subtests.
func firstElement(run string) string {
	first, _, _ := strings.Cut(run, "/")
	return first
}

var declaredTest = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]*)\(`)

// testsIn returns the names of the tests in a file; a file that is gone has none.
func testsIn(t *testing.T, file string) (names []string) {
	t.Helper()
	if !strings.HasSuffix(file, "_test.go") {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(module, file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, found := range declaredTest.FindAllStringSubmatch(string(text), -1) {
		names = append(names, found[1])
	}
	return names
}

// control runs the suites without a mutant.
func control(t *testing.T, sim int) {
	t.Helper()
	suites := seeds(t, sim)
	if sim == 0 {
		aims := map[string][]string{}
		for _, m := range catalogue {
			for _, s := range m.aims {
				aims[s.pkg] = append(aims[s.pkg], s.run)
			}
		}
		suites = nil
		for _, s := range append(slices.Clone(packageSuites), processorSuite) {
			suites = append(suites, s.aimed(strings.Join(aims[s.pkg], "|")))
		}
		suites = append(suites, seeds(t, simSeeds)...)
	}
	dir := t.TempDir()
	for _, s := range suites {
		if f := runSuite(t, s, "", dir, &buildCache{}); f.kind != passed {
			t.Errorf("%s: %v", s.name, f)
		}
	}
}

// try plants one mutant and runs the suites until one fails. A test that waited in
// vain is no evidence, because the machine may be slow: every mutant has an effect
// that a test can find.
func (tb *table) try(t *testing.T, m *mutant, sim int, cache *buildCache) {
	t.Helper()
	cache.forNext(t)
	began := time.Now()
	dir := t.TempDir()
	overlay := plant(t, m, dir)
	suites := seeds(t, sim)
	if sim == 0 {
		suites = slices.Concat(m.aimed(), m.reach(), seeds(t, simSeeds))
		if len(m.aims) == 0 {
			suites = append(seeds(t, simSeeds), m.reach()...)
		}
	}
	inVain := ""
	for _, s := range suites {
		switch f := runSuite(t, s, overlay, dir, cache); {
		case f.kind == failed:
			tb.add(m.name, s.name+": "+f.String(), time.Since(began), true)
			t.Logf("%s %v: caught by %s: %v", m.does, m.hazards, s.name, f)
			return
		case f.kind == hung:
			inVain += fmt.Sprintf("\nno evidence, %s waited in vain: %v", s.name, f)
		case f.kind == broken:
			tb.add(m.name, "NONE: it broke "+s.name, time.Since(began), false)
			t.Fatalf("%s failed for a reason other than the mutant: %v\n%s", s.name, f, f.output)
		}
	}
	tb.add(m.name, "NOTHING", time.Since(began), false)
	t.Errorf("no test finds it: %s%s", m.does, inVain)
}

// aimed returns the tests that are to find the mutant. A property that a hundred draws may miss has more of them.
func (m *mutant) aimed() []suite {
	aims := slices.Clone(m.aims)
	for i := range aims {
		aims[i].env = append(slices.Clone(aims[i].env), "RAPID_CHECKS=300")
	}
	return aims
}

// reach returns the packages with the mutant: a failure of another package has
// another cause.
func (m *mutant) reach() []suite { return append(m.ownPackages(), processorSuite) }

// ownPackages returns the suites of the packages that the mutant is in.
func (m *mutant) ownPackages() (suites []suite) {
	for _, s := range packageSuites {
		if slices.ContainsFunc(m.edits, func(e edit) bool { return strings.HasPrefix(e.file, s.pkg+"/") }) {
			suites = append(suites, s)
		}
	}
	return suites
}

// plant writes the mutated files, and the overlay that replaces the real ones.
func plant(t *testing.T, m *mutant, dir string) string {
	t.Helper()
	mutated := map[string]string{}
	for _, e := range m.edits {
		source, err := filepath.Abs(filepath.Join(module, e.file))
		if err != nil {
			t.Fatal(err)
		}
		text, ok := mutated[source]
		if !ok {
			b, err := os.ReadFile(source)
			if err != nil {
				t.Fatalf("stale mutant: %v", err)
			}
			text = string(b)
		}
		if n := strings.Count(text, e.old); n != 1 {
			t.Fatalf("stale mutant: %s has the text to be replaced %d times:\n%s", e.file, n, e.old)
		}
		mutated[source] = strings.Replace(text, e.old, e.new, 1)
	}
	replace := map[string]string{}
	for source, text := range mutated {
		planted := filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), filepath.Base(source)))
		if err := os.WriteFile(planted, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[source] = planted
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// runSuite compiles a suite, once per directory, and runs it in the directory of its
// test data.
func runSuite(t *testing.T, s suite, overlay, dir string, cache *buildCache) finding {
	t.Helper()
	binary := filepath.Join(dir, s.pkg+s.tags+".test")
	if _, err := os.Stat(binary); err != nil {
		// Without vet and debug information a build takes two thirds of the time.
		args := []string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary, "-tags", s.tags}
		if overlay != "" {
			args = append(args, "-overlay", overlay)
		}
		build := exec.CommandContext(t.Context(), "go", append(args, "./"+s.pkg)...)
		build.Dir = module
		if cache.dir != "" {
			build.Env = append(os.Environ(), "GOCACHE="+cache.dir)
		}
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("does not compile: %v\n%s", err, out)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), suiteTimeout)
	defer cancel()
	run := exec.CommandContext(ctx, binary, "-test.run", s.run, "-test.skip", s.skip, fmt.Sprint("-test.short=", s.short), "-test.failfast", "-test.timeout", (suiteTimeout - 10*time.Second).String())
	run.Dir = filepath.Join(module, s.pkg)
	// Else a defect that a property finds would leave a file in the test data. A suite that panics or is killed removes no directory of its tests.
	run.Env = append(append(os.Environ(), "RAPID_NOFAILFILE=true", "ONCEBUS_TEST_WAIT=45s", "TMPDIR="+dir), s.env...)
	// A suite may leave child processes; they are killed too.
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	run.Cancel = func() error { return syscall.Kill(-run.Process.Pid, syscall.SIGKILL) }
	out, err := run.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %s: %v", s.name, err)
	}
	f := judge(string(out), err == nil)
	if f.kind == passed && strings.Contains(string(out), "no tests to run") {
		t.Fatalf("%s: no test matches %s", s.name, s.run)
	}
	return f
}

// kind is the end of a run of a suite.
type kind string

const (
	passed kind = "passed"
	failed kind = "failed" // a check of a test failed
	hung   kind = "hung"   // a test waited in vain
	broken kind = "broken" // a panic, or a failure outside of tests
)

// finding is the result of a run of a suite.
type finding struct {
	kind    kind
	test    string
	message string // the first error of the test
	output  string
}

func (f finding) String() string { return strings.TrimSpace(f.test + ": " + f.message) }

var (
	failLine  = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+) `)
	complaint = regexp.MustCompile(`(?m)^\s+\w+_test\.go:\d+: (.*)$`)
	panicked  = regexp.MustCompile(`(?m)^(panic: |fatal error: ).*$`)
	inVain    = regexp.MustCompile(`^gave up waiting|^input is left`)
	// logged matches lines that tests log besides their errors. After a wait in vain the bench logs
	// the offsets of the groups.
	logged = regexp.MustCompile(`^$|^time=|^sim: |^seed \d+|of seed \d+ is in |^group [\w-]+, \S+: committed -?\d+ of \d+$`)
)

// judge reads the output of a test binary. Of the failed tests it returns the
// innermost one with an error other than a wait in vain.
func judge(output string, ok bool) finding {
	f := finding{output: output}
	if ok {
		f.kind = passed
		return f
	}
	if line := panicked.FindString(output); line != "" {
		f.kind, f.message = broken, line
		if strings.Contains(line, "test timed out") || strings.Contains(line, "deadlock") {
			f.kind = hung
		}
		return f
	}
	f.kind, f.message = broken, "it failed without the error of a test"
	places := failLine.FindAllStringSubmatchIndex(output, -1)
	for n, at := range places {
		end := len(output)
		if n+1 < len(places) {
			end = places[n+1][0]
		}
		for _, said := range complaint.FindAllStringSubmatch(output[at[1]:end], -1) {
			if logged.MatchString(said[1]) {
				continue
			}
			found := finding{kind: failed, test: output[at[2]:at[3]], message: said[1], output: output}
			if !inVain.MatchString(said[1]) {
				return found
			}
			found.kind = hung
			f = found
		}
	}
	return f
}

// table has the mutants and the tests that found them.
type table struct {
	mu            sync.Mutex
	rows          []string
	tried, caught int
}

// add records the result of a mutant.
func (tb *table) add(name, by string, took time.Duration, caught bool) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.tried++
	if caught {
		tb.caught++
	}
	tb.rows = append(tb.rows, fmt.Sprintf("%-28s | %5.1f | %s", name, took.Seconds(), by))
}

// skip records that a mutant was not tested.
func (tb *table) skip(name, why string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.rows = append(tb.rows, fmt.Sprintf("%-28s |     - | not tested: %s", name, why))
}

func (tb *table) String() string {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	slices.Sort(tb.rows)
	return fmt.Sprintf("\n%-28s | %5s | caught by\n%s\n%d of %d caught", "mutant", "s", strings.Join(tb.rows, "\n"), tb.caught, tb.tried)
}
