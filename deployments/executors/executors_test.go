//go:build unix

package executors_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/processor/conformance"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
	"oncebus/processor/kafkatest/tools"
)

// askScenario is for a gateway that does not accept idempotency keys, so the executor must ask it for earlier
// charges.
const askScenario = `
lease: 5s
start: true
gateway: ask
events:
  plain: {value: '{"account":"a","amount":5}', outcome: completed, result: '{"account":"a","granted":5}'}
  brief: {value: '{"account":"b","amount":6,"work_ms":40}', outcome: completed, result: '{"account":"b","granted":6}'}
steps:
  - {do: dispatch, event: plain, count: 3}
  - {do: unclaimed, event: plain}
  - {do: crash-in-work, event: brief}
`

// executors has a function for each language. The function builds the executor and returns its command.
var executors = map[string]func(*testing.T) []string{"go": prepareGo, "java": prepareJava, "python": preparePython, "typescript": prepareTypeScript}

// TestRealExecutors runs each executor against Apache Kafka by the command oncebus conformance. Every rule must be
// judged and must hold. With a gateway that must be asked, the scenario is shorter, and only the rules that it gives
// an occasion for must hold.
func TestRealExecutors(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Shared(t)
	for name, prepare := range executors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := prepare(t)
			table := conforms(t, name, strings.Join(broker.Seeds(), ","), "scenario.yaml", command)
			if want := pageTable(t); !strings.HasSuffix(table, want) {
				t.Errorf("README.md has\n%s", want)
			}
			ask := filepath.Join(t.TempDir(), "ask.yaml")
			must(t, os.WriteFile(ask, []byte(askScenario), 0o600))
			table = conforms(t, name+"-ask", strings.Join(broker.Seeds(), ","), ask, command)
			for _, rule := range []conformance.Rule{conformance.EffectOnce, conformance.UnclaimedOnce, conformance.KeepsStartID} {
				if held := regexp.MustCompile("(?m)^" + string(rule) + " +holds "); !held.MatchString(table) {
					t.Errorf("rule %s does not hold", rule)
				}
			}
		})
	}
}

// TestRealExecutorsHandOver: an executor that is stopped in the middle of its events sends the outcomes of those it
// has finished. Another process of the group gets the others, so no claim stays without an outcome.
func TestRealExecutorsHandOver(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Shared(t)
	scenario, err := conformance.ParseScenario("stop.yaml", []byte(stopScenario))
	must(t, err)
	for name, prepare := range executors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := "stopped-" + name + "-" + filepath.Base(filepath.Dir(t.TempDir())) + "-"
			verdicts, err := newProcess(t, prepare(t), broker.Seeds(), prefix, scenario, true).judged(t, broker.Seeds(), scenario)()
			must(t, err)
			for _, v := range verdicts {
				for _, finding := range v.Findings {
					t.Errorf("%s: %s", v.Rule, finding)
				}
			}
		})
	}
}

// TestRealExecutorJournals: a journal belongs to one process at a time, and the start id belongs to the journal. An
// executor that asks for starts and calls a gateway without idempotency keys refuses to start without a journal.
func TestRealExecutorJournals(t *testing.T) {
	t.Parallel()
	for name, prepare := range executors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command, journal := prepare(t), filepath.Join(t.TempDir(), "journal")
			ends := func(journal, want string) {
				t.Helper()
				x := newProcess(t, command, []string{"127.0.0.1:1"}, "", &conformance.Scenario{Start: true, Gateway: conformance.GatewayAsk}, false)
				x.environ = append(x.environ, "EXECUTOR_JOURNAL="+journal)
				must(t, x.start(t.Context()))
				<-x.running.Exited()
				if log, err := os.ReadFile(x.log.Name()); err != nil || x.running.Err() == nil || !strings.Contains(string(log), want) {
					t.Errorf("ended with %v, %s, want %s", x.running.Err(), log, want)
				}
			}
			ends("", "set EXECUTOR_JOURNAL")
			first := holdJournal(t, command, journal, func() { ends(journal, "another process has it") })
			if again := holdJournal(t, command, journal, func() {}); again != first {
				t.Errorf("the journal became %q, was %q", again, first)
			}
			must(t, os.Remove(journal))
			if other := holdJournal(t, command, journal, func() {}); other == first || !strings.Contains(other, "executor-0") {
				t.Errorf("another journal has %q, the one before had %q", other, first)
			}
		})
	}
}

// holdJournal calls do while an executor has its journal open, and returns the line with the start id.
func holdJournal(t *testing.T, command []string, journal string, do func()) string {
	t.Helper()
	x := newProcess(t, command, []string{"127.0.0.1:1"}, "", &conformance.Scenario{Start: true, Gateway: conformance.GatewayAsk}, false)
	x.environ = append(x.environ, "EXECUTOR_JOURNAL="+journal)
	before, _ := os.ReadFile(journal) // it may not exist yet
	must(t, x.start(t.Context()))
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(journal)
		if line := strings.TrimSpace(string(text)); err == nil && line != "" && len(text) > len(before) {
			do()
			must(t, x.running.Kill())
			return line
		}
		select {
		case <-x.running.Exited():
			t.Fatalf("the executor ended: %v", x.running.Err())
		case <-tick.C:
		}
	}
}

// conforms runs oncebus conformance with the executor that the command starts, and returns what conformance printed.
// The executor gets only the settings that conformance gives it.
func conforms(t *testing.T, name, brokers, scenario string, command []string) string {
	t.Helper()
	prefix := "executors-" + name + "-" + filepath.Base(filepath.Dir(t.TempDir()))
	kit := exec.CommandContext(t.Context(), program.Shared(t), "conformance", "--brokers", brokers, "--topic", prefix+".run", "--outcomes", prefix+".outcomes",
		"--answers", prefix+".answers", "--group", prefix, "--create-topics", "--run", strings.Join(command, " "), scenario)
	kit.Env = slices.DeleteFunc(os.Environ(), func(set string) bool { return strings.HasPrefix(set, "EXECUTOR_") })
	out, err := kit.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("oncebus conformance: %v", err)
	}
	return string(out)
}

// pageTable returns the output of oncebus conformance that README.md shows.
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

// onPage fails the test if README.md lacks a command that the test runs.
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

// preparePython returns the Python interpreter of a virtual environment in the user's cache in which the locked Kafka
// client is installed.
func preparePython(t *testing.T) []string {
	t.Helper()
	onPage(t, "pip install --require-hashes -r requirements.lock", "python executor.py")
	return []string{tools.Python(t, "executor-python", "python"), absolute(t, "python/executor.py")}
}

// prepareJava builds the jar with Maven and returns the command that runs it.
func prepareJava(t *testing.T) []string {
	t.Helper()
	onPage(t, "mvn package", "java -cp 'target/executor.jar:target/lib/*' Executor")
	path := tools.Java(t, "executor-java", "java", "src/main/java/Executor.java", "src/main/resources/simplelogger.properties")
	return []string{"java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", path, "Executor"}
}

// prepareTypeScript compiles the executor with the locked packages and returns the command that runs it.
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
