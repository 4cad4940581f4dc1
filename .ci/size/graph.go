package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path"
	"slices"
	"strings"
)

// A pkg is a package as a graph of its files without tests, in the order of their names. uses[a][b] says that file a uses a package-level
// name or a method that file b declares. That is one arrow from a to b, however often a uses b. Fields make no arrow.
type pkg struct {
	dir    string
	uses   []map[int]bool
	arrows int
	byNil  int // comparisons of transactions.tasks or transactions.router with nil: there the code asks in which stage it is
	embeds int // fields of structs that embed the type shared
}

// readPackages reads the package of each directory.
func readPackages(files []file) (packages []*pkg, err error) {
	byDir := map[string][]file{}
	for _, f := range files {
		if kind := kindOf(f.name); kind == service || kind == proof {
			byDir[path.Dir(f.name)] = append(byDir[path.Dir(f.name)], f)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(byDir)) {
		p, err := readPackage(dir, byDir[dir])
		if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// readPackage reads a package without its imports: only its own names make arrows, and so nothing has to be built. The price is a value
// whose type only an import tells, as in a loop over slices.Sorted: a method called on it makes no arrow. Those are 3 of 1345 arrows in the
// packages of layered, as of November 2026.
func readPackage(dir string, files []file) (*pkg, error) {
	p, positions, index := &pkg{dir: dir}, token.NewFileSet(), map[string]int{}
	var parsed []*ast.File
	for i, f := range files {
		syntax, err := parser.ParseFile(positions, f.name, f.text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		parsed, index[f.name], p.uses = append(parsed, syntax), i, append(p.uses, map[int]bool{})
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	config := types.Config{Error: func(error) {}} // the errors are those of the missing imports
	checked, _ := config.Check(dir, positions, parsed, info)
	for name, used := range info.Uses {
		f, isFunc := used.(*types.Func)
		isMethod := isFunc && f.Signature().Recv() != nil
		from, to := positions.Position(name.Pos()).Filename, positions.Position(used.Pos()).Filename
		if used.Pkg() == checked && (used.Parent() == checked.Scope() || isMethod) && from != to {
			p.uses[index[from]][index[to]] = true
		}
	}
	for _, used := range p.uses {
		p.arrows += len(used)
	}
	for _, f := range parsed {
		if strings.HasPrefix(dir+"/", "processor/") {
			p.countStages(f, info)
		}
	}
	return p, nil
}

// countStages counts byNil and embeds. Types of these names in packages below processor count too, so that a move alone changes no figure.
func (p *pkg) countStages(f *ast.File, info *types.Info) {
	asks := func(field, null ast.Expr) bool {
		selector, _ := field.(*ast.SelectorExpr)
		s := info.Selections[selector]
		return s != nil && strings.HasSuffix(s.Recv().String(), ".transactions") &&
			(s.Obj().Name() == "tasks" || s.Obj().Name() == "router") && types.ExprString(null) == "nil"
	}
	ast.Inspect(f, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.BinaryExpr:
			if asks(n.X, n.Y) || asks(n.Y, n.X) {
				p.byNil++
			}
		case *ast.StructType:
			for _, field := range n.Fields.List {
				if field.Names == nil && strings.TrimPrefix(types.ExprString(field.Type), "*") == "shared" {
					p.embeds++
				}
			}
		}
		return true
	})
}

// reach returns, for each file, itself and the files that it uses, directly or through others.
func (p *pkg) reach() []map[int]bool {
	reach := make([]map[int]bool, len(p.uses))
	for a := range reach {
		reach[a] = map[int]bool{a: true}
		for next := []int{a}; len(next) > 0; next = next[1:] {
			for b := range p.uses[next[0]] {
				if !reach[a][b] {
					reach[a][b], next = true, append(next, b)
				}
			}
		}
	}
	return reach
}

// circle returns how many files the largest circle has: the largest strongly connected component of the graph. Each file of a circle uses
// all others of it, directly or through files between them, so that none of them can be understood alone.
func (p *pkg) circle() (largest int) {
	reach := p.reach()
	for a := range reach {
		n := 0
		for b := range reach[a] {
			if reach[b][a] {
				n++
			}
		}
		largest = max(largest, n)
	}
	return largest
}

// up returns how many arrows point up. Imagine the files from top to bottom so that as few as possible do: a file uses those below it. At
// first the file that reaches the most is at the top, so that arrows up are within circles alone. There the best order is too costly to
// find. So each file in turn, by name, moves to the first place where the fewest of its arrows point up, until a round of all files
// improves nothing. That comes near, and gives the same figure each time.
func (p *pkg) up() int {
	reach, order := p.reach(), make([]int, len(p.uses))
	for f := range order {
		order[f] = f
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(reach[b]) - len(reach[a]) })
	for before := p.arrows + 1; p.against(order) < before; {
		before = p.against(order)
		for f := range p.uses {
			order = slices.DeleteFunc(order, func(other int) bool { return other == f })
			best, cost, least := 0, 0, 0
			for place, other := range order { // behind a file that f uses, one more arrow points up; behind one that uses f, one less
				cost += one[p.uses[f][other]] - one[p.uses[other][f]]
				if cost < least {
					best, least = place+1, cost
				}
			}
			order = slices.Insert(order, best, f)
		}
	}
	return p.against(order)
}

// against counts the arrows from a file to one before it.
func (p *pkg) against(order []int) (n int) {
	for i, a := range order {
		for _, b := range order[:i] {
			n += one[p.uses[a][b]]
		}
	}
	return n
}

// one counts an arrow that is there.
var one = map[bool]int{true: 1}
