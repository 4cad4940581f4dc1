// Command size prints how large the tree is and how its files hang together, each figure with the target of issue 43. make size runs it. It
// reads the files that git has or would add, as they are in the directory: a change shows before it is committed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// A file is one of the tree: its path from the root, with slashes, and its text.
type file struct{ name, text string }

func main() {
	files, err := readTree()
	if err == nil {
		err = printTable(files)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "size:", err)
		os.Exit(1)
	}
}

// readTree reads the files of the tree. It leaves out a file that git has and the directory has not: its removal is not committed yet.
func readTree() (files []file, err error) {
	cmd := exec.CommandContext(context.Background(), "git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard")
	names, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		text, err := os.ReadFile(name)
		if err == nil {
			files = append(files, file{name, string(text)})
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return files, nil
}

// The kinds of files. Those of Go are tests, which go test runs, proof, which shows otherwise that the service is right and fast, and
// service, which runs at an operator: the service itself, its commands, what is deployed.
const service, proof, tests, page, other = "service", "proof", "tests", "page", "other"

// kindOf tells the kind of a file by its path. The mutants are tests: each is a defect that a test has to see. A folder whose name ends in
// test has a harness, as kafkatest: that is proof, with all below it.
func kindOf(name string) string {
	folders := strings.Split(path.Dir(name), "/")
	switch {
	case strings.HasSuffix(name, ".md"):
		return page
	case !strings.HasSuffix(name, ".go"):
		return other
	case strings.HasSuffix(name, "_test.go") || slices.Contains(folders, "mutants"):
		return tests
	case slices.ContainsFunc(folders, func(folder string) bool {
		return slices.Contains([]string{".ci", "benchmarks", "oracle", "explore"}, folder) || strings.HasSuffix(folder, "test")
	}):
		return proof
	}
	return service
}

// layered are the packages whose arrows up are counted: those that had the most when the targets were set. If one of them is split, the
// files that it loses leave the sum, so the table says which packages the sum is of.
var layered = []string{"processor", "processor/judge", "processor/app", "dedup/rules", "processor/ingress"}

// printTable prints a row for each figure: its name, today's value, its target, and what makes it so large.
func printTable(files []file) error {
	packages, err := readPackages(files)
	if err != nil {
		return err
	}
	var up, arrows, byNil, embeds, results int
	var upIn []string
	for _, p := range packages {
		byNil, embeds = byNil+p.byNil, embeds+p.embeds
		if slices.Contains(layered, p.dir) {
			n := p.up()
			up, arrows, upIn = up+n, arrows+p.arrows, append(upIn, fmt.Sprintf("%s %d/%d", p.dir, n, p.arrows))
		}
	}
	bytes, lines, wide := map[string]int{}, map[string]int{}, map[string]int{} // by kind
	for _, f := range files {
		kind := kindOf(f.name)
		bytes[kind] += len(f.text)
		if strings.HasPrefix(f.name, "benchmarks/results/") {
			results += len(f.text)
		}
		for line := range strings.Lines(f.text) {
			lines[kind]++
			if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 140 { // a tab is one column, as in the limit of comments
				wide[kind]++
			}
		}
	}
	circled := slices.MaxFunc(packages, func(a, b *pkg) int { return a.circle() - b.circle() })
	slices.SortStableFunc(packages, func(a, b *pkg) int { return len(a.uses) - len(b.uses) })
	median, largest := packages[len(packages)/2], packages[len(packages)-1]

	table := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	row := func(cells ...any) { fmt.Fprintf(table, "%v\t%v\t%v\t%v\n", cells...) }
	row("", "today", "target", "where")
	row("lines of Go: service and commands", lines[service], 65000, "cmd, dedup, deployments, processor, state")
	row("lines of Go: proof and benchmarks", lines[proof], 22000, "benchmarks, oracle, explore, harnesses, .ci")
	row("lines of Go: tests", lines[tests], 68000, "_test.go, mutants")
	row("largest circle of files in a package", circled.circle(), 9, fmt.Sprintf("%s, of %d files", circled.dir, len(circled.uses)))
	row("arrows up / all", fmt.Sprintf("%d / %d", up, arrows), 90, strings.Join(upIn, ", "))
	row("files in a package, median / largest", fmt.Sprintf("%d / %d", len(median.uses), len(largest.uses)), "9 / 20", largest.dir)
	row(`tests "which stage am I" by nil`, byNil, 0, "transactions.tasks, transactions.router")
	row("types that embed shared", embeds, 0, "processor and below")
	row("Markdown, KB", bytes[page]/1000, 350, "all pages, those of results too")
	row("results, KB", results/1000, 60, "benchmarks/results")
	row("lines of Go over 140 columns", wide[service]+wide[proof]+wide[tests], 100,
		fmt.Sprintf("service %d, proof %d, tests %d", wide[service], wide[proof], wide[tests]))
	fmt.Fprintln(table, "\nNot measured: the files that an event passes from poll to commit (target 30). Only a reader can count them.")
	return table.Flush()
}
