package dedup

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write what the plays in testdata give into them")

// testPlays runs every play of a directory: commands, each followed by ---- and
// what it answers. Every play has a run of its own.
func testPlays(t *testing.T, dir string, begin func() func(line string) (string, error)) {
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no plays: %v", err)
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
				t.Fatalf("the play goes another way (-rewrite to keep it):\n%s", got)
			}
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// play returns the play with the answers that run gives.
func play(t *testing.T, text string, run func(line string) (string, error)) string {
	var got strings.Builder
	waiting, expected := "", false // a command whose answer comes; inside an answer
	for line := range strings.Lines(text) {
		switch text := strings.TrimSpace(line); {
		case text == "----" && waiting != "":
			answer, err := run(waiting)
			if err != nil {
				t.Fatal(err)
			}
			got.WriteString("----\n" + answer + "\n")
			waiting, expected = "", true
		case text == "" || strings.HasPrefix(text, "#"):
			expected = false
			got.WriteString(line)
		case !expected:
			if waiting != "" {
				t.Fatalf("no ---- after %q", waiting)
			}
			waiting = text
			got.WriteString(line)
		}
	}
	if waiting != "" {
		t.Fatalf("no ---- after %q", waiting)
	}
	return got.String()
}
