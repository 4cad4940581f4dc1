package demo

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/processor/kafkatest"
)

// curlStep is a command of the walk-through and its response there.
type curlStep struct {
	command string
	status  string
	headers []string
	body    string
}

// walkThrough is the page of the commands, from the root of the repository.
const walkThrough = "processor/ingress/WALKTHROUGH.md"

// readWalkThrough returns the commands of a page and its last line.
func readWalkThrough(t *testing.T, page string) (steps []curlStep, result httpResult) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```(console|json)\n(.*?)```").FindAllStringSubmatch(string(data), -1) {
		if block[1] == "json" {
			if err := json.Unmarshal([]byte(block[2]), &result); err != nil {
				t.Fatal(err)
			}
			continue
		}
		for _, step := range strings.Split(block[2], "$ curl")[1:] {
			// A line before the command may set a variable.
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

// varying matches what differs in each run: position and time of the first event.
var varying = regexp.MustCompile(`"first":"app-repartition/\d+/\d+","first_time":"[^"]+"`)

// matches reports whether the output of curl -i is that of the page.
func (s *curlStep) matches(answer string) bool {
	head, body, _ := strings.Cut(strings.ReplaceAll(answer, "\r\n", "\n"), "\n\n")
	lines := strings.Split(head, "\n")
	if lines[0] != s.status || varying.ReplaceAllString(strings.TrimSuffix(body, "\n"), "") != varying.ReplaceAllString(s.body, "") {
		return false
	}
	return !slices.ContainsFunc(s.headers, func(line string) bool { return !slices.Contains(lines, line) })
}

// TestRealWalkThrough runs the commands of the page against a demo: they are those
// that the demo prints, and the responses are those of the page. README.md has
// some of them.
func TestRealWalkThrough(t *testing.T) {
	for _, tool := range []string{"bash", "curl", "openssl", "cut"} {
		if _, err := exec.LookPath(tool); err != nil {
			kafkatest.Lack(t, "the commands of the page need it: %v", err)
		}
	}
	steps, result := readWalkThrough(t, walkThrough)
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
		t.Fatalf("the page has\n%s\nthe demo prints\n%s", strings.Join(got, "\n"), strings.Join(commands, "\n"))
	}

	front, _ := readWalkThrough(t, "README.md")
	for _, s := range front {
		if !slices.ContainsFunc(steps, func(other curlStep) bool { return s.command == other.command && s.status == other.status }) {
			t.Errorf("README.md has %+v, which %s has not", s, walkThrough)
		}
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
		// "A moment later": send it again while the operation is in progress.
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
		t.Errorf("the demo ends with %+v, the page with %+v\n%s", got, result, d.stderr.String())
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
