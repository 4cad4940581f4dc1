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

// Build builds oncebus into dir, as `make build` does, and returns the path of the binary. flags are added to the
// flags of go build.
func Build(ctx context.Context, dir string, flags ...string) (string, error) {
	return build(ctx, dir, "CGO_ENABLED=0", flags...)
}

func build(ctx context.Context, dir, cgo string, flags ...string) (string, error) {
	path := filepath.Join(dir, "oncebus")
	// The binary gets no version stamp, because git refuses to read a checkout that belongs to another user.
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-o", path}, flags...)
	//nolint:gosec // the program is go of PATH and the arguments are the callers' constants.
	cmd := exec.CommandContext(ctx, "go", append(args, mainPackage)...)
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s (this needs go in PATH and the module's directory): %w: %s", mainPackage, err, bytes.TrimSpace(out))
	}
	return path, nil
}

// binary is a program that the tests of a package share.
type binary struct {
	sync.Mutex
	dir  string
	path string
	err  error
}

// The binaries that the tests of a package share; see the functions Shared and Release.
var shared, release binary

// Shared returns the binary of oncebus that the tests of the package share. The first call builds it, with the race
// detector if the tests were built with it. The package's TestMain runs its tests by [Main], which removes the
// binary.
func Shared(tb testing.TB) string {
	tb.Helper()
	if !racing {
		return Release(tb)
	}
	return shared.get(tb, func(ctx context.Context, dir string) (string, error) {
		return build(ctx, dir, "CGO_ENABLED=1", "-race")
	})
}

// Release is [Shared] without the race detector, which makes a process about five times slower. It is for tests with
// a high load, or with more processes than the machine has room for.
func Release(tb testing.TB) string {
	tb.Helper()
	return release.get(tb, func(ctx context.Context, dir string) (string, error) { return Build(ctx, dir) })
}

// get returns the path of the binary. The first call builds it into a new directory.
func (b *binary) get(tb testing.TB, build func(ctx context.Context, dir string) (string, error)) string {
	tb.Helper()
	b.Lock()
	defer b.Unlock()
	if b.path == "" && b.err == nil {
		// The binary outlives the first test, so it uses neither that test's directory nor its context.
		if b.dir, b.err = os.MkdirTemp("", "oncebus-real-"); b.err == nil { //nolint:usetesting // see above
			b.path, b.err = build(context.WithoutCancel(tb.Context()), b.dir)
		}
	}
	if b.err != nil {
		tb.Fatalf("the built program: %v", b.err)
	}
	return b.path
}

// remove removes the binary if it was built.
func (b *binary) remove() error {
	b.Lock()
	defer b.Unlock()
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}

// Tests runs the tests of a package with the broker and the binaries that they share. It implements goleak.TestingM.
type Tests struct{ kafka kafkatest.Tests }

// Main prepares the tests of a package that share a broker and binaries. TestMain calls it.
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
