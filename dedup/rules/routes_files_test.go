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
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rs, err := ParseRoutes(filepath.Base(file), data)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		for _, r := range rs.Routes {
			t.Logf("%s: %s", filepath.Base(file), r.KeyRule())
		}
	}
}
