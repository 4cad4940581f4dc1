package main_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor/ingress"

	main "oncebus/cmd/oncebus"
)

// TestShippedOpenAPI: the document of all shipped routes files together is a valid one.
func TestShippedOpenAPI(t *testing.T) {
	files, err := filepath.Glob("../../deployments/routes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no routes files", err)
	}
	shipped := &rules.Routes{}
	for _, file := range files {
		routes, err := settings.ReadRoutes(file)
		if err != nil {
			t.Fatal(err)
		}
		shipped.Routes = append(shipped.Routes, routes.Routes...)
	}
	text, err := ingress.OpenAPI(shipped)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	for _, r := range shipped.Routes {
		if r.HTTP != nil && doc.Paths.Value(r.HTTP.Path) == nil {
			t.Errorf("route %s: no path %s", r.Name, r.HTTP.Path)
		}
	}
}

// TestCheckOpenAPI prints the document of a valid file only.
func TestCheckOpenAPI(t *testing.T) {
	file := "../../deployments/routes/signals.yaml"
	routes, err := settings.ReadRoutes(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := ingress.OpenAPI(routes)
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := main.Commands().Run(t.Context(), []string{"check", "--openapi", file}, cli.Process{Stdout: &stdout, Stderr: &stderr}); code != cli.ExitStopped || stdout.String() != string(want) {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
	stdout.Reset()
	bad := filepath.Join(t.TempDir(), "routes.yaml")
	if err := os.WriteFile(bad, []byte("routes: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := main.Commands().Run(t.Context(), []string{"check", "--openapi", bad}, cli.Process{Stdout: &stdout, Stderr: &stderr}); code != cli.ExitWrong || stdout.Len() > 0 {
		t.Errorf("of a bad file: exit code %d: %s", code, stdout.String())
	}
}
