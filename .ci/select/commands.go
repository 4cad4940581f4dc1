package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// commands returns the make commands that a change of files needs, in the order in which they run: the longest first,
// and mutants last, because a run of mutants can be cut short.
func (t *tree) commands(files []string) []string {
	tests, faults, kinds := map[string][]string{}, []string{}, map[string]bool{} // an empty row of faults means all faults
	for _, file := range files {
		needs, known := t.needsOf(file)
		if !known {
			return []string{everything}
		}
		for _, n := range needs {
			kinds[n.kind] = true
			switch n.kind {
			case needTests:
				dir, pattern, _ := strings.Cut(n.arg, ":")
				tests[dir] = append(tests[dir], strings.Split(pattern, "|")...)
			case needFaults:
				faults = append(faults, strings.Split(n.arg, ",")...)
			}
		}
	}
	if kinds[needAll] {
		return []string{everything}
	}
	if kinds[needLibraries] {
		return append([]string{
			"make race", "make full RUN='^Test(Real|System)'", "make sim SEEDS=30", "make fault-rows", "make fuzz", "make check-deployments", "make release-check",
		}, mutantsOf(files)...)
	}
	var lines []string
	if raced := t.withTests(t.touched(files)); len(raced) > 0 {
		lines = append(lines, "make race"+inPackages(raced))
	}
	if fuzzed := t.withFuzz(files); kinds[needFuzz] {
		lines = append(lines, "make fuzz")
	} else if len(fuzzed) > 0 {
		lines = append(lines, "make fuzz"+inPackages(fuzzed))
	}
	if kinds[needSim] {
		lines = append(lines, "make sim SEEDS=30")
	}
	if kinds[needChart] {
		lines = append(lines, "make check-deployments")
	}
	for _, dir := range slices.Sorted(maps.Keys(tests)) {
		lines = append(lines, fmt.Sprintf("make full PACKAGES=./%s RUN='^Test(Real|System)(%s)'", dir, strings.Join(distinct(tests[dir]), "|")))
	}
	if kinds[needRelease] {
		lines = append(lines, "make release-check")
	}
	if slices.Contains(faults, "") {
		lines = append(lines, "make fault-rows")
	} else if len(faults) > 0 {
		lines = append(lines, "make fault-rows FAULTS="+strings.Join(distinct(faults), ","))
	}
	return append(lines, mutantsOf(files)...)
}

// mutantsOf returns the command that plants the mutants in the given files; none if these files cannot have any.
func mutantsOf(files []string) []string {
	changed := goFiles(files)
	if len(changed) == 0 {
		return nil
	}
	return []string{"make mutants CONTROL=skip FILES='" + strings.Join(changed, " ") + "'"}
}

// part returns part k of n of everything. To make the parts take about equally long, each part gets every n-th test
// of the packages with many tests; of the other packages each part gets every n-th package. Mutants are last, because
// a run of mutants can be cut short.
func (t *tree) part(k, n int) []string {
	if n == 1 {
		return []string{
			"make fuzz", "make sim", "make check-deployments", "make full", "make race",
			"make release-check", "make fault-rows", "make mutants CONTROL=skip",
		}
	}
	const many = 60
	var small, large, names []string
	for i, dir := range t.withTests(slices.Sorted(maps.Keys(t.packages))) {
		tests := t.packages[dir].tests
		if len(tests) >= many {
			large = append(large, dir)
			for j := k; j < len(tests); j += n {
				names = append(names, tests[j].name)
			}
		} else if i%n == k {
			small = append(small, dir)
		}
	}
	// Make replaces $$ by $.
	run := " RUN='^(" + strings.Join(distinct(names), "|") + ")$$'"
	var lines []string
	for _, target := range []string{"make full", "make race"} {
		lines = append(lines, target+inPackages(large)+run, target+inPackages(small))
	}
	part := fmt.Sprintf("PART=%d/%d", k, n)
	lines = append(lines, "make fuzz "+part, fmt.Sprintf("make sim FIRST=%d SEEDS=%d", 1+k*simSeeds/n, (k+1)*simSeeds/n-k*simSeeds/n),
		"make fault-rows "+part)
	switch k {
	case 0:
		lines = append(lines, "make release-check")
	case 1 % n:
		lines = append(lines, "make check-deployments")
	}
	return append(lines, "make mutants CONTROL=skip "+part)
}

// simSeeds is how many seeds of the simulation make verify runs. It must equal SEEDS in the Makefile.
const simSeeds = 100

// inPackages returns the PACKAGES argument of a make target for the packages in these directories.
func inPackages(dirs []string) string { return " PACKAGES='./" + strings.Join(dirs, " ./") + "'" }

// withTests returns those directories that have tests. It leaves out the mutants, which have their own make target.
func (t *tree) withTests(dirs []string) []string {
	return slices.DeleteFunc(slices.Clone(dirs), func(dir string) bool { return len(t.packages[dir].tests) == 0 || dir == "processor/mutants" })
}

// withFuzz returns the directories of the files' packages that have fuzz targets.
func (t *tree) withFuzz(files []string) []string {
	var dirs []string
	for _, file := range files {
		dir, ok := t.owner(file)
		if ok && !isPage(file) && slices.ContainsFunc(t.packages[dir].tests, func(f test) bool { return strings.HasPrefix(f.name, "Fuzz") }) {
			dirs = append(dirs, dir)
		}
	}
	return distinct(dirs)
}

// goFiles returns the Go files among files: only such a file can contain a mutant or a test that finds one.
func goFiles(files []string) []string {
	return slices.DeleteFunc(slices.Clone(files), func(file string) bool { return !strings.HasSuffix(file, ".go") })
}

// distinct returns each word once, sorted.
func distinct(words []string) []string {
	words = slices.Clone(words)
	slices.Sort(words)
	return slices.Compact(words)
}
