//go:build unix

package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// PreviousCommit is the commit of the program before this one: the newest landed state, whose processes must be able
// to run in one app together with processes of this build. Whoever lands the next state moves it on. A shallow clone
// may lack the commit.
const PreviousCommit = "cd49a73594a8a2007bbafbe571ae12da8998cd40"

// ErrNoCommit is wrapped by the error of BuildCommit if the repository has no such commit.
var ErrNoCommit = errors.New("no such commit in the history here")

// BuildCommit builds oncebus as of a commit of this repository. It puts the checkout and the binary below dir and
// returns the binary's path. flags are added to the flags of go build.
func BuildCommit(ctx context.Context, commit, dir string, flags ...string) (string, error) {
	// git refuses to read a checkout of another user unless safe.directory allows it.
	git := []string{"git", "-c", "safe.directory=*"}
	if _, err := runIn(ctx, "", append(git, "cat-file", "-e", commit+"^{commit}")...); err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrNoCommit, commit, err)
	}
	root, err := runIn(ctx, "", append(git, "rev-parse", "--show-toplevel")...)
	if err != nil {
		return "", err
	}
	source, archive, binary := filepath.Join(dir, "source"), filepath.Join(dir, "source.tar"), filepath.Join(dir, "oncebus")
	if err := os.MkdirAll(source, 0o700); err != nil {
		return "", err
	}
	build := append([]string{"go", "build", "-trimpath", "-buildvcs=false", "-o", binary}, flags...)
	for _, step := range []struct {
		dir     string
		command []string
	}{
		{strings.TrimSpace(root), append(git, "archive", "--output="+archive, commit)},
		{source, []string{"tar", "-xf", archive}},
		{source, append(build, "./cmd/oncebus")},
	} {
		if _, err := runIn(ctx, step.dir, step.command...); err != nil {
			return "", err
		}
	}
	return binary, nil
}

// runIn runs a program in a directory and returns its output.
func runIn(ctx context.Context, dir string, command ...string) (string, error) {
	//nolint:gosec // the programs are git, tar and go of PATH, and the arguments are the callers' constants.
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var out, problems bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), "CGO_ENABLED=0"), &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run %v: %w: %s", cmd.Args, err, bytes.TrimSpace(problems.Bytes()))
	}
	return out.String(), nil
}
