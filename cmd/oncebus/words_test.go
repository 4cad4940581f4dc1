package main_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"oncebus/processor/kafkatest/golden"
)

// moduleRoot is the path from this package to the root of the repository.
const moduleRoot = "../.."

// wordsFile lists the words that the glossary replaced, one a line:
//
//	pattern | replacement | allowed
//
// A pattern is one or more words. It matches whole words in any case, words of
// identifiers included. A ~ after a word adds its plural and verb forms. allowed is
// the number of hits in the repository, which may only fall.
const wordsFile = "testdata/words.txt"

// TestWords searches comments, strings and declared names of all Go files, and
// all Markdown pages, for the words of wordsFile. With -v it prints every hit;
// with -rewrite it lowers the allowed counts.
func TestWords(t *testing.T) {
	list := readWords(t)
	hits := make(map[*banned][]string)
	texts := 0
	for _, path := range repositoryFiles(t, ".go", ".md") {
		for _, text := range textsOf(t, path) {
			texts++
			for _, h := range findBanned(list, text.words) {
				at := fmt.Sprintf("%s:%d: %q, use: %s", path, h.line, h.pattern.text, h.pattern.replacement)
				hits[h.pattern] = append(hits[h.pattern], at)
			}
		}
	}
	if texts < 1000 {
		t.Fatalf("read only %d comments, strings, names and pages", texts)
	}
	for _, p := range list {
		if golden.Rewrite() {
			p.allowed = min(p.allowed, len(hits[p]))
		}
		if testing.Verbose() || len(hits[p]) > p.allowed {
			t.Log(strings.Join(append([]string{p.text}, hits[p]...), "\n"))
		}
		if problem := compareCount(len(hits[p]), p.allowed); problem != "" {
			t.Errorf("%q in %s: %s", p.text, wordsFile, problem)
		}
	}
	if golden.Rewrite() {
		writeWords(t, list)
	}
}

// compareCount compares hits with the allowed number, which may only fall.
func compareCount(actual, allowed int) string {
	switch {
	case actual > allowed:
		return fmt.Sprintf("%d hits, allowed %d; replace the new ones", actual, allowed)
	case actual < allowed:
		return fmt.Sprintf("%d hits, allowed %d; lower the number (-rewrite does it)", actual, allowed)
	}
	return ""
}

func TestAllowedCountMayOnlyFall(t *testing.T) {
	for _, c := range []struct {
		actual, allowed int
		want            string
	}{{0, 0, ""}, {3, 3, ""}, {4, 3, "replace"}, {1, 0, "replace"}, {2, 3, "lower"}, {0, 1, "lower"}} {
		got := compareCount(c.actual, c.allowed)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%d hits, allowed %d: %q, want %q", c.actual, c.allowed, got, c.want)
		}
	}
}

// banned is one line of wordsFile.
type banned struct {
	text        string
	words       []*regexp.Regexp
	replacement string
	allowed     int
}

// parseBanned parses a line of wordsFile.
func parseBanned(line string) (*banned, error) {
	fields := strings.Split(line, "|")
	if len(fields) != 3 {
		return nil, fmt.Errorf("%q: want pattern | replacement | allowed", line)
	}
	p := &banned{text: strings.TrimSpace(fields[0]), replacement: strings.TrimSpace(fields[1])}
	for word := range strings.FieldsSeq(p.text) {
		stem, inflected := strings.CutSuffix(word, "~")
		expr := regexp.QuoteMeta(stem)
		if inflected {
			expr = inflections(stem)
		}
		p.words = append(p.words, regexp.MustCompile("^(?:"+expr+")$"))
	}
	var err error
	p.allowed, err = strconv.Atoi(strings.TrimSpace(fields[2]))
	if err != nil || p.allowed < 0 || len(p.words) == 0 || p.replacement == "" {
		return nil, fmt.Errorf("%q: want pattern | replacement | allowed", line)
	}
	return p, nil
}

// inflections returns an expression for the regular forms of a verb or noun:
// cope copes coped coping, match matches matched matching, stop stopped.
func inflections(stem string) string {
	base, silentE := strings.CutSuffix(stem, "e")
	if silentE {
		return base + "(?:e|es|ed|er|ing|able)"
	}
	last := stem[len(stem)-1:]
	return stem + "(?:|s|es|" + last + "?(?:ed|er|ing))"
}

// word is a lower-case word of a text. A break is punctuation, which no phrase spans.
type word struct {
	text string // "" for a break
	line int
}

// hit is a match of a pattern.
type hit struct {
	pattern *banned
	line    int
}

// findBanned returns the matches of all patterns in a text.
func findBanned(list []*banned, text []word) []hit {
	var hits []hit
	for i := range text {
		for _, p := range list {
			if p.matches(text[i:]) {
				hits = append(hits, hit{p, text[i].line})
			}
		}
	}
	return hits
}

// matches reports whether the text starts with the pattern.
func (p *banned) matches(text []word) bool {
	if len(text) < len(p.words) {
		return false
	}
	for i, expr := range p.words {
		if !expr.MatchString(text[i].text) {
			return false
		}
	}
	return true
}

// splitWords returns the words of a text that starts at a line. It splits
// identifiers at underscores, hyphens and capitals. White space, * and _ leave
// a phrase together; other characters are a break.
func splitWords(text string, line int) []word {
	var words []word
	var current []rune
	flush := func() {
		if len(current) > 0 {
			words = append(words, word{strings.ToLower(string(current)), line})
			current = nil
		}
	}
	runes := []rune(text)
	for i, r := range runes {
		switch {
		case unicode.IsLetter(r):
			if startsWord(runes, i) {
				flush()
			}
			current = append(current, r)
			continue
		case r == '\'' || r == '’':
			flush() // "it's": two words
		case unicode.IsSpace(r) || unicode.IsDigit(r) || strings.ContainsRune("-_*/#>", r):
			flush()
		default:
			flush()
			words = append(words, word{"", line})
		}
		if r == '\n' {
			line++
		}
	}
	flush()
	return words
}

// startsWord reports whether the letter i starts a word of a camelCase name:
// a capital after a small letter, or the last capital of HTTPServer's HTTPS.
func startsWord(runes []rune, i int) bool {
	if i == 0 || !unicode.IsUpper(runes[i]) {
		return false
	}
	if unicode.IsLower(runes[i-1]) {
		return true
	}
	return unicode.IsUpper(runes[i-1]) && i+1 < len(runes) && unicode.IsLower(runes[i+1])
}

func TestSplitWords(t *testing.T) {
	for text, want := range map[string]string{
		"Read the file, then close it.": "read the file . then close it .",
		"readAllFiles HTTPServer":       "read all files http server",
		"on_kafka-unavailable":          "on kafka unavailable",
		"two\n// lines of\n// a text":   "two lines of a text",
		"// over\n//\n//\tcode":         "over code",
		"it's ORDER_ID 7th":             "it s order id th",
		"**bold** `code`":               "bold . code .",
	} {
		var got []string
		for _, w := range splitWords(text, 1) {
			if w.text == "" {
				w.text = "."
			}
			got = append(got, w.text)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", text, strings.Join(got, " "), want)
		}
	}
	if words := splitWords("one\ntwo\n\nthree", 5); words[1].line != 6 || words[2].line != 8 {
		t.Errorf("lines of %v, want 5, 6, 8", words)
	}
}

func TestBannedPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		hits          int
	}{
		{"cope~", "cope copes coped coping Coper copious copeful", 5},
		{"match~", "match matches matched matching matchless", 4},
		{"stop~", "stop stops stopped stopping stopover", 4},
		{"gold", "gold Gold goldfish golds toGold GOLD_ID", 4},
		{"by chance", "by chance, by\n// chance. By; chance byChance", 3},
		{"turn~ off", "turned off turning\noff turn it off", 2},
		{"none", "", 0},
	} {
		p, err := parseBanned(c.pattern + " | other | 0")
		if err != nil {
			t.Fatal(err)
		}
		if hits := findBanned([]*banned{p}, splitWords(c.text, 1)); len(hits) != c.hits {
			t.Errorf("%q in %q: %d hits, want %d", c.pattern, c.text, len(hits), c.hits)
		}
	}
	for _, line := range []string{"", "word", "word | other", "word | other | x", "word | other | -1", " | other | 0", "word | | 0"} {
		if p, err := parseBanned(line); err == nil {
			t.Errorf("%q is parsed as %+v", line, p)
		}
	}
}

// readWords reads wordsFile.
func readWords(t *testing.T) []*banned {
	t.Helper()
	var list []*banned
	for _, line := range dataLines(t, wordsFile) {
		p, err := parseBanned(line)
		if err != nil {
			t.Fatalf("%s: %v", wordsFile, err)
		}
		list = append(list, p)
	}
	return list
}

// writeWords writes wordsFile with the counts of list.
func writeWords(t *testing.T, list []*banned) {
	t.Helper()
	var b strings.Builder
	for _, p := range list {
		fmt.Fprintf(&b, "%s | %s | %d\n", p.text, p.replacement, p.allowed)
	}
	writeData(t, wordsFile, b.String())
}

// dataLines returns the lines of a file of testdata without empty ones and
// those that start with #.
func dataLines(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// writeData replaces a file of testdata below its leading comment.
func writeData(t *testing.T, path, text string) {
	t.Helper()
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var comment string
	for line := range strings.Lines(string(old)) {
		if !strings.HasPrefix(line, "#") {
			break
		}
		comment += line
	}
	if err := os.WriteFile(path, []byte(comment+text), 0o600); err != nil {
		t.Fatal(err)
	}
}
