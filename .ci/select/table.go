package main

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
)

// row of the table says what a change of some files needs.
type row struct {
	pattern string
	needs   []need
}

// need is a kind of check and its argument, such as {"faults", "p1,g1"}.
type need struct{ kind, arg string }

// The kinds of need. The argument of a need for tests is "DIR:PATTERN": PATTERN matches names of tests without their
// common beginning TestReal or TestSystem.
const (
	needNothing = "-"
	needAll     = "all"
	// needLibraries is everything but the mutants: a new version of a library cannot change the defects that we plant
	// in our own code.
	needLibraries = "libraries"
	needTests     = "tests"
	needFaults    = "faults"
	needSim       = "sim"
	needFuzz      = "fuzz"
	needChart     = "chart"
	needRelease   = "release"
)

// readTable reads .ci/paths. The file itself explains the format of its lines.
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

// covers reports whether the row is about a file: the row's pattern is a directory above the file and ends in a
// slash, or it matches the file's path by path.Match.
func (r row) covers(file string) bool {
	if strings.HasSuffix(r.pattern, "/") {
		return strings.HasPrefix(file, r.pattern)
	}
	matches, _ := path.Match(r.pattern, file) // no error: parseRow has already checked the pattern
	return matches
}

// beginning matches the common beginning of the names of tests that need more than Go.
var beginning = regexp.MustCompile("^Test(Real|System)")

// needsOf returns what the rows about a file need. ok is false for a file that belongs to no row and to no package. A
// test file changes nothing for other files, so it needs only its own tests that need more than Go, and what a row
// with exactly its path says.
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
