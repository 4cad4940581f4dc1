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

// shared is the common binary of a package's tests; see Shared.
var shared struct {
	sync.Mutex
	dir  string
	path string
	err  error
}

// Shared returns the common binary of the package's tests. The first call builds it,
// with the race detector if there is a C compiler. The package's TestMain runs its
// tests by [Main], which removes it.
func Shared(tb testing.TB) string {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.path == "" && shared.err == nil {
		// Not the context of the first test: the binary outlives it.
		shared.path, shared.err = buildShared(context.WithoutCancel(tb.Context()))
	}
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	return shared.path
}

func buildShared(ctx context.Context) (path string, err error) {
	if shared.dir, err = os.MkdirTemp("", "oncebus-real-"); err != nil {
		return "", fmt.Errorf("make the directory of the built program: %w", err)
	}
	if raceAvailable(ctx) {
		return build(ctx, shared.dir, "CGO_ENABLED=1", "-race")
	}
	return Build(ctx, shared.dir)
}

// raceAvailable reports whether go can build with the race detector, which needs cgo
// and a C compiler.
func raceAvailable(ctx context.Context) bool {
	out, err := exec.CommandContext(ctx, "go", "env", "CGO_ENABLED", "CC").Output()
	enabled, compiler, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil || enabled != "1" || compiler == "" {
		return false
	}
	_, err = exec.LookPath(strings.Fields(compiler)[0])
	return err == nil
}

// Tests is a package's tests with the broker and the binary that they share. It
// satisfies goleak.TestingM.
type Tests struct{ kafka kafkatest.Tests }

// Main prepares a package's tests with a shared broker and binary, for TestMain.
func Main(m *testing.M) Tests { return Tests{kafkatest.Main(m)} }

// Run runs the tests, closes the shared broker, removes the shared binary, and
// returns the exit code.
func (t Tests) Run() int {
	code := t.kafka.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.dir == "" {
		return code
	}
	if err := os.RemoveAll(shared.dir); err != nil {
		fmt.Fprintln(os.Stderr, errors.Join(errors.New("program: remove the shared binary"), err))
		return max(code, 1)
	}
	return code
}
