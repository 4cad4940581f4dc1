package main_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// repositoryFiles returns all files with one of the extensions, as paths from the
// root, without the records of past runs in benchmarks/results.
func repositoryFiles(t *testing.T, extensions ...string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(moduleRoot, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(moduleRoot, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		switch {
		case d.IsDir() && (name == ".git" || name == "benchmarks/results" || name == "bin"):
			return filepath.SkipDir
		case !d.IsDir() && slices.Contains(extensions, filepath.Ext(name)):
			paths = append(paths, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// text is one comment, string, name or page.
type text struct{ words []word }

// textsOf returns the texts of a file, its name included.
func textsOf(t *testing.T, path string) []text {
	t.Helper()
	texts := []text{{splitWords(path, 1)}}
	b, err := os.ReadFile(filepath.Join(moduleRoot, path))
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(path) == ".md" {
		return append(texts, text{splitWords(string(b), 1)})
	}
	found, err := goTexts(b)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return append(texts, found...)
}

// goTexts returns the comments, string literals and declared names of a Go file.
func goTexts(source []byte) ([]text, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var texts []text
	for _, group := range file.Comments {
		var words []word
		for _, c := range group.List { // one text, because a phrase may span two lines
			words = append(words, splitWords(c.Text, fset.Position(c.Pos()).Line)...)
		}
		texts = append(texts, text{words})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				texts = append(texts, stringText(n.Value, fset.Position(n.Pos()).Line))
			}
		}
		for _, id := range declaredNames(n) {
			texts = append(texts, text{splitWords(id.Name, fset.Position(id.Pos()).Line)})
		}
		return true
	})
	return texts, nil
}

// stringText returns the text of a string literal. Only a raw string can span
// lines; in others \n is a character of one line.
func stringText(literal string, line int) text {
	value, err := strconv.Unquote(literal)
	if err != nil || literal[0] == '`' {
		return text{splitWords(literal, line)}
	}
	return text{splitWords(strings.ReplaceAll(value, "\n", " "), line)}
}

// declaredNames returns the names that a node declares.
func declaredNames(n ast.Node) []*ast.Ident {
	var declared []ast.Expr
	switch n := n.(type) {
	case *ast.File:
		return []*ast.Ident{n.Name}
	case *ast.FuncDecl:
		return []*ast.Ident{n.Name}
	case *ast.TypeSpec:
		return []*ast.Ident{n.Name}
	case *ast.LabeledStmt:
		return []*ast.Ident{n.Label}
	case *ast.Field:
		return n.Names
	case *ast.ValueSpec:
		return n.Names
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			declared = n.Lhs
		}
	case *ast.RangeStmt:
		if n.Tok == token.DEFINE {
			declared = []ast.Expr{n.Key, n.Value}
		}
	}
	var names []*ast.Ident
	for _, e := range declared {
		if id, ok := e.(*ast.Ident); ok {
			names = append(names, id)
		}
	}
	return names
}

func TestGoTexts(t *testing.T) {
	texts, err := goTexts([]byte(`package alpha

import _ "imported"

// Beta does
// gamma.
func (delta Epsilon) Beta(zeta int) (eta error) {
	for theta, iota := range used {
		kappa := "lambda" + ` + "`raw\nmu`" + ` // nu
		_, _ = kappa, iota
	}
xi:
	var omicron struct{ pi int }
	goto xi
}
`))
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int)
	for _, text := range texts {
		for _, w := range text.words {
			found[w.text] = w.line
		}
	}
	for name, line := range map[string]int{
		"alpha": 1, "gamma": 6, "beta": 7, "delta": 7, "zeta": 7, "eta": 7, "theta": 8, "kappa": 9,
		"lambda": 9, "raw": 9, "mu": 10, "nu": 10, "xi": 13, "omicron": 14, "pi": 14,
	} {
		if found[name] != line {
			t.Errorf("%s is found at line %d, want %d", name, found[name], line)
		}
	}
	for _, name := range []string{"imported", "used", "epsilon"} {
		if found[name] != 0 {
			t.Errorf("%s is not declared, but found", name)
		}
	}
}
