package ingress

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"oncebus/processor/kafkatest"
)

// TestAnswersPage runs the commands of ANSWERS.md with its routes, and compares the responses.
func TestAnswersPage(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			kafkatest.Lack(t, "the commands of the page need it: %v", err)
		}
	}
	page, err := os.ReadFile("ANSWERS.md")
	if err != nil {
		t.Fatal(err)
	}
	routes := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(string(page))[1]
	b := newBench(t, routes, oneTask)
	secrets := Secrets{"SENDER": {Value: "token-of-sender-a"}, "EXECUTOR": {Value: "token-of-executors"}}
	i := b.serve(func(c *Config) { c.Secrets = secrets })
	environ := []string{"PATH=" + os.Getenv("PATH"), "SENDER=token-of-sender-a", "EXECUTOR=token-of-executors"}
	run := func(command string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), "bash", "-c", strings.ReplaceAll(command, "http://127.0.0.1:8081", i.url)) //nolint:gosec // commands of the page
		c.Env = environ
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		return strings.ReplaceAll(string(out), "\r\n", "\n")
	}
	n := 0
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for _, step := range strings.Split(block[1], "$ curl")[1:] {
			command, want, _ := strings.Cut("curl"+step, "\n")
			if strings.Contains(command, "$CLAIM") {
				environ = append(environ, "CLAIM="+b.tokens("payments.run", 1)[0])
			}
			var got string
			b.wait(command, func() bool { // an outcome takes a moment
				got = run(command)
				return !strings.Contains(want, "Idempotent-Replayed") || strings.Contains(got, "Idempotent-Replayed")
			})
			head, body, _ := strings.Cut(got, "\n\n")
			wantHead, wantBody, hasBody := strings.Cut(want, "\n\n")
			lines := strings.Split(head, "\n")
			for _, line := range strings.Split(strings.TrimSpace(wantHead), "\n") {
				if !slices.Contains(lines, line) {
					t.Errorf("%s: no line %q in\n%s", command, line, got)
				}
			}
			if hasBody && strings.TrimSpace(body) != strings.TrimSpace(wantBody) {
				t.Errorf("%s: body %q, want %q", command, body, wantBody)
			}
			for _, line := range lines {
				if location, ok := strings.CutPrefix(line, "Location: "); ok {
					environ = append(environ, "LOCATION="+location)
				}
			}
			n++
		}
	}
	if n != 6 {
		t.Errorf("%d commands", n)
	}
}
