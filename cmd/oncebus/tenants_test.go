package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
)

// TestTenantsPage runs the commands of TENANTS.md, with the routes file and the event that it
// shows.
func TestTenantsPage(t *testing.T) {
	const name = "../dedup/TENANTS.md"
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
	_, event, _ := strings.Cut(string(page), "```json\n")
	event, _, _ = strings.Cut(event, "```\n")
	if len(steps) != 2 {
		t.Errorf("%d commands, want 2", len(steps))
	}
	for _, step := range steps {
		got := execute(t.Context(), nil, event, step.args()...)
		if got.Stdout != step.want || got.Code != cli.ExitStopped {
			t.Errorf("oncebus %s: exit code %d, stderr %q, output\n%s\nthe page has\n%s", step.command, got.Code, got.Stderr, got.Stdout, step.want)
		}
	}
	got := execute(t.Context(), nil, `{"orderId":"A-1"}`, "key", "--routes", "routes.yaml", "--route", "orders")
	if want := "tenant: header x-tenant has none: send it there"; got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, want) {
		t.Errorf("without a tenant: exit code %d, stderr %q, want %q", got.Code, got.Stderr, want)
	}
}
