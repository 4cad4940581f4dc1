package rules

import "strings"

// Nearest returns the name that a mistyped one most likely means, or "": the
// one with the fewest edits, at most one for three letters, or else the only one
// that contains it.
func Nearest(mistyped string, names []string) string {
	best, edits := "", len(mistyped)/3+1
	var containing []string
	for _, name := range names {
		if n := editDistance(mistyped, name); n < edits {
			best, edits = name, n
		}
		if len(mistyped) > 2 && strings.Contains(name, mistyped) {
			containing = append(containing, name)
		}
	}
	if best == "" && len(containing) == 1 {
		return containing[0]
	}
	return best
}

// editDistance returns how many bytes must be inserted, removed or replaced to
// make b of a.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
