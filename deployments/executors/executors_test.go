//go:build unix

package executors_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// TestRealExecutors runs each executor against Apache Kafka, through the command oncebus
// conformance: every rule is judged and holds.
func TestRealExecutors(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Shared(t)
	for name, prepare := range map[string]func(*testing.T) []string{"go": prepareGo, "java": prepareJava, "python": preparePython, "typescript": prepareTypeScript} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conforms(t, name, strings.Join(broker.Seeds(), ","), prepare(t))
		})
	}
}

// conforms runs oncebus conformance with the executor that a command starts.
func conforms(t *testing.T, name, brokers string, command []string) {
	t.Helper()
	journal := filepath.Join(t.TempDir(), "journal")
	prefix := "executors-" + name + "-" + filepath.Base(filepath.Dir(filepath.Dir(journal)))
	kit := exec.CommandContext(t.Context(), program.Shared(t), "conformance", "--brokers", brokers, "--topic", prefix+".run", "--outcomes", prefix+".outcomes",
		"--answers", prefix+".answers", "--group", prefix, "--create-topics", "--run", strings.Join(command, " "), "scenario.yaml")
	kit.Env = append(os.Environ(), "EXECUTOR_INSTANCE="+prefix, "EXECUTOR_RENEW_MS=1000", "EXECUTOR_START=true", "EXECUTOR_JOURNAL="+journal)
	out, err := kit.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("oncebus conformance: %v", err)
	}
	if table := pageTable(t); !strings.HasSuffix(string(out), table) {
		t.Errorf("README.md has\n%s", table)
	}
}

// pageTable returns the output of the kit on README.md.
func pageTable(t *testing.T) string {
	t.Helper()
	_, after, _ := strings.Cut(readPage(t), "$ oncebus conformance ")
	_, after, _ = strings.Cut(after, "\n")
	table, _, found := strings.Cut(after, "```")
	if !found {
		t.Fatal("README.md has no output of the kit")
	}
	return table
}

func readPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("README.md")
	must(t, err)
	return string(page)
}

// onPage fails if README.md lacks a command that the test runs.
func onPage(t *testing.T, commands ...string) {
	t.Helper()
	for _, command := range commands {
		if !strings.Contains(readPage(t), "`"+command+"`") {
			t.Errorf("README.md lacks the command %s", command)
		}
	}
}

func prepareGo(t *testing.T) []string {
	t.Helper()
	onPage(t, "go build -o executor ./deployments/executors/go")
	return []string{(&planted{}).build(t)}
}

// preparePython returns the Python of a virtual environment in the user's cache that has the locked
// client.
func preparePython(t *testing.T) []string {
	t.Helper()
	needs(t, "python3", "-c", "import venv, ensurepip")
	onPage(t, "pip install --require-hashes -r requirements.lock", "python executor.py")
	dir := cached(t, "python", "requirements.lock")
	python := filepath.Join(dir, "bin", "python")
	if !complete(dir) {
		build(t, "", "python3", "-m", "venv", dir)
		build(t, "", python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r", filepath.Join("python", "requirements.lock"))
		completed(t, dir)
	}
	return []string{python, absolute(t, "python/executor.py")}
}

var javaFiles = []string{"pom.xml", "src/main/java/Executor.java", "src/main/resources/simplelogger.properties"}

// prepareJava builds the jar with Maven.
func prepareJava(t *testing.T) []string {
	t.Helper()
	needs(t, "javac", "-version")
	needs(t, "mvn", "--version")
	onPage(t, "mvn package", "java -cp 'target/executor.jar:target/lib/*' Executor")
	dir := cached(t, "java", javaFiles...)
	if !complete(dir) {
		copied(t, dir, "java", javaFiles...)
		build(t, dir, "mvn", "--batch-mode", "--quiet", "package")
		completed(t, dir)
	}
	return []string{"java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(dir, "target", "executor.jar") + ":" + filepath.Join(dir, "target", "lib", "*"), "Executor"}
}

// prepareTypeScript compiles the executor with the locked packages.
func prepareTypeScript(t *testing.T) []string {
	t.Helper()
	needs(t, "node", "--version")
	needs(t, "npm", "--version")
	onPage(t, "npm ci", "npm run build", "node dist/executor.js")
	dir := cached(t, "typescript", "package-lock.json", "package.json", "tsconfig.json", "executor.ts")
	if !complete(dir) {
		copied(t, dir, "typescript", "package-lock.json", "package.json", "tsconfig.json", "executor.ts")
		build(t, dir, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
		build(t, dir, "npm", "run", "--silent", "build")
		completed(t, dir)
	}
	return []string{"node", filepath.Join(dir, "dist", "executor.js")}
}

// needs skips the test without a tool; with CI=true it fails.
func needs(t *testing.T, tool string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), tool, args...).CombinedOutput(); err != nil {
		missing(t, "%s %s: %v %s", tool, strings.Join(args, " "), err, out)
	}
}

func missing(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// cached returns a directory of the user's cache that is named after the content of files.
func cached(t *testing.T, language string, files ...string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	must(t, err)
	sum := sha256.New()
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(language, name))
		must(t, err)
		sum.Write(text)
	}
	dir := filepath.Join(cache, "oncebus", fmt.Sprintf("executor-%s-%x", language, sum.Sum(nil)[:8]))
	if !complete(dir) {
		must(t, os.RemoveAll(dir))
		must(t, os.MkdirAll(dir, 0o750))
	}
	return dir
}

func complete(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "complete"))
	return err == nil
}

func completed(t *testing.T, dir string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, "complete"), nil, 0o600))
}

// copied copies files of a language into a directory.
func copied(t *testing.T, dir, language string, files ...string) {
	t.Helper()
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(language, name))
		must(t, err)
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o750))
		must(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
}

// build runs a command that may need the network. Where the packages cannot be fetched the test
// is skipped, as where a tool is missing.
func build(t *testing.T, dir, tool string, args ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), tool, args...)
	command.Dir = dir
	if out, err := command.CombinedOutput(); err != nil {
		missing(t, "%s %s: %v\n%s", tool, strings.Join(args, " "), err, out)
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	must(t, err)
	return path
}
