package rules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Mistake is one mistake in a routes file. Its JSON names are an interface.
type Mistake struct { //nolint:errname // pages and commands call it a mistake
	File    string `json:"file"`
	Line    int    `json:"line"`            // from 1
	Column  int    `json:"column"`          // from 1, in characters
	Field   string `json:"field,omitempty"` // path such as routes[0].window; "" for the file
	Problem string `json:"problem"`
	// Text is the line itself; "" if the file has no such line, or if the line may contain a secret.
	Text string `json:"text,omitempty"`
}

// Error returns "routes.yaml:12:5: routes[0].window: is required", and below it the
// line with a mark at the column.
func (m *Mistake) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:%d: ", m.File, m.Line, m.Column)
	if m.Field != "" {
		b.WriteString(m.Field + ": ")
	}
	b.WriteString(m.Problem)
	if m.Text != "" {
		shown, column := m.excerpt()
		fmt.Fprintf(&b, "\n%5d | %s\n      | %s^", m.Line, shown, strings.Repeat(" ", column-1))
	}
	return b.String()
}

// The part of a line that an error shows, in characters: at most excerptBefore characters before the column,
// and excerptLength in all.
const (
	excerptBefore = 60
	excerptLength = 100
)

// excerpt returns the part of the line around the column, and the column within that part. Tabs and control
// characters become spaces, so that the mark stands below its character.
func (m *Mistake) excerpt() (shown string, column int) {
	line := []rune(m.Text)
	for i, r := range line {
		if r < ' ' || r == utf8.RuneError {
			line[i] = ' '
		}
	}
	column = min(m.Column, len(line)+1)
	if from := column - 1 - excerptBefore; from > 0 {
		line, column = line[from:], column-from
	}
	return string(line[:min(len(line), excerptLength)]), column
}

// Mistakes returns the mistakes of a routes file that err is or joins.
func Mistakes(err error) []*Mistake {
	var all []*Mistake
	switch err := err.(type) { //nolint:errorlint // it walks the tree of joined errors itself
	case *Mistake:
		all = append(all, err)
	case interface{ Unwrap() []error }:
		for _, one := range err.Unwrap() {
			all = append(all, Mistakes(one)...)
		}
	case interface{ Unwrap() error }:
		all = Mistakes(err.Unwrap())
	}
	return all
}

// err joins the mistakes in the file's order.
func (d *decoder) err() error {
	slices.SortStableFunc(d.mistakes, func(a, b *Mistake) int { return cmp.Compare(a.Line, b.Line) })
	lines := strings.Split(string(d.data), "\n")
	hidden := map[int]bool{}
	for _, m := range d.mistakes {
		if strings.HasSuffix(m.Field, "secret") || strings.HasSuffix(m.Problem, "did you mean secret?") {
			hidden[m.Line] = true
		}
	}
	errs := make([]error, len(d.mistakes))
	for i, m := range d.mistakes {
		if m.Line <= len(lines) && !hidden[m.Line] && !mayHaveSecret(lines[m.Line-1]) {
			m.Text = strings.TrimRight(lines[m.Line-1], " \t\r")
		}
		errs[i] = m
	}
	return errors.Join(errs...)
}

// mayHaveSecret reports whether a line may contain the value of a secret, which belongs into the environment.
// Such a line must not reach a terminal or a log.
func mayHaveSecret(line string) bool { return strings.Contains(strings.ToLower(line), "secret") }
