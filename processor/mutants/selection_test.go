//go:build mutants

package mutants

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A change of code is checked by make test and by what .ci/select prints for its files. The tests here take each mutant as such a
// change: what is selected has a test that finds it.

// selected returns the commands that .ci/select prints for a change of each of the files alone.
func selected(t *testing.T, files []string) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"run", "./.ci/select", "-each"}, files...)...)
	cmd.Dir = module
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("select: %v\n%s", err, problems.String())
	}
	commands := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		file, command, _ := strings.Cut(strings.TrimSpace(line), "\t")
		commands[file] = append(commands[file], command)
	}
	return commands
}

// files returns the files of the mutant.
func (m *mutant) files() (files []string) {
	for _, e := range m.edits {
		files = append(files, e.file)
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// makeVariable returns a variable of the Makefile that is a pattern.
func makeVariable(t *testing.T, name string) *regexp.Regexp {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(module, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	value := regexp.MustCompile(`(?m)^` + name + ` := (.*)$`).FindStringSubmatch(string(text))
	if value == nil {
		t.Fatalf("the Makefile has no %s", name)
	}
	return regexp.MustCompile(strings.ReplaceAll(value[1], "$$", "$"))
}

// TestSelectionFindsEachMutant: a change of the files of a mutant runs a test that aims at it. make test runs the test, so -short
// does not leave it out, and the race detector runs in its package, unless it is a test of one goroutine. A mutant without such a
// test is for the simulation, which then runs. The mutant itself is planted too.
func TestSelectionFindsEachMutant(t *testing.T) {
	var files []string
	for _, m := range catalogue {
		files = append(files, m.files()...)
	}
	slices.Sort(files)
	commands := selected(t, slices.Compact(files))
	noRace := makeVariable(t, "NO_RACE")
	for _, m := range catalogue {
		for _, file := range m.files() {
			got := strings.Join(commands[file], "\n") + "\n"
			if !strings.Contains(got, "make mutants CONTROL=skip FILES='"+file+"'") {
				t.Errorf("%s: a change of %s does not plant it:\n%s", m.name, file, got)
			}
			if len(m.aims) == 0 {
				if !strings.Contains(got, "make sim ") {
					t.Errorf("%s: a change of %s does not run the simulation:\n%s", m.name, file, got)
				}
				continue
			}
			if !slices.ContainsFunc(m.aims, func(s suite) bool {
				names := testsOf(t, s)
				alone := s.pkg == exploreSuite.pkg || s.pkg == switchoverSuite.pkg || len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !noRace.MatchString(name) })
				return len(names) > 0 && (alone || regexp.MustCompile(`make race PACKAGES='[^']*\./`+s.pkg+`[ ']`).MatchString(got))
			}) {
				t.Errorf("%s: a change of %s runs none of the tests that aim at it:\n%s", m.name, file, got)
			}
		}
	}
}

// testsOf returns the names of the tests of a suite that -short does not skip.
func testsOf(t *testing.T, s suite) (names []string) {
	t.Helper()
	dir := filepath.Join(module, s.pkg)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	skipped := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]*)\(t \*testing\.T\) \{\n\tif testing\.Short\(\) \{\n\t\tt\.Skip`)
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		left := map[string]bool{}
		for _, found := range skipped.FindAllStringSubmatch(string(text), -1) {
			left[found[1]] = true
		}
		for _, name := range testsIn(t, filepath.Join(s.pkg, entry.Name())) {
			if !left[name] && regexp.MustCompile(firstElement(s.run)).MatchString(name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// TestSelectionCatchesASample plants mutants by chance, and runs no more of the tests that aim at them, and of those of their
// packages, than make test runs. Each is found. ONCEBUS_MUTANTS_SAMPLE is how many, and with a slash the seed: 60/7.
func TestSelectionCatchesASample(t *testing.T) {
	text, set := os.LookupEnv("ONCEBUS_MUTANTS_SAMPLE")
	if !set {
		t.Skip("skipped: ONCEBUS_MUTANTS_SAMPLE=60/1 plants 60 mutants of seed 1 (make mutants-sample)")
	}
	count, seed, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(count)
	number, seedErr := strconv.ParseUint(seed, 10, 64)
	if err != nil || seedErr != nil || n < 1 {
		t.Fatalf("ONCEBUS_MUTANTS_SAMPLE=%s: want a number and a seed, as 60/1", text)
	}
	caches := turns(t)
	order := rand.New(rand.NewPCG(number, 0)).Perm(len(catalogue))
	planted := 0
	for _, i := range order {
		m := &catalogue[i]
		if planted == n || len(m.aims) == 0 {
			continue
		}
		planted++
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			cache := <-caches
			defer func() { caches <- cache }()
			cache.forNext(t)
			dir := t.TempDir()
			overlay := plant(t, m, dir)
			var found []string
			for _, s := range slices.Concat(m.aims, m.ownPackages()) {
				s.short = true
				f := runSuite(t, s, overlay, dir, cache)
				if f.kind == failed {
					t.Logf("%s: caught by %s", m.does, f)
					return
				}
				found = append(found, fmt.Sprint(s.name, " ", s.run, ": ", f.kind, " ", f))
			}
			t.Errorf("%s: make test does not find it: %s", m.does, strings.Join(found, "; "))
		})
	}
}
