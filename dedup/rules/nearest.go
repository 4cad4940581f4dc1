package rules

import "strings"

// Nearest returns the name that a mistyped name most likely means, or "": the name that differs by the fewest
// edits, with at most one edit for three letters. If there is no such name, it is the only name that contains
// the mistyped one; "" if several do.
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

// editDistance returns the optimal string alignment distance: how many bytes must be inserted, removed,
// replaced or exchanged with the next byte to turn a into b.
func editDistance(a, b string) int {
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			replaced := above[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, above[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, above, row = above, row, before
	}
	return above[len(b)]
}
