package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// commit is the commit from which a release is built.
type commit struct {
	hash string
	time time.Time // when it was committed, in seconds and UTC: the time of everything in the release
	tag  string    // the version, such as v0.1.0; "" if the commit has no version tag
}

// semantic matches a tag that is a semantic version.
var semantic = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// version returns the version as file names contain it: 0.1.0, or devel+ and the commit.
func (c commit) version() string {
	if c.tag == "" {
		return "devel+" + c.hash[:12]
	}
	return strings.TrimPrefix(c.tag, "v")
}

// headOf returns the commit that is checked out in dir.
func headOf(ctx context.Context, dir string) (commit, error) {
	hash, err := git(ctx, dir, "rev-parse", "HEAD")
	if err != nil {
		return commit{}, fmt.Errorf("a release is built from a commit of a git repository: %w", err)
	}
	seconds, err := git(ctx, dir, "log", "-1", "--no-show-signature", "--format=%ct", hash)
	if err != nil {
		return commit{}, err
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return commit{}, fmt.Errorf("time of commit %s: %w", hash, err)
	}
	tags, err := git(ctx, dir, "tag", "--points-at", hash, "--list", "v*")
	if err != nil {
		return commit{}, err
	}
	c := commit{hash: hash, time: time.Unix(unix, 0).UTC()}
	for tag := range strings.FieldsSeq(tags) {
		if !semantic.MatchString(tag) {
			continue
		}
		if c.tag != "" {
			return commit{}, fmt.Errorf("commit %s has two versions, %s and %s: delete one of the tags", hash, c.tag, tag)
		}
		c.tag = tag
	}
	return c, nil
}

// changedFiles counts the files of the work tree that differ from the commit.
func changedFiles(ctx context.Context, dir string) (int, error) {
	status, err := git(ctx, dir, "status", "--porcelain")
	if err != nil || status == "" {
		return 0, err
	}
	return strings.Count(status, "\n") + 1, nil
}

// checkOut clones the repository of dir into the new directory to, at the commit. The clone has only the tag of the
// commit, from which the compiler takes the version. If the commit has no tag, the clone must not have earlier tags:
// the compiler would count from the previous tag, which not every clone has.
func checkOut(ctx context.Context, dir, to string, c commit) error {
	top, err := git(ctx, dir, "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	// The user's git settings must not change the bytes of a file.
	if _, err := git(ctx, dir, "clone", "-q", "--no-checkout", "--no-tags", "-c", "core.autocrlf=false", "-c", "core.eol=lf", "--", top, to); err != nil {
		return err
	}
	if _, err := git(ctx, to, "checkout", "-q", "--detach", c.hash); err != nil || c.tag == "" {
		return err
	}
	_, err = git(ctx, to, "tag", "--no-sign", c.tag, c.hash)
	return err
}

// git returns the output of git in dir, without the last line feed.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	return output(ctx, dir, append(environ(), "LC_ALL=C"), "git", args...)
}

// environ returns the environment without the variables that name another git repository, such as those that git sets
// for a hook.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "GIT_DIR=") || strings.HasPrefix(v, "GIT_WORK_TREE=") || strings.HasPrefix(v, "GIT_INDEX_FILE=")
	})
}

// output runs a command and returns its standard output without the last line feed. The error contains the end of the
// command's standard error.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.Output()
	if err != nil {
		text := ""
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			text = strings.TrimSpace(string(exit.Stderr))
		}
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, text)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
