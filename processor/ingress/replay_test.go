package ingress

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"oncebus/dedup/rules"
	"oncebus/processor"
)

// TestSignedRequestPassesOnce: for as long as the timestamp of a request is
// good, the same bytes sent again are a copy, though twice the tolerance is
// longer than the window.
func TestSignedRequestPassesOnce(t *testing.T) {
	b := newBench(t, strings.NewReplacer("window: 1h", "window: 6s",
		"scheme: none", "scheme: hmac, header: X-Sig, timestamp_header: X-Time, secret: A, tolerance: 5s").Replace(signalRoutes))
	signed := time.Now().Truncate(time.Second).Add(-time.Minute)
	var now atomic.Int64 // ns
	front, err := processor.NewFront(b.config("door").AppConfig, b.routes, b.logger())
	if err != nil {
		t.Fatal(err)
	}
	i := b.open(front, func(c *Config) { c.Secrets = Secrets{"A": {Value: "secret"}} })
	i.now = func() time.Time { return time.Unix(0, now.Load()) }
	b.background("front", front.Run)
	i.start()
	b.wait("the front to be ready", func() bool { return front.Ready() == nil })
	body, at := event("a"), strconv.FormatInt(signed.Unix(), 10)
	for _, step := range []struct {
		after   time.Duration // signing
		problem string
		status  int
	}{
		{-5 * time.Second, "signature", 401},
		{-time.Second - 1, "signature", 401},
		{-time.Second, "", 202},
		{0, "duplicate", 409},
		{5 * time.Second, "duplicate", 409},
		{5*time.Second + 1, "signature", 401},
	} {
		now.Store(signed.Add(step.after).UnixNano())
		r := i.post("/signals", body, "X-Time", at, "X-Sig", sign("secret", at+"."+body))
		if step.problem == "" {
			r.want(t, step.after.String(), step.status)
		} else {
			r.problem(t, step.after.String(), step.problem, step.status)
		}
	}
	if n := len(b.read("signals.unique", 1)); n != 1 {
		t.Errorf("%d events passed, want 1", n)
	}
}

// TestShortestWindowOfADoor decides how far ahead a timestamp may be: which of
// the routes takes a request is known only when it is in.
func TestShortestWindowOfADoor(t *testing.T) {
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
		says  string
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
			if text := document.Components.SecuritySchemes[name].Value.Description; !strings.HasSuffix(text, want.says) {
				t.Errorf("%s: the document says %q, want %q", path, text, want.says)
			}
		}
	}
}
