//go:build unix

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"oncebus/dedup/rules"
)

// page is one Markdown file.
type page struct {
	path  string // from the root of the repository
	lines []string
	fence []string // for each line: the language of the code block it is in, "text" without one; "" outside
}

var fenceLine = regexp.MustCompile("^ *```([a-z]*)(?: [a-z.]+)?$")

// pages reads every page but the results of past runs.
func pages(t *testing.T) []*page {
	t.Helper()
	var list []*page
	for _, name := range repositoryFiles(t, ".md") {
		data, err := os.ReadFile(filepath.Join(moduleRoot, name))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, newPage(name, string(data)))
	}
	return list
}

func newPage(path, text string) *page {
	p := &page{path: path, lines: strings.Split(text, "\n")}
	inside := ""
	for _, line := range p.lines {
		m := fenceLine.FindStringSubmatch(line)
		switch {
		case m == nil:
			p.fence = append(p.fence, inside)
			continue
		case inside != "":
			inside = ""
		case m[1] == "":
			inside = "text"
		default:
			inside = m[1]
		}
		p.fence = append(p.fence, "fence")
	}
	return p
}

// blocks returns the code blocks of a language, without their indentation.
func (p *page) blocks(language string) []string {
	var list []string
	for i := 0; i < len(p.lines); i++ {
		if p.fence[i] != language {
			continue
		}
		indent, _, _ := strings.Cut(p.lines[i-1], "`")
		var b strings.Builder
		for ; p.fence[i] == language; i++ {
			b.WriteString(strings.TrimPrefix(p.lines[i], indent) + "\n")
		}
		list = append(list, b.String())
	}
	return list
}

var markup = regexp.MustCompile("[`*]|\\[([^]]*)\\]\\([^)]*\\)")

// anchors returns the fragments of the page's headings, as GitHub makes them.
func (p *page) anchors() map[string]bool {
	set := map[string]bool{}
	for i, line := range p.lines {
		if p.fence[i] != "" || !strings.HasPrefix(line, "#") {
			continue
		}
		set[anchor(strings.TrimLeft(line, "#"))] = true
	}
	return set
}

// anchor returns the fragment of a heading.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(markup.ReplaceAllString(heading, "$1"))) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	return b.String()
}

var pageLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestPageLinks: every relative link of a page has a file, and its fragment a heading
// of that file.
func TestPageLinks(t *testing.T) {
	list := pages(t)
	for _, p := range list {
		seen := map[string]bool{}
		for i, line := range p.lines {
			if p.fence[i] != "" {
				continue
			}
			if fragment := anchor(strings.TrimLeft(line, "#")); strings.HasPrefix(line, "#") && seen[fragment] && p.path != "CHANGELOG.md" { // each release has the same sections
				t.Errorf("%s:%d: a second heading with the fragment #%s", p.path, i+1, fragment)
			} else if strings.HasPrefix(line, "#") {
				seen[fragment] = true
			}
			for _, m := range pageLink.FindAllStringSubmatch(line, -1) {
				target, fragment, _ := strings.Cut(m[1], "#")
				if strings.Contains(target, "://") {
					continue
				}
				path := p.path
				if target != "" {
					path = filepath.Join(filepath.Dir(p.path), target)
				}
				if _, err := os.Stat(filepath.Join(moduleRoot, path)); err != nil {
					t.Errorf("%s:%d: %s does not exist", p.path, i+1, m[1])
					continue
				}
				if fragment == "" {
					continue
				}
				for _, other := range list {
					if other.path == path && !other.anchors()[fragment] {
						t.Errorf("%s:%d: %s has no heading for #%s", p.path, i+1, path, fragment)
					}
				}
			}
		}
	}
}

// TestPageRoutes: a routes file on a page, marked as one, can be loaded.
func TestPageRoutes(t *testing.T) {
	const mark = "<!-- route file: parsed by a test -->\n```yaml\n"
	found := 0
	for _, p := range pages(t) {
		for _, text := range strings.Split(strings.Join(p.lines, "\n"), mark)[1:] {
			found++
			text, _, _ = strings.Cut(text, "```\n")
			if _, err := rules.ParseRoutes(p.path, []byte(text)); err != nil {
				t.Error(err)
			}
		}
	}
	if found < 2 {
		t.Errorf("%d routes files on the pages, want those of ROUTES.md and CLAIMS.md", found)
	}
}

// TestReadmeSize limits the size of the front page.
func TestReadmeSize(t *testing.T) {
	const most = 10_240
	info, err := os.Stat(filepath.Join(moduleRoot, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > most {
		t.Errorf("README.md has %d bytes, at most %d are allowed: move text to the page of its owner", info.Size(), most)
	}
}

// TestPackageDocs: every package describes itself in a doc.go of limited length. That
// of processor is the architecture.
func TestPackageDocs(t *testing.T) {
	const most = 60
	out, err := exec.Command("go", "list", "-C", moduleRoot, "-f", "{{.Dir}}", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(moduleRoot)
	if err != nil {
		t.Fatal(err)
	}
	for dir := range strings.FieldsSeq(string(out)) {
		name, err := filepath.Rel(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "doc.go"))
		if err != nil {
			t.Errorf("%s has no doc.go", name)
			continue
		}
		if n := strings.Count(string(data), "\n"); n > most && name != "processor" {
			t.Errorf("%s/doc.go has %d lines, at most %d are allowed", name, n, most)
		}
	}
}

// TestDependencyReasons: CONTRIBUTING.md gives a reason for every direct dependency,
// and for no other module.
func TestDependencyReasons(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(moduleRoot, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	var have, want []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z][a-z.]+/[^`]+)` \\| \\S").FindAllStringSubmatch(read("CONTRIBUTING.md"), -1) {
		have = append(have, m[1])
	}
	// The second module has the clients of a benchmark.
	both := read("go.mod") + read("benchmarks/handwritten/go.mod")
	for _, m := range regexp.MustCompile(`(?m)^(?:require)?\s+(\S+) v\S+$`).FindAllStringSubmatch(both, -1) {
		want = append(want, regexp.MustCompile(`/v\d+$`).ReplaceAllString(m[1], ""))
	}
	slices.Sort(have)
	slices.Sort(want)
	want = slices.Compact(want)
	if !slices.Equal(have, want) {
		t.Errorf("CONTRIBUTING.md gives a reason for\n%s\ngo.mod requires\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}
