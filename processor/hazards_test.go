package processor_test

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// hazard is a row of HAZARDS.md.
type hazard struct {
	id            string
	handled       string   // third column
	places, tests []string // named in the third and the fourth
}

var (
	placeName = regexp.MustCompile("`([a-z_/]+\\.go):([A-Za-z.]+)`")
	testName  = regexp.MustCompile("`((?:Test|Fuzz)[\\w/-]+)`")
)

func readHazards(t *testing.T) []hazard {
	t.Helper()
	f, err := os.Open("HAZARDS.md")
	must(t, err)
	defer func() { must(t, f.Close()) }()
	var all []hazard
	row := regexp.MustCompile(`^\| ([A-Z]\d+) \|`)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		id := row.FindStringSubmatch(lines.Text())
		if id == nil {
			continue
		}
		columns := strings.Split(strings.Trim(lines.Text(), "|"), "|")
		if len(columns) != 4 {
			t.Fatalf("%s: %d columns, want 4", id[1], len(columns))
		}
		h := hazard{id: id[1], handled: strings.TrimSpace(columns[2])}
		for _, m := range placeName.FindAllStringSubmatch(columns[2], -1) {
			h.places = append(h.places, m[1]+":"+m[2])
		}
		for _, m := range testName.FindAllStringSubmatch(columns[3], -1) {
			h.tests = append(h.tests, m[1])
		}
		all = append(all, h)
	}
	return all
}

// TestHazards holds HAZARDS.md to the tree: every hazard of the register is there once, and either is handled at a
// place that exists and shown by tests that exist, or is said to be impossible.
func TestHazards(t *testing.T) {
	var want []string
	for _, section := range []struct {
		letter string
		n      int
	}{{"A", 23}, {"B", 15}, {"C", 18}, {"T", 33}, {"E", 10}, {"G", 17}, {"D", 54}, {"K", 7}, {"H", 4}, {"P", 12}, {"R", 6}, {"M", 12}, {"V", 2}, {"W", 8}, {"S", 8}, {"L", 7}, {"X", 8}, {"N", 6}, {"U", 8}} {
		for n := range section.n {
			want = append(want, section.letter+strconv.Itoa(n+1))
		}
	}
	hazards := readHazards(t)
	var got []string
	for _, h := range hazards {
		got = append(got, h.id)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the table has %v, the register %v", got, want)
	}
	tests, places := testsOfModule(t), map[string]map[string]bool{}
	for _, h := range hazards {
		void := strings.HasPrefix(h.handled, "Cannot occur: ") || strings.HasPrefix(h.handled, "Outside: ")
		if void != (len(h.tests) == 0) || len(h.places) == 0 && !void {
			t.Errorf("%s: it is handled at %v and shown by %v; one that cannot occur, or is outside, says so and names no test", h.id, h.places, h.tests)
		}
		for _, name := range h.tests {
			if !tests[name] {
				t.Errorf("%s: there is no %s", h.id, name)
			}
		}
		for _, place := range h.places {
			file, name, _ := strings.Cut(place, ":")
			if places[file] == nil {
				places[file] = namesIn(t, filepath.Join("..", file))
			}
			if !places[file][name] {
				t.Errorf("%s: %s has no %s", h.id, file, name)
			}
		}
	}
}

// testsOfModule returns the names of all tests and fuzz targets of the module, and of the scenarios of TestScripts.
func testsOfModule(t *testing.T) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(b, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	must(t, err)
	scripts, err := filepath.Glob("judge/testdata/*.txt")
	must(t, err)
	scenario := regexp.MustCompile(`(?m)^scenario (\S+)$`)
	for _, path := range scripts {
		b, err := os.ReadFile(path)
		must(t, err)
		for _, m := range scenario.FindAllSubmatch(b, -1) {
			tests["TestScripts/"+strings.TrimSuffix(filepath.Base(path), ".txt")+"/"+string(m[1])] = true
		}
	}
	return tests
}

// namesIn returns the names that a file declares: functions, methods as Type.method, types, constants and variables.
func namesIn(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	must(t, err)
	names := map[string]bool{}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names[receiver(d)+d.Name.Name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					names[s.Name.Name] = true
				case *ast.ValueSpec:
					for _, n := range s.Names {
						names[n.Name] = true
					}
				}
			}
		}
	}
	return names
}

// receiver returns the type of a method and a dot.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	switch generic := of.(type) {
	case *ast.IndexExpr:
		of = generic.X
	case *ast.IndexListExpr:
		of = generic.X
	}
	return fmt.Sprint(of, ".")
}

// TestPinnedVersions protects that go.mod has at least the releases that fixed what oncebus cannot work around
// (hazards A1 to A3, A22, E4).
func TestPinnedVersions(t *testing.T) {
	b, err := os.ReadFile("../go.mod")
	must(t, err)
	for module, least := range map[string][3]int{"github.com/twmb/franz-go": {1, 22, 3}, "github.com/dgraph-io/badger/v4": {4, 9, 6}} {
		m := regexp.MustCompile(`(?m)^\s*(?:require )?` + regexp.QuoteMeta(module) + ` v(\d+)\.(\d+)\.(\d+)`).FindSubmatch(b)
		if m == nil {
			t.Errorf("go.mod does not require %s", module)
			continue
		}
		var have [3]int
		for n := range have {
			have[n], _ = strconv.Atoi(string(m[n+1])) // digits, says the pattern
		}
		if slices.Compare(have[:], least[:]) < 0 {
			t.Errorf("%s is at %v, it must be at least %v", module, have, least)
		}
	}
}
