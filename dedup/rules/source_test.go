package rules

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestEverySourceIsComplete: a key source is a row of kinds, and an entry in the
// schema, in the fuzzing and in the page.
func TestEverySourceIsComplete(t *testing.T) {
	var schema struct {
		Defs struct {
			Source struct {
				OneOf []struct {
					Enum  []string
					OneOf []struct{ Required []string }
				}
			}
		} `json:"$defs"`
	}
	if err := json.Unmarshal([]byte(RoutesSchema), &schema); err != nil {
		t.Fatal(err)
	}
	forms := schema.Defs.Source.OneOf
	var required []string
	for _, alternative := range forms[1].OneOf {
		required = append(required, alternative.Required...)
	}
	fuzzed := map[sourceKind]bool{}
	for _, r := range parse(t, fuzzRoutes).Routes {
		for _, s := range r.Keys {
			fuzzed[s.kind] = true
		}
	}
	page, err := os.ReadFile("../ROUTES.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Key sources\n")
	section, _, _ = strings.Cut(section, "\n##")
	for k, row := range kinds {
		if !slices.Contains(required, row.name) {
			t.Errorf("%s: the source in routes.schema.json has no oneOf that requires it", row.name)
		}
		if slices.Contains(forms[0].Enum, row.name) != row.bare {
			t.Errorf("%s: bare is %t, and the enum of the source in routes.schema.json disagrees", row.name, row.bare)
		}
		if !fuzzed[sourceKind(k)] {
			t.Errorf("%s: no route of fuzzRoutes has it", row.name)
		}
		if !strings.Contains(section, "`"+row.name+"`") && !strings.Contains(section, "`"+row.name+": ") {
			t.Errorf("%s: ROUTES.md does not describe it under Key sources", row.name)
		}
	}
}
