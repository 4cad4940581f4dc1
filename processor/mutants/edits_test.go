//go:build mutants

package mutants

import (
	"os"
	"strings"
	"testing"
)

// TestEditsApply: the text that each mutant replaces is in the code, once. It builds nothing.
func TestEditsApply(t *testing.T) {
	for _, m := range catalogue {
		for _, e := range m.edits {
			b, err := os.ReadFile("../../" + e.file)
			if err != nil {
				t.Errorf("%s: %v", m.name, err)
				continue
			}
			if n := strings.Count(string(b), e.old); n != 1 {
				t.Errorf("%s: %s has %d of %q", m.name, e.file, n, e.old)
			}
		}
	}
}
