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

// TestRealAnswersPage runs the commands of ANSWERS.md with its routes, and compares the responses.
func TestRealAnswersPage(t *testing.T) {
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
		c := exec.CommandContext(t.Context(), "bash", "-c", strings.ReplaceAll(command, "http://127.0.0.1:8081", i.url)+"|| [ $? = 28 ]") // 28: -m is over
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
			if strings.Contains(command, "$LAST") { // an outcome between two connections
				i.post("/payments", `{"amount":9}`, paying("p-2", "Prefer", "respond-async")...).want(t, "p-2", 202)
				i.postOutcome("/payments", b.tokens("payments.run", 2)[1], "completed", `{"paid":9}`).want(t, "p-2", 202)
				b.read("payments.replies", 2)
			}
			if strings.Contains(command, "$CLAIM") {
				environ = append(environ, "CLAIM="+b.tokens("payments.run", 1)[0])
			}
			var got string
			b.wait(command, func() bool { // an outcome takes a moment
				got = run(command)
				return !strings.Contains(want, "Idempotent-Replayed") || strings.Contains(got, "Idempotent-Replayed")
			})
			head, body, _ := strings.Cut(got, "\n\n")
			if strings.Contains(command, "/events") { // all events
				head = got
			}
			wantHead, wantBody, hasBody := strings.Cut(want, "\n\n")
			lines := strings.Split(head, "\n")
			for _, line := range strings.Split(strings.TrimSpace(wantHead), "\n") {
				if !slices.ContainsFunc(lines, alike(line)) {
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
				if id, ok := strings.CutPrefix(line, "id: "); ok {
					environ = append(environ, "LAST="+id)
				}
			}
			n++
		}
	}
	if n != 8 {
		t.Errorf("%d commands", n)
	}
}

// alike matches a line of the page: what differs in each run is an ellipsis or a position.
func alike(line string) func(string) bool {
	text := strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*")
	text = regexp.MustCompile(`app-repartition/0/\d+`).ReplaceAllString(text, `app-repartition/0/\d+`)
	return regexp.MustCompile("^" + text + "$").MatchString
}
