package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// tree has everything that decides what a change needs: the packages of the module with their imports and tests, and
// the table.
type tree struct {
	packages  map[string]*pkg // by directory, relative to the module, such as "dedup/rules"
	importers map[string][]string
	table     []row
}

// pkg is a Go package of the module.
type pkg struct {
	Dir, ImportPath                    string
	Imports, TestImports, XTestImports []string
	TestGoFiles, XTestGoFiles          []string

	tests []test
}

// test is a test, a fuzz target or an example of a package.
type test struct{ name, file string }

// readTree reads the module in a directory.
func readTree(root string) (*tree, error) {
	out, err := output("go", "-C", root, "list", "-tags", "synctests,mutants,release",
		"-json=Dir,ImportPath,Imports,TestImports,XTestImports,TestGoFiles,XTestGoFiles", "./...", "./.ci/select", "./.ci/size")
	if err != nil {
		return nil, err
	}
	t := &tree{packages: map[string]*pkg{}, importers: map[string][]string{}}
	if root, err = filepath.Abs(root); err != nil {
		return nil, err
	}
	dirs := map[string]string{} // the directory of each package, by import path
	for in := json.NewDecoder(strings.NewReader(string(out))); ; {
		p := &pkg{}
		if err := in.Decode(p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the output of go list: %w", err)
		}
		if err := p.readTests(); err != nil {
			return nil, err
		}
		dir, err := filepath.Rel(root, p.Dir)
		if err != nil {
			return nil, err
		}
		p.Dir = filepath.ToSlash(dir)
		t.packages[p.Dir], dirs[p.ImportPath] = p, p.Dir
	}
	for dir, p := range t.packages {
		for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if imported, ours := dirs[path]; ours {
				t.importers[imported] = append(t.importers[imported], dir)
			}
		}
	}
	t.table, err = readTable(filepath.Join(root, ".ci", "paths"))
	return t, err
}

// testName matches the declaration of a function that go test runs.
var testName = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)[A-Za-z0-9_]*)\(`)

// readTests finds the tests of the package.
func (p *pkg) readTests() error {
	for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
		text, err := os.ReadFile(filepath.Join(p.Dir, file))
		if err != nil {
			return err
		}
		for _, found := range testName.FindAllStringSubmatch(string(text), -1) {
			if found[1] != "TestMain" {
				p.tests = append(p.tests, test{found[1], file})
			}
		}
	}
	slices.SortFunc(p.tests, func(a, b test) int { return strings.Compare(a.name, b.name) })
	return nil
}

// owner returns the directory of the package that a file belongs to. If the file's own directory is no package, as
// with test data, owner returns the nearest package above it. ok is false if there is none.
func (t *tree) owner(file string) (dir string, ok bool) {
	for dir = path.Dir(file); dir != "."; dir = path.Dir(dir) {
		if _, ok := t.packages[dir]; ok {
			return dir, true
		}
	}
	return "", false
}

// touched returns the directories of the packages that a change of files can break: the packages of the files and, if
// the change is in code, the packages that import them directly or through others, including imports of tests.
func (t *tree) touched(files []string) []string {
	found := map[string]bool{}
	var add func(dir string)
	add = func(dir string) {
		if !found[dir] {
			found[dir] = true
			for _, importer := range t.importers[dir] {
				add(importer)
			}
		}
	}
	code := map[string]bool{}
	for _, file := range files {
		if dir, ok := t.owner(file); ok && !isPage(file) {
			code[dir] = code[dir] || !isTestOnly(file)
		}
	}
	for dir, isCode := range code {
		if isCode {
			add(dir)
		}
	}
	for dir := range code {
		found[dir] = true // not by add, because no package imports the tests of another package
	}
	return slices.Sorted(maps.Keys(found))
}

func isPage(file string) bool { return strings.HasSuffix(file, ".md") }

func isTestOnly(file string) bool {
	return strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/testdata/")
}
