//go:build unix

package kafkatest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// moduleRoot is the root directory of the module.
const moduleRoot = "../.."

var (
	// needsMore matches the calls that only a test that needs more than Go may make.
	needsMore = regexp.MustCompile(`^(kafkatest\.(Start|StartNodes|Shared|Lack)|exec\.LookPath|tools\.[A-Z]\w*|program\.BuildCommit)$`)
	// mayNeedMore matches the names of tests that may need more than Go: make test leaves out TestReal, runs
	// TestSystem on an embedded broker, and leaves TestRelease to make release-check.
	mayNeedMore = regexp.MustCompile(`^Test(Real|System|Release)`)
)

// TestOtherTestsNeedGoAlone: a test that needs a real Kafka or another program must have a name that begins with
// TestReal. The rule also holds for a test that reaches such a call through a function in the test files of its
// package.
func TestOtherTestsNeedGoAlone(t *testing.T) {
	packages := map[string]map[string]*ast.FuncDecl{}
	err := filepath.WalkDir(moduleRoot, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		if packages[dir] == nil {
			packages[dir] = map[string]*ast.FuncDecl{}
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Body != nil {
				packages[dir][f.Name.Name] = f
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for dir, functions := range packages {
		for name := range functions {
			call := needs(functions, name, map[string]bool{})
			if call != "" && mayNeedMore.MatchString(name) {
				named++
			} else if call != "" && strings.HasPrefix(name, "Test") && name != "TestMain" {
				t.Errorf("%s: %s calls %s: a test that needs more than Go is named TestReal", dir, name, call)
			}
		}
	}
	if named < 50 {
		t.Errorf("%d tests need more than Go: are they named differently now?", named)
	}
}

// needs returns a call that needs more than Go and that the function makes itself or through other functions; "" if
// it makes none.
func needs(functions map[string]*ast.FuncDecl, name string, seen map[string]bool) (call string) {
	if functions[name] == nil || seen[name] {
		return ""
	}
	seen[name] = true
	ast.Inspect(functions[name].Body, func(node ast.Node) bool {
		switch x := node.(type) {
		case *ast.SelectorExpr:
			if of, ok := x.X.(*ast.Ident); ok && call == "" && needsMore.MatchString(of.Name+"."+x.Sel.Name) {
				call = of.Name + "." + x.Sel.Name
			}
		case *ast.CallExpr:
			if other, ok := x.Fun.(*ast.Ident); ok && call == "" {
				call = needs(functions, other.Name, seen)
			}
		}
		return call == ""
	})
	return call
}
