package ingress

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oncebus/processor/kafkatest"
)

// TestRotation replaces a secret by files, without a rejected request.
func TestRotation(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(signalRoutes, "scheme: none", "scheme: hmac, header: X-Sig, secret: A", 1))
	dir := t.TempDir()
	current, next := filepath.Join(dir, "a"), filepath.Join(dir, "a-next")
	kafkatest.ReplaceFile(t, current, []byte("the old secret of A\n"))
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"A": {Path: current}, "A_NEXT": {Path: next}} })
	now := time.Now()
	i.endpoints.keyrings["A"].now = func() time.Time { return now }
	n := 0
	good := func(secret string) {
		t.Helper()
		n++
		body := event(strings.Repeat("g", n))
		i.post("/signals", body, "X-Sig", sign(secret, body)).want(t, secret, 202)
	}
	bad := func(secret string) {
		t.Helper()
		body := event("bad")
		i.post("/signals", body, "X-Sig", sign(secret, body)).header(t, secret, "WWW-Authenticate", `Signature scheme="hmac"`).problem(t, secret, "signature", 401)
	}
	good("the old secret of A")
	bad("the new secret of A")
	kafkatest.ReplaceFile(t, next, []byte("the new secret of A"))
	good("the old secret of A")
	bad("the new secret of A") // within the interval, so the file was not read
	now = now.Add(reloadInterval)
	good("the new secret of A")
	good("the old secret of A")
	kafkatest.ReplaceFile(t, current, []byte("the new secret of A\n"))
	now = now.Add(reloadInterval)
	bad("the old secret of A")
	good("the new secret of A")
	if err := os.Remove(next); err != nil {
		t.Fatal(err)
	}
	now = now.Add(reloadInterval)
	good("the new secret of A")
	// What cannot be used changes nothing.
	kafkatest.ReplaceFile(t, current, nil)
	now = now.Add(reloadInterval)
	good("the new secret of A")
	kafkatest.ReplaceFile(t, current, []byte("the new secret of A\n\n"))
	now = now.Add(reloadInterval)
	good("the new secret of A")
	if i.count("oncebus_http_reloads_total", "what", "secrets", "outcome", "failed") != 2 ||
		i.count("oncebus_http_reloads_total", "what", "secrets", "outcome", "ok") != 3 {
		t.Error("the reloads are not counted")
	}
	if i.count("oncebus_http_refused_total", "route", "signals", "reason", "wrong") != 3 {
		t.Error("the rejected requests are not counted")
	}
	for _, hidden := range []string{"the old secret of A", "the new secret of A", "price", sign("the new secret of A", event("bad"))} {
		if strings.Contains(b.logs.String(), hidden) {
			t.Errorf("the log has %q", hidden)
		}
	}
	if n := len(b.read("signals.unique", 8)); n != 8 {
		t.Errorf("%d records in the output", n)
	}
}
