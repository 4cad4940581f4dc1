package rules

import (
	"os"
	"path/filepath"
	"testing"
)

func TestShippedRouteFilesParse(t *testing.T) {
	files, err := filepath.Glob("../../deployments/routes/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("found %v, error %v: want at least signals.yaml and webhooks.yaml", files, err)
	}
	demo, err := filepath.Glob("../../cmd/oncebus/demo/*.yaml")
	if err != nil || len(demo) < 2 {
		t.Fatalf("found %v, error %v: want those of the demo", demo, err)
	}
	for _, file := range append(files, demo...) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rs, err := ParseRoutes(filepath.Base(file), data)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if len(rs.Warnings) > 0 {
			t.Errorf("%v", rs.Warnings)
		}
		for _, r := range rs.Routes {
			t.Logf("%s: %s", filepath.Base(file), r.KeyRule())
		}
	}
}
