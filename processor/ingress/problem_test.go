package ingress

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestEveryProblemIsInTheReadme: README.md has a row for each type and status.
func TestEveryProblemIsInTheReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if row := fmt.Sprintf("| `%s%s` | %d |", problemType, p.name, p.status); !strings.Contains(string(text), row) {
			t.Errorf("README.md has no row that begins with %s", row)
		}
	}
}
