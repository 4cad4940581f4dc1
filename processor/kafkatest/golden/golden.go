package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files of testdata")

// Rewrite reports whether go test was called with -rewrite.
func Rewrite() bool { return *rewrite }

// Assert compares got with a file of testdata, or rewrites the file.
func Assert(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test -run %s -rewrite writes it", err, t.Name())
	}
	have, expect := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for n := range max(len(have), len(expect)) {
		var h, e string
		if n < len(have) {
			h = have[n]
		}
		if n < len(expect) {
			e = expect[n]
		}
		if h != e {
			t.Fatalf("%s, line %d: got %q, want %q; if the new text is right, go test -run %s -rewrite", path, n+1, h, e, t.Name())
		}
	}
}

// AssertSection compares got with the section of a page between the lines
// "<!-- generated: NAME -->" and "<!-- end -->", or rewrites the section.
func AssertSection(t *testing.T, page, name, got string) {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- generated: "+name+" -->\n", "<!-- end -->\n"
	before, rest, begins := strings.Cut(string(data), begin)
	want, after, ends := strings.Cut(rest, end)
	switch {
	case !begins || !ends:
		t.Errorf("%s has no section between %s%s", page, begin, end)
	case want == got:
	case !*rewrite:
		t.Errorf("section %q of %s differs from the code, run make pages; want\n%s", name, page, got)
	default:
		if err := os.WriteFile(page, []byte(before+begin+got+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
