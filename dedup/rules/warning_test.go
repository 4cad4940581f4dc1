package rules

import (
	"fmt"
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
	wantWarnings(t, "two paths", "routes:\n"+route("a", push, "/a")+strings.Replace(route("b", star, "/b"), "secret: S", "secret: Z", 1))
	wantWarnings(t, "by a field", "routes:\n"+route("a", byField, "/a")+route("b", star, "/a"), "routes.yaml:13: routes[1].match: header x-github-event")
}

// TestOutcomesThatSendersCanSendAreWarned: an outcome frees a key or decides the answer of all duplicates.
func TestOutcomesThatSendersCanSendAreWarned(t *testing.T) {
	t.Parallel()
	route := func(name, signature, outcomes string) string {
		return "  - {name: " + name + ", mode: claim, topics: [in-" + name + "], key: [raw], window: 1h, output: out-" + name + ", outcomes: o-" + name + ", replies: r,\n" +
			"     http: {path: /" + name + ", signature: " + signature + ",\n       outcomes: {signature: " + outcomes + "}}}\n"
	}
	const sender, executor = "{scheme: bearer, secret: S}", "{scheme: token, header: X, secret: E}"
	const at = "routes.yaml:4: routes[0].http.outcomes.signature"
	wantWarnings(t, "a secret of the executors", "routes:\n"+route("a", sender, executor))
	wantWarnings(t, "none", "routes:\n"+route("a", sender, "{scheme: none}"), at+".scheme: none lets anybody who reaches the port end, free or erase a key: use bearer or token")
	wantWarnings(t, "the sender's", "routes:\n"+route("a", sender, sender), at+".secret: S is the secret of the senders of /a, who could end, free or erase a key with it: give the executors one of their own")
	wantWarnings(t, "that of another path", "routes:\n"+route("a", sender, "{scheme: bearer, secret: Z}")+route("b", "{scheme: bearer, secret: Z}", executor),
		at+".secret: Z is the secret of the senders of /b")
	wantWarnings(t, "hmac", "routes:\n"+route("a", sender, "{scheme: hmac, header: X-Sig, secret: E}"),
		at+".scheme: hmac does not cover the headers of an outcome: a captured one with another Oncebus-Claim-Token or Oncebus-Outcome is genuine; use bearer or token")
}

// TestSecretOfTwoPathsIsWarned: no scheme but those with the URL says for which path a request was signed.
func TestSecretOfTwoPathsIsWarned(t *testing.T) {
	t.Parallel()
	route := func(name, path, signature string) string {
		return "  - {name: " + name + ", topics: [in], key: [raw], window: 1h, output: out, match: {field: k, in: [" + name + "]},\n     http: {path: " + path + ", signature: " + signature + "}}\n"
	}
	const github, hmac = "{scheme: github, secret: S}", "{scheme: hmac, header: X, secret: S}"
	const want = "routes.yaml:5: routes[1].http.signature.secret: S also signs the requests of /a: a captured one of either path is genuine at the other, and a new event there; give each path a secret"
	wantWarnings(t, "one secret", "routes:\n"+route("a", "/a", github)+route("b", "/b", github), want)
	wantWarnings(t, "of two schemes", "routes:\n"+route("a", "/a", github)+route("b", "/b", hmac), want)
	wantWarnings(t, "one path", "routes:\n"+route("a", "/a", github)+route("b", "/a", github))
	wantWarnings(t, "one namespace", strings.ReplaceAll("routes:\n"+route("a", "/a", github)+route("b", "/b", hmac), "topics:", "namespace: n, topics:"))
	wantWarnings(t, "two secrets", "routes:\n"+route("a", "/a", github)+route("b", "/b", "{scheme: github, secret: Z}"))
	const token, square = "{scheme: bearer, secret: S}", "{scheme: square, secret: S, url: \"https://example.com/"
	wantWarnings(t, "nothing is signed", "routes:\n"+route("a", "/a", token)+route("b", "/b", token))
	wantWarnings(t, "the URL is signed", "routes:\n"+route("a", "/a", square+"a\"}")+route("b", "/b", square+"b\"}"))
}

// TestRoutesAndSourcesThatNothingReachesAreWarned: a file that runs may have parts that no event reaches.
func TestRoutesAndSourcesThatNothingReachesAreWarned(t *testing.T) {
	t.Parallel()
	route := func(name, more string) string {
		return "  - {name: " + name + ", topics: [in], window: 1h, output: out, " + more + "}\n"
	}
	matching := func(name, match string) string { return route(name, "key: [raw], match: {"+match+"}") }
	wantWarnings(t, "both values are taken", "routes:\n"+matching("a", "field: k, in: [a]")+matching("b", "field: k, in: [b]")+matching("c", "field: k, in: [a, b]"),
		"routes.yaml:4: routes[2].match: the route gets nothing of in: the routes above take each of these values before it")
	wantWarnings(t, "one value is left", "routes:\n"+matching("a", "field: k, in: [a]")+matching("b", "field: k, in: [b]")+matching("c", "field: k, in: [a, b, c]"))
	wantWarnings(t, "another field", "routes:\n"+matching("a", "field: k, in: [a]")+matching("b", "field: l, in: [b]")+matching("c", "field: k, in: [a, b]"))
	wantWarnings(t, "more spellings", "routes:\n"+matching("a", "field: k, in: [a]")+matching("b", "field: k, in: [a], normalise: lower"))
	for key, want := range map[string]string{
		"[raw, {field: a}]":                                                             "field: a is never tried: raw before it",
		"[{payload: {}}, record_key]":                                                   "record_key is never tried: payload",
		"[{payload: {exclude: [a]}}, {field: b}]":                                       "field: b is never tried: payload",
		"[{field: a, normalise: [{decimals: 2}, {step: 1m}]}]":                          "field a never has a key: no result of decimals(2) is a time for step(60000ms)",
		"[{fields: [a, b], normalise: {b: [{step: 1m}, {step: 1h, format: rfc3339}]}}]": "field b never has a key: no result of step(60000ms)",
		"[order]":                             "an order with a limit and one with a stop of the same amount have one key, since the key has the amount alone: add fingerprint: [limit, stop]",
		"[{order: {limit: a, stop: b}}]":      "an order with a a and one with a b",
		"[order], fingerprint: [limit, stop]": "",
		"[raw, record_key]":                   "", "[raw, cloudevent]": "", "[raw, {header: h}]": "", "[{payload: {include: [a]}}, {field: b}]": "",
		"[{field: a, normalise: [{decimals: 0}, {step: 1m, format: unix_ms}]}]": "", "[{field: a, normalise: [{step: 1m}, {step: 1h}]}]": "",
	} {
		var prefixes []string
		if want != "" {
			at := "0"
			if strings.Contains(want, "never tried") {
				at = "1"
			}
			prefixes = []string{"routes.yaml:2: routes[0].key[" + at + "]: " + want}
		}
		wantWarnings(t, key, "routes:\n"+route("a", "key: "+key), prefixes...)
	}
}

// TestDetailsWithMoreSpellingsThanTheKeyAreWarned: two spellings that have one key collide if
// the fingerprint tells them apart.
func TestDetailsWithMoreSpellingsThanTheKeyAreWarned(t *testing.T) {
	t.Parallel()
	const at = "routes.yaml:2: routes[0].fingerprint: "
	for route, want := range map[string][]string{
		"key: [{fields: [a, b], normalise: {a: upper}}], fingerprint: [a, c]": {at + "field a is compared as it is, and the key reads it with upper: " +
			"two spellings with one key are a collision; write fingerprint: {fields: [...], normalise: {a: ...}} with the same, or leave a out"},
		"key: [{field: a, normalise: [trim, upper]}], fingerprint: {fields: [[c, a]], normalise: {a: upper}}": {at + "field a is compared with upper, and the key reads it with trim, upper: "},
		"key: [{hash: [a], normalise: {a: {decimals: 2}}}], fingerprint: [a]":                                 {at + "field a is compared as it is, and the key reads it with decimals(2): "},
		"key: [order], fingerprint: [account, symbol, quantity, limit, stop, timestamp]":                      {at + "field symbol is compared as it is, and the key reads it with upper: "},
		"key: [order], fingerprint: {fields: [symbol], normalise: {symbol: upper}}":                           nil,
		"key: [{field: a, normalise: upper}], fingerprint: {fields: [a], normalise: {a: upper}}":              nil,
		"key: [{field: a}], fingerprint: {fields: [a], normalise: {a: upper}}":                                nil,
		"key: [{field: a, normalise: upper}], fingerprint: [b]":                                               nil,
	} {
		wantWarnings(t, route, "routes:\n  - {name: a, topics: [in], window: 1h, output: out, "+route+"}\n", want...)
	}
}

// TestPathsOfOtherLanguagesAreWarned: a JSON Pointer or JSONPath is a member of that name here, which no event has.
func TestPathsOfOtherLanguagesAreWarned(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{"/id": "id", "/a/0": "a.0", "a[0].id": "a.0.id", "a.b[12]": "a.b.12", "a[x]": "", "a/b": "", "/": "", "id": ""} {
		var prefixes []string
		if want != "" {
			prefixes = []string{fmt.Sprintf("routes.yaml:2: routes[0].key[0].field: path %q is a member of that name: for a way through the payload write %s", path, want)}
		}
		wantWarnings(t, path, "routes:\n  - {name: a, topics: [in], window: 1h, output: out, key: [{field: \""+path+"\"}]}\n", prefixes...)
	}
}

// TestMistakeIsSaidOnce: a route behind many that take all is one mistake.
func TestMistakeIsSaidOnce(t *testing.T) {
	t.Parallel()
	const routes = 100
	var file strings.Builder
	file.WriteString("routes:\n")
	for n := range routes {
		fmt.Fprintf(&file, "  - {name: r%d, topics: [in], window: 1h, output: out, key: [raw]}\n", n)
	}
	_, err := ParseRoutes("routes.yaml", []byte(file.String()))
	if n := strings.Count(fmt.Sprint(err), "the route gets nothing"); n != routes-1 {
		t.Errorf("%d mistakes of %d routes, want one for each but the first", n, routes)
	}
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
