//go:build unix

package executors_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
	"oncebus/processor/kafkatest/tools"
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
	onPage(t, "pip install --require-hashes -r requirements.lock", "python executor.py")
	return []string{tools.Python(t, "executor-python", "python"), absolute(t, "python/executor.py")}
}

// prepareJava builds the jar with Maven.
func prepareJava(t *testing.T) []string {
	t.Helper()
	onPage(t, "mvn package", "java -cp 'target/executor.jar:target/lib/*' Executor")
	path := tools.Java(t, "executor-java", "java", "src/main/java/Executor.java", "src/main/resources/simplelogger.properties")
	return []string{"java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", path, "Executor"}
}

// prepareTypeScript compiles the executor with the locked packages.
func prepareTypeScript(t *testing.T) []string {
	t.Helper()
	tools.Need(t, "node", "--version")
	tools.Need(t, "npm", "--version")
	onPage(t, "npm ci", "npm run build", "node dist/executor.js")
	dir := tools.Made(t, "executor-typescript", "typescript", []string{"package-lock.json", "package.json", "tsconfig.json", "executor.ts"}, func(dir string) {
		tools.Build(t, dir, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
		tools.Build(t, dir, "npm", "run", "--silent", "build")
	})
	return []string{"node", filepath.Join(dir, "dist", "executor.js")}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	must(t, err)
	return path
}
