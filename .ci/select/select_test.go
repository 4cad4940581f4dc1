package main

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil { // the root of the module, where the command is started
		panic(err)
	}
	os.Exit(m.Run())
}

func theTree(t *testing.T) *tree {
	t.Helper()
	found, err := readTree(".")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// filesOf returns the files of the tree, including those that git does not track yet.
func filesOf(t *testing.T) []string {
	t.Helper()
	files, err := git("ls-files", "--cached", "--others", "--exclude-standard")
	if err != nil {
		t.Fatalf("the files of the tree are known in a checkout only: %v", err)
	}
	return files
}

// realTests returns the names of a package's tests that need more than Go, without their common beginning.
func realTests(p *pkg) (names []string) {
	for _, test := range p.tests {
		if beginning.MatchString(test.name) {
			names = append(names, beginning.ReplaceAllString(test.name, ""))
		}
	}
	return names
}

// TestEveryFileIsKnown: for each file, a package or a row of the table says what a change of it needs.
func TestEveryFileIsKnown(t *testing.T) {
	found := theTree(t)
	for _, file := range filesOf(t) {
		if _, known := found.needsOf(file); !known {
			t.Errorf("%s belongs to no package and has no row in .ci/paths", file)
		}
	}
}

// TestRowsNameWhatExists: the path of each row covers a file, and its tests exist.
func TestRowsNameWhatExists(t *testing.T) {
	found, files := theTree(t), filesOf(t)
	for _, r := range found.table {
		if r.pattern != ".ci/stood" && !slices.ContainsFunc(files, r.covers) {
			t.Errorf("no file is at %s", r.pattern)
		}
		for _, n := range r.needs {
			if n.kind != needTests {
				continue
			}
			dir, patterns, _ := strings.Cut(n.arg, ":")
			p := found.packages[dir]
			if p == nil {
				t.Errorf("%s: there is no package %s", r.pattern, dir)
				continue
			}
			for pattern := range strings.SplitSeq(patterns, "|") {
				if !slices.ContainsFunc(realTests(p), regexp.MustCompile("^(?:"+pattern+")").MatchString) {
					t.Errorf("%s: no test of %s begins with TestReal or TestSystem and %s", r.pattern, dir, pattern)
				}
			}
		}
	}
}

// TestEveryRealTestHasARow: for each test that needs more than Go there is a file whose change runs the test.
func TestEveryRealTestHasARow(t *testing.T) {
	found := theTree(t)
	inMakeTest := regexp.MustCompile(`\^TestReal\(([A-Za-z|]+)\)\$`)
	script, err := os.ReadFile(".ci/main-path")
	if err != nil {
		t.Fatal(err)
	}
	always := strings.Split(inMakeTest.FindStringSubmatch(string(script))[1], "|")
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	ofTheChart := regexp.MustCompile(regexp.MustCompile(`(?m)^NEEDS_HELM := (.*)$`).FindStringSubmatch(strings.ReplaceAll(string(makefile), "$$", "$"))[1])
	for dir, p := range found.packages {
		for _, name := range realTests(p) {
			selected := slices.Contains(always, name) || ofTheChart.MatchString("TestReal"+name)
			for _, r := range found.table {
				selected = selected || slices.ContainsFunc(r.needs, func(n need) bool {
					at, patterns, _ := strings.Cut(n.arg, ":")
					return n.kind == needTests && at == dir && regexp.MustCompile("^(?:"+patterns+")").MatchString(name)
				})
			}
			if !selected {
				t.Errorf("%s: no row of .ci/paths runs %s", dir, name)
			}
		}
	}
}

// TestPlantedChanges: for each kind of file, a change selects the expected commands.
func TestPlantedChanges(t *testing.T) {
	found := theTree(t)
	for _, c := range []struct {
		files string
		want  []string // each is a part of some command, with the end of its line
	}{
		{"cmd/oncebus/chart_test.go", []string{"make check-deployments"}},
		{"deployments/helm/oncebus/templates/statefulset.yaml", []string{"make check-deployments"}},
		{"cmd/oncebus/page/assets/page.js", []string{"./cmd/oncebus/page ", "(PageInChromium"}},
		{"deployments/routes/orders.yaml", []string{"|Orders|"}},
		{"deployments/prometheus/alerts.yml", []string{"AlertRules", "make check-deployments"}},
		{"dedup/rules/providers.go", []string{"make full PACKAGES=./processor/ingress RUN='^Test(Real|System)(ProviderSDKs", "./processor/judge", "make fuzz PACKAGES='./dedup/rules'"}},
		{"deployments/executors/java/src/main/java/Executor.java", []string{"make full PACKAGES=./deployments/executors"}},
		{"processor/transaction.go", []string{"make sim", "n2", "./cmd/oncebus ", "make mutants CONTROL=skip FILES='processor/transaction.go'"}},
		{"processor/transaction.go processor/judge/judge.go", []string{"FILES='processor/transaction.go processor/judge/judge.go'"}},
		{"dedup/decide_test.go", []string{"make race PACKAGES='./dedup'"}},
		{"dedup/testdata/new.txt", []string{"make race PACKAGES='./dedup'"}},
		{"processor/kafkatest/node.go", []string{"make full PACKAGES=./processor/kafkatest RUN='^Test(Real|System)(.)'", "./processor/judge "}},
		{"benchmarks/faults/verdict.go processor/wire/header.go", []string{"make fault-rows\n"}},
		{"cmd/oncebus/real_move_test.go", []string{"make full PACKAGES=./cmd/oncebus RUN='^Test(Real|System)(Move)'"}},
		{"deployments/release/sbom.go", []string{"make release-check"}},
		{"go.mod", []string{"make race\n", "make fuzz\n", "make sim", "make check-deployments", "make full RUN='^Test(Real|System)'\n", "make release-check", "make fault-rows\n"}},
		{"go.mod processor/transaction.go", []string{"make race\n", "make mutants CONTROL=skip FILES='processor/transaction.go'"}},
		{"Makefile", []string{"make fuzz", "make check-deployments", "make release-check"}},
		{"a-new-folder/file", []string{everything}},
		{"README.md", nil},
		{".ci/stood", nil},
	} {
		got := found.commands(strings.Fields(c.files))
		for _, want := range c.want {
			if !slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line+"\n", want) }) {
				t.Errorf("a change of %s does not select %q:\n%s", c.files, want, strings.Join(got, "\n"))
			}
		}
		if len(c.want) == 0 && len(got) > 0 {
			t.Errorf("a change of %s selects %q", c.files, got)
		}
	}
}

// TestUnknownFileIsForgottenWhenItIsGone: an unknown file needs everything while it exists, and nothing once it is
// gone.
func TestUnknownFileIsForgottenWhenItIsGone(t *testing.T) {
	found := theTree(t)
	for file, want := range map[string]bool{"a-new-folder/file": true, "processor/gone.go": false, ".ci/select": false} {
		if got := found.forgets(file); got != want {
			t.Errorf("forgets %s: %v, want %v", file, got, want)
		}
	}
}

// TestPartsAreEverything: each test of each package is in exactly one of the six parts of make verify, both with and
// without the race detector.
func TestPartsAreEverything(t *testing.T) {
	found := theTree(t)
	const parts = 6
	for _, target := range []string{"make full ", "make race "} {
		times := map[string]int{}
		for k := range parts {
			for _, line := range found.part(k, parts) {
				args, ok := strings.CutPrefix(line, target)
				if !ok {
					continue
				}
				dirs, run := packagesAndRun(args)
				for _, dir := range dirs {
					for _, test := range found.packages[dir].tests {
						if run.MatchString(test.name) {
							times[dir+" "+test.name]++
						}
					}
				}
			}
		}
		for _, dir := range found.withTests(slices.Sorted(maps.Keys(found.packages))) {
			for _, test := range found.packages[dir].tests {
				if times[dir+" "+test.name] == 0 {
					t.Errorf("%s%s %s is in no part", target, dir, test.name)
				}
			}
		}
	}
}

var argument = regexp.MustCompile(`(PACKAGES|RUN)=(?:'([^']*)'|(\S+))`)

// packagesAndRun reads the arguments of make full and make race.
func packagesAndRun(args string) (dirs []string, run *regexp.Regexp) {
	run = regexp.MustCompile(".")
	for _, a := range argument.FindAllStringSubmatch(args, -1) {
		if a[1] == "PACKAGES" {
			dirs = strings.Fields(strings.ReplaceAll(" "+a[2]+a[3], " ./", " "))
		} else {
			run = regexp.MustCompile(strings.ReplaceAll(a[2]+a[3], "$$", "$"))
		}
	}
	return dirs, run
}
