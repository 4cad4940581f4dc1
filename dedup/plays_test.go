package dedup

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the output of the scripts into testdata")

// testPlays runs every script of a directory. A script is a list of commands, each followed by ---- and its expected
// output. Every script starts with a new run function.
func testPlays(t *testing.T, dir string, begin func() func(line string) (string, error)) {
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in testdata/%s: %v", dir, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(data), begin())
			if got == string(data) {
				return
			}
			if !*rewrite {
				t.Fatalf("the output differs from %s (-rewrite writes it):\n%s", file, got)
			}
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// play returns the script with the output of run.
func play(t *testing.T, text string, run func(line string) (string, error)) string {
	var got strings.Builder
	command, inOutput := "", false // command has no output yet
	for line := range strings.Lines(text) {
		switch text := strings.TrimSpace(line); {
		case text == "----" && command != "":
			output, err := run(command)
			if err != nil {
				t.Fatal(err)
			}
			got.WriteString("----\n" + output + "\n")
			command, inOutput = "", true
		case text == "" || strings.HasPrefix(text, "#"):
			inOutput = false
			got.WriteString(line)
		case !inOutput:
			if command != "" {
				t.Fatalf("no ---- after %q", command)
			}
			command = text
			got.WriteString(line)
		}
	}
	if command != "" {
		t.Fatalf("no ---- after %q", command)
	}
	return got.String()
}
