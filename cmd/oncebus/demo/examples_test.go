package demo

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// curlStep is a command of the README's walk-through and what it answers there.
type curlStep struct {
	command string
	status  string
	headers []string
	body    string
}

// readWalkThrough returns the commands of the walk-through and its last line.
func readWalkThrough(t *testing.T) (steps []curlStep, result httpResult) {
	t.Helper()
	data, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- walk-through: held to the demo by go test ./cmd/oncebus/demo -run TestReadmeWalkThrough -->\n", "<!-- end of walk-through -->\n"
	_, text, begins := strings.Cut(string(data), begin)
	text, _, ends := strings.Cut(text, end)
	if !begins || !ends {
		t.Fatalf("README.md has no walk-through: want the lines\n%s%s", begin, end)
	}
	for _, block := range regexp.MustCompile("(?s)```(console|json)\n(.*?)```").FindAllStringSubmatch(text, -1) {
		if block[1] == "json" {
			if err := json.Unmarshal([]byte(block[2]), &result); err != nil {
				t.Fatal(err)
			}
			continue
		}
		for _, step := range strings.Split(block[2], "$ curl")[1:] {
			// A line that sets a variable stands before its command.
			set := ""
			if at := strings.LastIndex(step, "\n$ "); at >= 0 {
				step, set = step[:at+1], step[at+3:]
			}
			steps = append(steps, parseCurlStep("curl"+step))
			if set != "" {
				steps = append(steps, curlStep{command: strings.TrimSuffix(set, "\n")})
			}
		}
	}
	return steps, result
}

func parseCurlStep(text string) curlStep {
	head, body, _ := strings.Cut(text, "\n\n")
	lines := strings.Split(head, "\n")
	return curlStep{command: lines[0], status: lines[1], headers: lines[2:], body: strings.TrimSuffix(body, "\n")}
}

// varying is what is another one in each run: where and when a first copy came.
var varying = regexp.MustCompile(`"first":"app-repartition/\d+/\d+","first_time":"[^"]+"`)

// matches tells whether an answer of curl -i is that of the README.
func (s *curlStep) matches(answer string) bool {
	head, body, _ := strings.Cut(strings.ReplaceAll(answer, "\r\n", "\n"), "\n\n")
	lines := strings.Split(head, "\n")
	if lines[0] != s.status || varying.ReplaceAllString(strings.TrimSuffix(body, "\n"), "") != varying.ReplaceAllString(s.body, "") {
		return false
	}
	return !slices.ContainsFunc(s.headers, func(line string) bool { return !slices.Contains(lines, line) })
}

// TestReadmeWalkThrough runs the commands of the README against a demo: they
// are those that the demo prints, and answer what the README says.
func TestReadmeWalkThrough(t *testing.T) {
	for _, tool := range []string{"bash", "curl", "openssl", "cut"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skipf("the commands of the README need it: %v", err)
		}
	}
	steps, result := readWalkThrough(t)
	var commands []string
	for _, step := range examples(httpAddrDefault) {
		commands = append(commands, step.commands...)
	}
	if got := slices.Collect(func(yield func(string) bool) {
		for _, s := range steps {
			if !yield(s.command) {
				return
			}
		}
	}); !slices.Equal(got, commands) {
		t.Fatalf("the README has\n%s\nthe demo prints\n%s", strings.Join(got, "\n"), strings.Join(commands, "\n"))
	}

	d := startDemoHTTP(t)
	environ := []string{"PATH=" + os.Getenv("PATH"), "SECRET=" + demoURL.FindStringSubmatch(d.stderr.String())[2]}
	sets, again := "", 0
	for _, step := range steps {
		if step.status == "" {
			sets += step.command + "\n"
			continue
		}
		if strings.Contains(step.command, "$CLAIM") {
			environ = append(environ, "CLAIM="+d.await(regexp.MustCompile(`\n  CLAIM=(\S+)\n`)))
		}
		command := strings.ReplaceAll(step.command, "http://"+httpAddrDefault, d.url)
		answer := runShell(t, environ, sets+command)
		// "A moment later": while an operation runs, its sender asks again.
		const runs = "DUPLICATE_REQUEST"
		for deadline := time.Now().Add(time.Minute); strings.Contains(answer, runs) && !strings.Contains(step.body, runs); again++ {
			if time.Now().After(deadline) {
				t.Fatalf("%s: runs for ever", step.command)
			}
			answer = runShell(t, environ, sets+command)
		}
		if !step.matches(answer) {
			t.Errorf("%s\nwant %+v, got\n%s", step.command, step, answer)
		}
	}
	got := d.end()
	got.Events, got.Duplicates, result.Seconds = got.Events-again, got.Duplicates-again, 0
	if got != result {
		t.Errorf("the demo ends with %+v, the README with %+v\n%s", got, result, d.stderr.String())
	}
}

func runShell(t *testing.T, environ []string, script string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "bash", "-c", script)
	command.Env = environ
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return string(out)
}
