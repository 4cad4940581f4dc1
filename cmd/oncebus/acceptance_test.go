package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// acceptanceRows is how many statements the five systems made.
const acceptanceRows = 177

var (
	testFunc     = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	scenarioLine = regexp.MustCompile(`(?m)^scenario (\S+)$`)
	rowOfNumber  = regexp.MustCompile(`(?m)^\| \d.*$`)
	inBackticks  = regexp.MustCompile("`([^`]+)`")
)

// suite knows the tests by their names on the page: TestX, script/scenario and alerts/name. The value is the
// text that has its subtests.
type suite map[string]string

func readSuite(t *testing.T) suite {
	t.Helper()
	all := suite{}
	for _, name := range repositoryFiles(t, ".go", ".txt") {
		if !strings.HasSuffix(name, "_test.go") && filepath.Dir(name) != "processor/judge/testdata" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(moduleRoot, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			all[string(m[1])] += string(text)
		}
		for _, m := range scenarioLine.FindAllSubmatch(text, -1) {
			all[strings.TrimSuffix(filepath.Base(name), ".txt")+"/"+string(m[1])] = "scenario"
		}
	}
	for _, rule := range alertRules(t) { // TestEveryAlertHasBothCases says that each has a test
		all["alerts/"+rule.Alert] = "alert"
	}
	return all
}

// has finds a test, or its subtest, whose name is a literal in the file of the test.
func (s suite) has(test string) bool {
	name, sub, _ := strings.Cut(test, "/")
	return s[test] != "" || sub != "" && regexp.MustCompile(regexp.QuoteMeta(strconv.Quote(sub))+"[,:]").MatchString(s[name])
}

// mistakes are what is wrong with the rows of a page: a statement that is missing or there twice, one that does not work
// without the reason, or one whose tests are not there.
func (s suite) mistakes(page string, statements int) (all []string) {
	rows := rowOfNumber.FindAllString(page, -1)
	if len(rows) != statements {
		all = append(all, fmt.Sprintf("%d rows, want %d", len(rows), statements))
	}
	for n, row := range rows {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != 5 || cells[0] != fmt.Sprint(n+1) || cells[1] == "" {
			all = append(all, fmt.Sprintf("want statement %d, its result, how to see it and a test in %s", n+1, row))
			continue
		}
		if !slices.Contains([]string{"W", "B", "D", "O"}, cells[2]) || cells[3] == "" {
			all = append(all, fmt.Sprintf("statement %d: want W, B, D or O, and how or why", n+1))
		}
		named := inBackticks.FindAllStringSubmatch(cells[4], -1)
		for _, m := range named {
			if !s.has(m[1]) {
				all = append(all, fmt.Sprintf("statement %d: there is no test %s", n+1, m[1]))
			}
		}
		if len(named) == 0 && cells[2] != "O" {
			all = append(all, fmt.Sprintf("statement %d has no test", n+1))
		}
	}
	return all
}

// TestAcceptance: each statement about the five systems is on the page once, with tests that exist.
func TestAcceptance(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(deployments, "routes", "ACCEPTANCE.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := readSuite(t)
	for _, mistake := range all.mistakes(string(page), acceptanceRows) {
		t.Error(mistake)
	}
	const good = "| 1 | it works | W | try it | `TestAcceptance`, `shipped/place-modify-and-close`, `alerts/OncebusCollision`, `TestSystemIngressEconomyOperations/wait` |\n" +
		"| 2 | it does not | O | without disk | |\n"
	if found := all.mistakes(good, 2); len(found) > 0 {
		t.Errorf("two good rows: %v", found)
	}
	for old, bad := range map[string]string{
		"`TestAcceptance`":  "`TestAcceptances`",
		"place-modify":      "place-mollify",
		"OncebusCollision":  "OncebusCollusion",
		"/wait":             "/weight",
		"| W |":             "| X |",
		"| O |":             "| W |", // without a test
		"| without disk |":  "|  |",
		"| 1 |":             "| 2 |",
		"| 2 |":             "| two |",
		"| it works | W | ": "| it works | ",
	} {
		if found := all.mistakes(strings.Replace(good, old, bad, 1), 2); len(found) == 0 {
			t.Errorf("no mistake is found with %q in place of %q", bad, old)
		}
	}
}
