package main_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"oncebus/processor/kafkatest/golden"
)

const (
	// sentenceWords is the maximum number of words of a sentence on a page.
	sentenceWords = 25
	// longPerSentences: one of this many sentences may be longer, 5 %.
	longPerSentences = 20
	// sentencesFile lists the pages that have more long sentences than that,
	// with their number, which may only fall; "all" is the sum of the pages.
	sentencesFile = "testdata/sentences.txt"
	allPages      = "all"
)

// TestSentences counts the sentences of each Markdown page that have more than
// 25 words: at most 5 % of a page and of all pages, and one on a page of fewer
// than 20 sentences. With -v it prints every long sentence, else those of pages
// over the limit; with -rewrite it lowers the numbers of sentencesFile.
func TestSentences(t *testing.T) {
	exceptions := readSentences(t)
	counts := map[string]pageCount{allPages: {}}
	for _, path := range repositoryFiles(t, ".md") {
		b, err := os.ReadFile(filepath.Join(moduleRoot, path))
		if err != nil {
			t.Fatal(err)
		}
		page, all := pageCount{}, counts[allPages]
		var long []string
		for _, s := range splitPage(string(b)) {
			page.sentences++
			if n := countWords(s.text); n > sentenceWords {
				page.long++
				long = append(long, fmt.Sprintf("%s:%d: sentence of %d words: %s", path, s.line, n, s.text))
			}
		}
		if testing.Verbose() || page.long > max(exceptions[path], page.longMax()) {
			t.Logf("%s: %d of %d sentences have more than %d words\n%s", path, page.long, page.sentences, sentenceWords, strings.Join(long, "\n"))
		}
		counts[path] = page
		counts[allPages] = pageCount{all.sentences + page.sentences, all.long + page.long}
	}
	if golden.Rewrite() {
		writeSentences(t, exceptions, counts)
		exceptions = readSentences(t)
	}
	for _, problem := range compareSentences(exceptions, counts) {
		t.Error(problem)
	}
}

// pageCount is the number of sentences of a page, and of those that are too long.
type pageCount struct{ sentences, long int }

// longMax returns how many sentences of the page may be too long.
func (c pageCount) longMax() int { return max(1, c.sentences/longPerSentences) }

// compareSentences compares the pages with their limits and exceptions.
func compareSentences(exceptions map[string]int, counts map[string]pageCount) []string {
	var problems []string
	for _, path := range slices.Sorted(maps.Keys(counts)) {
		c := counts[path]
		allowed, listed := exceptions[path]
		switch {
		case listed && c.long < allowed:
			problems = append(problems, fmt.Sprintf("%s has %d long sentences, %s allows %d; lower the number or remove the line (-rewrite does it)",
				path, c.long, sentencesFile, allowed))
		case c.long > max(allowed, c.longMax()):
			problems = append(problems, fmt.Sprintf("%s: %d of %d sentences have more than %d words, allowed %d; split the new ones",
				path, c.long, c.sentences, sentenceWords, max(allowed, c.longMax())))
		case listed && allowed <= c.longMax():
			problems = append(problems, fmt.Sprintf("%s needs no line in %s: remove it (-rewrite does it)", path, sentencesFile))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(exceptions)) {
		if _, exists := counts[path]; !exists {
			problems = append(problems, fmt.Sprintf("%s is in %s and does not exist: remove the line (-rewrite does it)", path, sentencesFile))
		}
	}
	return problems
}

func TestSentenceLimits(t *testing.T) {
	for name, c := range map[string]struct {
		exceptions map[string]int
		count      pageCount
		problem    string
	}{
		"short page":               {nil, pageCount{5, 0}, ""},
		"short page, one long":     {nil, pageCount{5, 1}, ""},
		"short page, two long":     {nil, pageCount{5, 2}, "allowed 1"},
		"5 %":                      {nil, pageCount{100, 5}, ""},
		"6 %":                      {nil, pageCount{100, 6}, "allowed 5"},
		"at the exception":         {map[string]int{"page": 30}, pageCount{100, 30}, ""},
		"above the exception":      {map[string]int{"page": 30}, pageCount{100, 31}, "allowed 30"},
		"below the exception":      {map[string]int{"page": 30}, pageCount{100, 29}, "lower"},
		"exception without effect": {map[string]int{"page": 4}, pageCount{100, 4}, "needs no line"},
		"missing page":             {map[string]int{"page": 0, "other": 1}, pageCount{100, 5}, "other is in"},
	} {
		exceptions := maps.Clone(c.exceptions)
		if name == "missing page" {
			delete(exceptions, "page")
		}
		got := strings.Join(compareSentences(exceptions, map[string]pageCount{"page": c.count}), "; ")
		if (got == "") != (c.problem == "") || !strings.Contains(got, c.problem) {
			t.Errorf("%s: %q, want %q", name, got, c.problem)
		}
	}
}

// sentence is a sentence of a page and the line of its first word.
type sentence struct {
	text string
	line int
}

// block is a paragraph, a list item or a table cell: text of consecutive lines.
type block struct {
	text string
	line int // of the start of text
}

func (b *block) add(text string, line int) {
	if b.text == "" {
		b.text, b.line = text, line
		return
	}
	b.text += "\n" + text
}

var (
	fence     = regexp.MustCompile("^[\\s>]*(?:[-*+]\\s+)?(```+|~~~+)")
	listItem  = regexp.MustCompile(`^(?:[-*+]|\d+[.)])\s+`)
	heading   = regexp.MustCompile(`^#{1,6}\s`)
	tableRule = regexp.MustCompile(`^[\s|:-]+$`)
	reference = regexp.MustCompile(`^\[[^\]]+\]:\s`)
	comment   = regexp.MustCompile(`(?s)<!--.*?-->`)
)

// splitPage returns the sentences of a Markdown page: of its paragraphs, list
// items and table cells. Headings, code blocks and comments have none.
func splitPage(page string) []sentence {
	page = replaceInLines(comment, page, " ")
	r := pageReader{afterBlank: true}
	r.begin()
	for i, line := range strings.Split(page, "\n") {
		r.read(line, i+1)
	}
	var sentences []sentence
	for _, b := range r.blocks {
		sentences = append(sentences, b.split()...)
	}
	return sentences
}

// pageReader collects the blocks of a page.
type pageReader struct {
	blocks     []*block
	fence      string // the mark that ends the current code block
	afterBlank bool   // the previous line is blank or indented code
	inList     bool
}

// begin starts a new block.
func (r *pageReader) begin() { r.blocks = append(r.blocks, &block{}) }

func (r *pageReader) read(line string, number int) {
	mark := fence.FindStringSubmatch(line)
	if r.fence != "" {
		if len(mark) == 2 && strings.HasPrefix(mark[1], r.fence) {
			r.fence = ""
		}
		return
	}
	indented := strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t")
	text := strings.TrimLeft(line, "> \t")
	switch {
	case mark != nil:
		r.fence = mark[1]
		r.begin()
	case text == "":
		r.begin()
		r.afterBlank = true
		return
	case r.afterBlank && indented && !r.inList: // code
		return
	case heading.MatchString(text) || tableRule.MatchString(text):
		r.begin()
		r.inList = false
	case reference.MatchString(text):
		r.begin()
	case strings.HasPrefix(text, "|"):
		r.readRow(text, number)
		r.inList = false
	case listItem.MatchString(text):
		r.begin()
		r.blocks[len(r.blocks)-1].add(listItem.ReplaceAllString(text, ""), number)
		r.inList = true
	default:
		r.inList = r.inList && !(r.afterBlank && text == line)
		r.blocks[len(r.blocks)-1].add(text, number)
	}
	r.afterBlank = false
}

// readRow adds the cells of a table row.
func (r *pageReader) readRow(row string, number int) {
	row = codeSpan.ReplaceAllString(row, codeWord) // a | in code separates no cells
	for cell := range strings.SplitSeq(strings.ReplaceAll(row, `\|`, "/"), "|") {
		r.begin()
		r.blocks[len(r.blocks)-1].add(cell, number)
	}
	r.begin()
}

// codeWord replaces inline code and addresses, which count as one word.
const codeWord = "CODE"

var (
	codeSpan = regexp.MustCompile("``.+?``|`[^`]+`")
	link     = regexp.MustCompile(`!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])`)
	address  = regexp.MustCompile(`<https?://[^>]*>|https?://[^\s)]+`)
	tag      = regexp.MustCompile(`</?[a-zA-Z][^>]*>`)
	emphasis = regexp.MustCompile(`\*+|\b_+|_+\b`)
)

// plainText removes the Markdown of a block; of a link the text remains.
func plainText(text string) string {
	text = replaceInLines(codeSpan, text, codeWord)
	text = link.ReplaceAllString(text, "$1")
	text = replaceInLines(address, text, codeWord)
	text = replaceInLines(tag, text, " ")
	return emphasis.ReplaceAllString(text, "")
}

// replaceInLines replaces matches and keeps their line ends, so that later text keeps
// its line number.
func replaceInLines(expr *regexp.Regexp, text, by string) string {
	return expr.ReplaceAllStringFunc(text, func(match string) string {
		return by + strings.Repeat("\n", strings.Count(match, "\n"))
	})
}

// abbreviations end with a full stop that ends no sentence.
var abbreviations = []string{"e.g.", "i.e.", "vs.", "cf.", "approx.", "resp.", "incl.", "no.", "fig.", "p.", "pp."}

// split returns the sentences of a block. Text of fewer than three words, such as a
// number in a table, is not a sentence.
func (b *block) split() []sentence {
	var words []string
	var lines []int
	for i, line := range strings.Split(plainText(b.text), "\n") {
		for w := range strings.FieldsSeq(line) {
			words, lines = append(words, w), append(lines, b.line+i)
		}
	}
	var sentences []sentence
	from := 0
	for i := range words {
		if i+1 < len(words) && !endsSentence(words[i], words[i+1]) {
			continue
		}
		if text := strings.Join(words[from:i+1], " "); countWords(text) >= 3 {
			sentences = append(sentences, sentence{text, lines[from]})
		}
		from = i + 1
	}
	return sentences
}

// endsSentence reports whether a word is the last of a sentence. A sentence may
// start with a small letter, as the name of this program does.
func endsSentence(w, next string) bool {
	w = strings.TrimRight(w, `"')]”’`)
	if !strings.HasSuffix(w, ".") && !strings.HasSuffix(w, "!") && !strings.HasSuffix(w, "?") {
		return false
	}
	first, _ := utf8.DecodeRuneInString(strings.TrimLeft(next, `"'([“‘`))
	if strings.HasSuffix(w, "..") || strings.EqualFold(w, "etc.") {
		return unicode.IsUpper(first)
	}
	return !slices.Contains(abbreviations, strings.ToLower(strings.TrimLeft(w, `"'([“‘`)))
}

// countWords counts the words of a text that have a letter or a digit.
func countWords(text string) int {
	n := 0
	for w := range strings.FieldsSeq(text) {
		if strings.ContainsFunc(w, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			n++
		}
	}
	return n
}

func TestSplitPage(t *testing.T) {
	for name, c := range map[string]struct {
		page string
		want []string // line:words text
	}{
		"two sentences":     {"One sentence here. Another one there!", []string{"1:3 One sentence here.", "1:3 Another one there!"}},
		"two lines":         {"\nOne sentence on\ntwo lines. And the\nother one.", []string{"2:5 One sentence on two lines.", "3:4 And the other one."}},
		"small letter":      {"It ends so. oncebus starts here.", []string{"1:3 It ends so.", "1:3 oncebus starts here."}},
		"abbreviations":     {"A name, e.g. this, i.e. that (cf. below) vs. it.", []string{"1:10 A name, e.g. this, i.e. that (cf. below) vs. it."}},
		"et cetera":         {"Rows, runs, etc. are these. Rows, runs, etc. These end.", []string{"1:5 Rows, runs, etc. are these.", "1:3 Rows, runs, etc."}},
		"ellipsis":          {"Some more ... follow in it.", []string{"1:5 Some more ... follow in it."}},
		"numbers":           {"Version 4.9.6 takes 1.5 s.", []string{"1:5 Version 4.9.6 takes 1.5 s."}},
		"quotes":            {"He says \"stop now.\" Then \"go on.\"", []string{"1:4 He says \"stop now.\"", "1:3 Then \"go on.\""}},
		"inline code":       {"Set `a b c. d` or ``x ` y`` now.", []string{"1:5 Set CODE or CODE now."}},
		"code on two lines": {"The command `run\nit` ends. The next one.", []string{"1:4 The command CODE ends.", "2:3 The next one."}},
		"code ends it":      {"This is `code`. That is not.", []string{"1:3 This is CODE.", "1:3 That is not."}},
		"links":             {"See [the long page](a/b.md#c d) and [this][1] at https://example.org/a.b today.", []string{"1:9 See the long page and this at CODE today."}},
		"emphasis and tags": {"**All three** of *these*<br>words, not snake_case.", []string{"1:7 All three of these words, not snake_case."}},
		"paragraphs":        {"No full stop\n\nin these two", []string{"1:3 No full stop", "3:3 in these two"}},
		"heading":           {"# A title of words\nThe text is here.", []string{"2:4 The text is here."}},
		"fenced code":       {"Before the code:\n```sh\nrun this command now. And this one.\n```\nAfter the code.", []string{"1:3 Before the code:", "5:3 After the code."}},
		"fence in a fence":  {"````\n```\nnot a sentence here\n```\n````\nAfter the code.", []string{"6:3 After the code."}},
		"indented code":     {"Before the code:\n\n    run this command now\n\nAfter the code.", []string{"1:3 Before the code:", "5:3 After the code."}},
		"list":              {"- First of two\n  items here\n- Second of two\n\n  Its own paragraph.\n1. Third of all.", []string{"1:5 First of two items here", "3:3 Second of two", "5:3 Its own paragraph.", "6:3 Third of all."}},
		"nested list":       {"- The outer item\n    - the inner item\n", []string{"1:3 The outer item", "2:3 the inner item"}},
		"table":             {"| The head cell | Two |\n|---|:--:|\n| One cell here. And more of it | `a|b` is code |", []string{"1:3 The head cell", "3:3 One cell here.", "3:4 And more of it", "3:3 CODE is code"}},
		"quotation":         {"> A quoted sentence\n> on two lines.", []string{"1:6 A quoted sentence on two lines."}},
		"comment":           {"<!-- not this\nnor this one --> But this one.", []string{"2:3 But this one."}},
		"reference":         {"[1]: https://example.org not this one\n\nBut this one.", []string{"3:3 But this one."}},
		"fragments":         {"One. - two. 3 4.", nil},
	} {
		var got []string
		for _, s := range splitPage(c.page) {
			got = append(got, fmt.Sprintf("%d:%d %s", s.line, countWords(s.text), s.text))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// readSentences reads sentencesFile: a page and a number a line.
func readSentences(t *testing.T) map[string]int {
	t.Helper()
	exceptions := make(map[string]int)
	for _, line := range dataLines(t, sentencesFile) {
		path, number, _ := strings.Cut(line, " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("%s: %q: want a page and a number", sentencesFile, line)
		}
		exceptions[path] = n
	}
	return exceptions
}

// writeSentences lowers the numbers of sentencesFile and removes lines without
// effect.
func writeSentences(t *testing.T, exceptions map[string]int, counts map[string]pageCount) {
	t.Helper()
	var b strings.Builder
	for _, path := range slices.Sorted(maps.Keys(exceptions)) {
		c, exists := counts[path]
		if n := min(c.long, exceptions[path]); exists && n > c.longMax() {
			fmt.Fprintf(&b, "%s %d\n", path, n)
		}
	}
	writeData(t, sentencesFile, b.String())
}
