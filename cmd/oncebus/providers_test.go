package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProvidersPage runs the commands of PROVIDERS.md, with the routes file that it shows.
func TestProvidersPage(t *testing.T) {
	const name = "../processor/ingress/PROVIDERS.md"
	page, err := os.ReadFile(filepath.Join(deployments, name))
	if err != nil {
		t.Fatal(err)
	}
	steps := pageSteps(t, name) // in a directory of its own
	_, routes, _ := strings.Cut(string(page), "```yaml\n")
	routes, _, _ = strings.Cut(routes, "```\n")
	if err := os.WriteFile("routes.yaml", []byte(routes), 0o600); err != nil {
		t.Fatal(err)
	}
	assertTwoSteps(t, steps, `{"id":"evt_1","created":1767225600}`)
}
