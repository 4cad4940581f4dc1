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
	"sync"
	"testing"

	"oncebus/processor/kafkatest"
)

// mainPackage is the package that Build builds.
const mainPackage = "oncebus/cmd/oncebus"

// Build builds oncebus into dir, as `make build` does, and returns the binary's path.
// flags are further flags of go build.
func Build(ctx context.Context, dir string, flags ...string) (string, error) {
	return build(ctx, dir, "CGO_ENABLED=0", flags...)
}

func build(ctx context.Context, dir, cgo string, flags ...string) (string, error) {
	path := filepath.Join(dir, "oncebus")
	// No version stamp: git refuses to read a checkout of another user.
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-o", path}, flags...)
	//nolint:gosec // the program is go of PATH and the arguments are the callers' constants.
	cmd := exec.CommandContext(ctx, "go", append(args, mainPackage)...)
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s (this needs go in PATH and the module's directory): %w: %s", mainPackage, err, bytes.TrimSpace(out))
	}
	return path, nil
}

// A binary is one that the tests of a package share.
type binary struct {
	sync.Mutex
	dir  string
	path string
	err  error
}

// The common binaries of a package's tests; see Shared and Release.
var shared, release binary

// Shared returns the common binary of the package's tests. The first call builds it, with
// the race detector if the tests have it. The package's TestMain runs its tests by [Main],
// which removes it.
func Shared(tb testing.TB) string {
	tb.Helper()
	if !racing {
		return Release(tb)
	}
	return shared.get(tb, func(ctx context.Context, dir string) (string, error) {
		return build(ctx, dir, "CGO_ENABLED=1", "-race")
	})
}

// Release is [Shared] without the race detector, which makes a process some five times slower:
// for tests with a load, or with more processes than the machine has room for.
func Release(tb testing.TB) string {
	tb.Helper()
	return release.get(tb, func(ctx context.Context, dir string) (string, error) { return Build(ctx, dir) })
}

// get returns the binary's path; the first call builds it into a new directory.
func (b *binary) get(tb testing.TB, build func(ctx context.Context, dir string) (string, error)) string {
	tb.Helper()
	b.Lock()
	defer b.Unlock()
	if b.path == "" && b.err == nil {
		// Neither the directory nor the context of the first test: the binary outlives it.
		if b.dir, b.err = os.MkdirTemp("", "oncebus-real-"); b.err == nil { //nolint:usetesting // see above
			b.path, b.err = build(context.WithoutCancel(tb.Context()), b.dir)
		}
	}
	if b.err != nil {
		tb.Fatalf("the built program: %v", b.err)
	}
	return b.path
}

// remove removes the binary, if there is one.
func (b *binary) remove() error {
	b.Lock()
	defer b.Unlock()
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}

// Tests is a package's tests with the broker and the binaries that they share. It
// satisfies goleak.TestingM.
type Tests struct{ kafka kafkatest.Tests }

// Main prepares a package's tests with a shared broker and binaries, for TestMain.
func Main(m *testing.M) Tests { return Tests{kafkatest.Main(m)} }

// Run runs the tests, closes the shared broker, removes the shared binaries, and
// returns the exit code.
func (t Tests) Run() int {
	code := t.kafka.Run()
	if err := errors.Join(shared.remove(), release.remove()); err != nil {
		fmt.Fprintln(os.Stderr, errors.Join(errors.New("program: remove a shared binary"), err))
		return max(code, 1)
	}
	return code
}
