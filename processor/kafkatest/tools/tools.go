package tools

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"oncebus/processor/kafkatest"
)

// Need skips the test if a command fails, for example the command that prints a tool's version.
func Need(t *testing.T, tool string, args ...string) {
	t.Helper()
	run(t, "", tool, args...)
}

// Build runs a command in a directory. It may need the network.
func Build(t *testing.T, dir, tool string, args ...string) {
	t.Helper()
	run(t, dir, tool, args...)
}

func run(t *testing.T, dir, tool string, args ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), tool, args...) //nolint:gosec // the callers are tests, with constants
	command.Dir = dir
	if out, err := command.CombinedOutput(); err != nil {
		kafkatest.Lack(t, "%s %s: %v %s", tool, strings.Join(args, " "), err, out)
	}
}

// Made returns a directory of the user's cache that has copies of the given files of root. build is called with the
// directory once, when the directory is made.
func Made(t *testing.T, name, root string, files []string, build func(dir string)) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	must(t, err)
	sum := sha256.New()
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, file))
		must(t, err)
		fmt.Fprintf(sum, "%s %d\n%s", file, len(text), text)
	}
	dir := filepath.Join(cache, "oncebus", fmt.Sprintf("%s-%x", name, sum.Sum(nil)[:8]))
	complete := filepath.Join(dir, "complete")
	if _, err := os.Stat(complete); err == nil {
		return dir
	}
	must(t, os.RemoveAll(dir))
	must(t, os.MkdirAll(dir, 0o750))
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, file))
		must(t, err)
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o750))
		must(t, os.WriteFile(filepath.Join(dir, file), text, 0o600)) //nolint:gosec // the callers are tests, with constants
	}
	build(dir)
	must(t, os.WriteFile(complete, nil, 0o600))
	return dir
}

// Python returns the Python interpreter of a virtual environment in which the packages of root's requirements.lock
// are installed.
func Python(t *testing.T, name, root string) string {
	t.Helper()
	Need(t, "python3", "-c", "import venv, ensurepip")
	dir := Made(t, name, root, []string{"requirements.lock"}, func(dir string) {
		Build(t, dir, "python3", "-m", "venv", dir)
		Build(t, dir, filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r", "requirements.lock")
	})
	return filepath.Join(dir, "bin", "python")
}

// Java returns the class path of a program that Maven builds from files of root. The program's pom.xml copies the
// libraries that it needs to target/lib.
func Java(t *testing.T, name, root string, files ...string) string {
	t.Helper()
	Need(t, "javac", "-version")
	Need(t, "mvn", "--version")
	dir := Made(t, name, root, append(files, "pom.xml"), func(dir string) {
		Build(t, dir, "mvn", "--batch-mode", "--quiet", "package")
	})
	return filepath.Join(dir, "target", "*") + string(filepath.ListSeparator) + filepath.Join(dir, "target", "lib", "*")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
