package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
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
	if len(steps) != 2 {
		t.Errorf("%d commands, want 2", len(steps))
	}
	for _, step := range steps {
		got := execute(t.Context(), nil, `{"id":"evt_1","created":1767225600}`, step.args()...)
		if got.Stdout != step.want || got.Code != cli.ExitStopped {
			t.Errorf("oncebus %s: exit code %d, stderr %q, output\n%s\nthe page has\n%s", step.command, got.Code, got.Stderr, got.Stdout, step.want)
		}
	}
}
