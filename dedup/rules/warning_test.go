package rules

import (
	"slices"
	"strings"
	"testing"
)

// TestKeysByAnUnsignedHeaderAreWarned: a header that the signature does not cover can be
// replaced in a captured request, so a key or a namespace by it is a warning.
func TestKeysByAnUnsignedHeaderAreWarned(t *testing.T) {
	const (
		github   = "{scheme: github, secret: S}"
		standard = "{scheme: standard-webhooks, secret: S}"
		hmac     = "{scheme: hmac, secret: S, header: X-Sig}"
		timed    = "{scheme: hmac, secret: S, header: X-Sig, timestamp_header: X-Time}"
	)
	for _, c := range []struct {
		name, signature, key string
		want                 []string // prefixes
	}{
		{"GitHub's delivery", github, "[{header: x-github-delivery}]",
			[]string{"routes.yaml:4: routes[0].key[0]: header x-github-delivery is not covered by the signature, scheme: github: a captured request with"}},
		{"GitHub's body", github, "[raw]", nil},
		{"a field", github, "[{field: id}, {hash: [a, b]}, {payload: {exclude: [t]}}]", nil},
		{"a fallback", github, "[{field: id}, {header: idempotency-key}]", []string{"routes.yaml:4: routes[0].key[1]: header idempotency-key"}},
		{"Standard Webhooks' id", standard, "[{header: webhook-id}]", nil},
		{"another id of Standard Webhooks", standard, "[{header: idempotency-key}]", []string{"routes.yaml:4: routes[0].key[0]: header idempotency-key"}},
		{"Stripe", "{scheme: stripe, secret: S}", "[{header: idempotency-key}]", []string{"routes.yaml:4: routes[0].key[0]: header idempotency-key"}},
		{"Slack", "{scheme: slack, secret: S}", "[{header: x-slack-retry-num}, raw]", []string{"routes.yaml:4: routes[0].key[0]: header x-slack-retry-num"}},
		{"hmac", hmac, "[{header: x-time}]", []string{"routes.yaml:4: routes[0].key[0]: header x-time"}},
		{"hmac with the header", timed, "[{header: x-time}]", nil},
		{"hmac with another", timed, "[{header: x-id}]", []string{"routes.yaml:4: routes[0].key[0]: header x-id"}},
		{"a CloudEvent", hmac, "[cloudevent]", []string{"routes.yaml:4: routes[0].key[0]: in binary mode source and id are headers"}},
		// A sender with the token may send anything.
		{"bearer", "{scheme: bearer, secret: S}", "[{header: idempotency-key}, cloudevent]", nil},
		{"none", "{scheme: none}", "[{header: idempotency-key}, cloudevent]", nil},
	} {
		text := "routes:\n  - name: a\n    topics: [raw]\n    key: " + c.key + "\n    window: 1h\n    output: out\n" +
			"    http: {path: /a, headers: [X-GitHub-Delivery, Webhook-Id, X-Time, X-Id, X-Slack-Retry-Num], signature: " + c.signature + "}\n"
		wantWarnings(t, c.name, text, c.want...)
		if _, without, _ := strings.Cut(text, "    http:"); without != "" {
			wantWarnings(t, c.name+" without http", strings.TrimSuffix(text, "    http:"+without))
		}
	}
}

// TestNamespacesByAnUnsignedHeaderAreWarned: equal keys in two namespaces never meet.
func TestNamespacesByAnUnsignedHeaderAreWarned(t *testing.T) {
	route := func(name, match, path string) string {
		return "  - name: " + name + "\n    namespace: " + name[:1] + "\n    topics: [raw]\n    match: " + match + "\n    key: [raw]\n    window: 1h\n    output: out\n" +
			"    http: {path: " + path + ", headers: [X-GitHub-Event], signature: {scheme: github, secret: S}}\n"
	}
	const push, star, byField = "{header: x-github-event, in: [push]}", "{header: x-github-event, in: [star]}", "{field: action, in: [created]}"
	wantWarnings(t, "two namespaces", "routes:\n"+route("a", push, "/a")+route("b", star, "/a"),
		"routes.yaml:5: routes[0].match: header x-github-event selects the namespace (of a, b) and is not covered by the signature, scheme: github: ",
		"routes.yaml:13: routes[1].match: header x-github-event selects the namespace")
	wantWarnings(t, "one namespace", "routes:\n"+route("a1", push, "/a")+route("a2", star, "/a"))
	wantWarnings(t, "two paths", "routes:\n"+route("a", push, "/a")+route("b", star, "/b"))
	wantWarnings(t, "by a field", "routes:\n"+route("a", byField, "/a")+route("b", star, "/a"), "routes.yaml:13: routes[1].match: header x-github-event")
}

// wantWarnings checks that a valid file has one warning for each prefix, in order.
func wantWarnings(t *testing.T, what, text string, want ...string) {
	t.Helper()
	rs, err := ParseRoutes("routes.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if !slices.EqualFunc(rs.Warnings, want, strings.HasPrefix) {
		t.Errorf("%s: warnings\n%s\nwant\n%s", what, strings.Join(rs.Warnings, "\n"), strings.Join(want, "\n"))
	}
}
