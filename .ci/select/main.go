// Command select prints the make commands that check a change, one per line. .ci/run runs these commands after make
// check and make test.
//
//	go run ./.ci/select                the change since the commit of .ci/stood, with what is not committed
//	go run ./.ci/select -since HEAD    what is not committed
//	go run ./.ci/select -verify 0/6    one part in six of everything, for make verify
//	go run ./.ci/select a.go b/c.md    a change of these files; with -each a change of each of them alone
//
// Besides make check and make test, a change needs:
//
//   - the race detector, in the packages that the change touches and in the packages that import them,
//   - the mutants in its files, and the mutants whose tests are in its files,
//   - the fuzz targets of the packages that it touches,
//   - what the table .ci/paths lists for its files: tests with a real Kafka or another program, rows of faults, the
//     chart and more.
//
// A file that belongs to no package and to no row of the table needs everything. Only if such a file is gone does it
// need nothing: what used it must have changed too, or fails. If the commit to compare with is not in the history,
// the change also needs everything.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// everything is the command for a change that may break anything.
const everything = "make verify"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "select:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("select", flag.ContinueOnError)
	since := flags.String("since", "", "compare with this commit instead of that of .ci/stood")
	verify := flags.String("verify", "", "print a part of make verify: k/n, with k from 0 to n-1")
	each := flags.Bool("each", false, "take each file as a change of its own, and print it before each command")
	if err := flags.Parse(args); err != nil {
		return err
	}
	t, err := readTree(".")
	if err != nil {
		return err
	}
	if *verify != "" {
		part, parts := 0, 1
		if _, err := fmt.Sscanf(*verify, "%d/%d", &part, &parts); err != nil || part < 0 || part >= parts {
			return fmt.Errorf("-verify %s: want k/n, with k from 0 to n-1", *verify)
		}
		return printLines(t.part(part, parts))
	}
	files := flags.Args()
	if len(files) == 0 {
		files, err = changedSince(*since)
		if errors.Is(err, errUnknownBase) {
			fmt.Fprintf(os.Stderr, "select: %v: everything is needed\n", err)
			return printLines([]string{everything})
		}
		if err != nil {
			return err
		}
		files = slices.DeleteFunc(files, t.forgets)
	}
	if *each {
		var lines []string
		for _, file := range files {
			for _, command := range t.commands([]string{file}) {
				lines = append(lines, file+"\t"+command)
			}
		}
		return printLines(lines)
	}
	return printLines(t.commands(files))
}

// forgets reports whether a file is gone and belongs to no package and to no row of the table any more.
func (t *tree) forgets(file string) bool {
	_, known := t.needsOf(file)
	_, err := os.Stat(file)
	return !known && errors.Is(err, fs.ErrNotExist)
}

func printLines(lines []string) error {
	for _, line := range lines {
		if _, err := fmt.Fprintln(os.Stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// errUnknownBase says that select cannot determine the commit to compare with.
var errUnknownBase = errors.New("the commit that stood the last whole check is not known")

// changedSince returns the files that differ from a commit, and the files that git does not track yet. The default
// commit is the one that passed the last whole .ci/run.
func changedSince(commit string) ([]string, error) {
	if commit == "" {
		text, err := os.ReadFile(".ci/stood")
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errUnknownBase, err)
		}
		commit = strings.TrimSpace(string(text))
	}
	if _, err := git("merge-base", "--is-ancestor", commit, "HEAD"); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errUnknownBase, commit, err)
	}
	// For a file that was moved, both its old and its new path count as changed.
	changed, err := git("diff", "--name-only", "--no-renames", commit)
	if err != nil {
		return nil, err
	}
	added, err := git("ls-files", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	files := slices.Concat(changed, added)
	slices.Sort(files)
	return slices.Compact(files), nil
}

// git runs git on the tree and returns the lines of its output. The tree may belong to another user.
func git(args ...string) ([]string, error) {
	out, err := output("git", append([]string{"-c", "safe.directory=*", "-c", "core.quotePath=off"}, args...)...)
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' }), err
}

// output runs a command in this directory.
func output(name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(context.Background(), name, args...) //nolint:gosec // go or git, with names of files of the tree
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(problems.Bytes()))
	}
	return out, nil
}
