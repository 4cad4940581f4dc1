package main

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
)

// A row of the table says what a change of some files needs.
type row struct {
	pattern string
	needs   []need
}

// A need is a kind with its argument: {"faults", "p1,g1"}.
type need struct{ kind, arg string }

// The kinds of need. Tests are "DIR:PATTERN", the names of tests of a package without their common beginning TestReal or TestSystem.
const (
	needNothing = "-"
	needAll     = "all"
	// needLibraries is everything but the mutants, which are defects of our own code.
	needLibraries = "libraries"
	needTests     = "tests"
	needFaults    = "faults"
	needSim       = "sim"
	needFuzz      = "fuzz"
	needChart     = "chart"
	needRelease   = "release"
)

// readTable reads .ci/paths, which says what its lines mean.
func readTable(file string) ([]row, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var rows []row
	for n, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		r, err := parseRow(strings.Fields(line))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n+1, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// parseRow reads the words of a line.
func parseRow(words []string) (row, error) {
	r := row{pattern: words[0]}
	if _, err := path.Match(r.pattern, ""); err != nil {
		return r, fmt.Errorf("%s: %w", r.pattern, err)
	}
	if len(words) == 1 {
		return r, fmt.Errorf("%s needs nothing: say so with %s", r.pattern, needNothing)
	}
	for _, word := range words[1:] {
		kind, arg, hasArg := strings.Cut(word, ":")
		switch kind {
		case needNothing, needAll, needLibraries, needSim, needFuzz, needChart, needRelease:
			if hasArg {
				return r, fmt.Errorf("%s has no argument", kind)
			}
			r.needs = append(r.needs, need{kind, ""})
		case needFaults:
			r.needs = append(r.needs, need{kind, arg})
		default:
			if arg == "" {
				return r, fmt.Errorf("%q is not one of -, all, libraries, sim, fuzz, chart, release, faults:ROWS and DIR:TESTS", word)
			}
			r.needs = append(r.needs, need{needTests, word})
		}
	}
	return r, nil
}

// covers reports whether the row is about a file: its pattern is a directory that ends in a slash and is above it, or path.Match
// finds that it is the file's.
func (r row) covers(file string) bool {
	if strings.HasSuffix(r.pattern, "/") {
		return strings.HasPrefix(file, r.pattern)
	}
	matches, _ := path.Match(r.pattern, file) // parseRow has tried the pattern
	return matches
}

// beginning is that of the names of tests that need more than Go.
var beginning = regexp.MustCompile("^Test(Real|System)")

// needsOf returns what the rows about a file need. ok is false for a file that no row and no package knows. A file of tests needs
// those in it that need more than Go, because it changes nothing for others, and what a row with its own path says.
func (t *tree) needsOf(file string) (needs []need, ok bool) {
	dir, ok := t.owner(file)
	if ok && strings.HasSuffix(file, "_test.go") {
		for _, test := range t.packages[dir].tests {
			if test.file == path.Base(file) && beginning.MatchString(test.name) {
				needs = append(needs, need{needTests, dir + ":" + beginning.ReplaceAllString(test.name, "")})
			}
		}
		for _, r := range t.table {
			if r.pattern == file {
				needs = append(needs, r.needs...)
			}
		}
		return needs, true
	}
	ok = ok || isPage(file)
	for _, r := range t.table {
		if r.covers(file) {
			needs, ok = append(needs, r.needs...), true
		}
	}
	return needs, ok
}
