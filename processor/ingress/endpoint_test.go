package ingress

import (
	"strings"
	"testing"
	"time"

	"oncebus/dedup/rules"
)

// TestShortestWindowOfAnEndpoint decides how far ahead a timestamp may be:
// the signature is verified before the route is known.
func TestShortestWindowOfAnEndpoint(t *testing.T) {
	const route = `  - name: NAME
    topics: [signals.raw]
    match: {field: kind, in: [NAME]}
    key: [{field: id}]
    window: WINDOW
    output: signals.unique
    dead_letter: dead
    http: {path: /PATH, signature: {scheme: slack, secret: A}}
`
	text := "routes:\n"
	for _, r := range [][3]string{{"a", "1h", "shared"}, {"b", "6m", "shared"}, {"c", "10m", "enough"}, {"d", "5m1s", "alone"}} {
		text += strings.NewReplacer("NAME", r[0], "WINDOW", r[1], "PATH", r[2]).Replace(route)
	}
	routes := parseRoutes(t, text)
	document := loadDocument(t, routes)
	for path, want := range map[string]struct {
		ahead time.Duration
		ends  string
	}{
		"/shared": {time.Minute, "clock, and at most 1m0s ahead of it."},
		"/enough": {5 * time.Minute, "5m0s from the server's clock."},
		"/alone":  {time.Second, "clock, and at most 1s ahead of it."},
	} {
		window := shortestWindow(path, routes)
		if ahead := aheadOf(&rules.Signature{Tolerance: rules.DefaultTolerance}, window); ahead != want.ahead {
			t.Errorf("%s: %v ahead, want %v", path, ahead, want.ahead)
		}
		for name := range (*document.Paths.Value(path).Post.Security)[0] {
			if text := document.Components.SecuritySchemes[name].Value.Description; !strings.HasSuffix(text, want.ends) {
				t.Errorf("%s: the document says %q, want %q", path, text, want.ends)
			}
		}
	}
}
