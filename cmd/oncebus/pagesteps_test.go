package main_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
)

// pageBlock matches the blocks of a page that have commands, or the text of a named file.
var pageBlock = regexp.MustCompile("(?m)^( *)```(console|tsv|yaml|json|jsonl) ?([a-z.]*)\n((?:.*\n)*?) *```$")

// pageStep is a command of a page, and what the page shows below it.
type pageStep struct{ command, want string }

// pageSteps returns the commands of a page in deployments, in order. It writes the files that
// the page names to a new directory, and makes that the working directory.
func pageSteps(t *testing.T, name, section string) (steps []pageStep) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(deployments, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	text := string(page)
	if section != "" {
		_, text, _ = strings.Cut(text, "\n## "+section+"\n")
		text, _, _ = strings.Cut(text, "\n## ")
	}
	for _, block := range pageBlock.FindAllStringSubmatch(text, -1) {
		indent, file := block[1], block[3]
		text := strings.TrimPrefix(strings.ReplaceAll("\n"+block[4], "\n"+indent, "\n"), "\n")
		if file != "" {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		for _, step := range strings.Split(text, "$ oncebus ")[1:] {
			command, want, _ := strings.Cut(step, "\n")
			steps = append(steps, pageStep{command, want})
		}
	}
	if len(steps) == 0 {
		t.Fatalf("%s has no command in section %q", name, section)
	}
	return steps
}

// assertTwoSteps runs the two commands of a page, with an event on standard input, and compares
// what they print with the page.
func assertTwoSteps(t *testing.T, steps []pageStep, event string) {
	t.Helper()
	if len(steps) != 2 {
		t.Errorf("%d commands, want 2", len(steps))
	}
	for _, step := range steps {
		got := execute(t.Context(), nil, event, step.args()...)
		if got.Stdout != step.want || got.Code != cli.ExitStopped {
			t.Errorf("oncebus %s: exit code %d, stderr %q, output\n%s\nthe page has\n%s", step.command, got.Code, got.Stderr, got.Stdout, step.want)
		}
	}
}

// args splits the command as a shell does, after it has replaced each first text by the second. A
// part in single quotes is an argument as it is.
func (s pageStep) args(replaced ...string) (args []string) {
	for i, part := range strings.Split(strings.NewReplacer(replaced...).Replace(s.command), "'") {
		if i%2 == 1 {
			args = append(args, part)
			continue
		}
		args = append(args, strings.Fields(part)...)
	}
	return args
}
