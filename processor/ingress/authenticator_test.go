package ingress

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup/rules"
	"oncebus/processor/front"
)

// FuzzSignaturesOfRoutesFiles: the ingress accepts every signature that
// `oncebus check` accepts.
func FuzzSignaturesOfRoutesFiles(f *testing.F) {
	for _, s := range []struct {
		scheme, header, prefix, timestamp, separator string
		window, tolerance                            time.Duration
	}{
		{"hmac", "X-Sig", "sha256=", "", "", time.Hour, 0},
		{"hmac", "X-Sig", " v1=", "", "", time.Hour, 0},
		{"hmac", "X-Sig", " ", "", "", time.Hour, 0},
		{"hmac", "X-Sig", "v1 = ", "X-Time", " ", time.Hour, time.Minute},
		{"hmac", "X-Sig", strings.Repeat("p", 64), "X-Time", strings.Repeat(":", 64), time.Hour, time.Second},
		{"hmac", "X-Sig", strings.Repeat("p", 65), "X-Time", ".", time.Hour, time.Second},
		{"hmac", "X-Sig", "", "X-Time", strings.Repeat(":", 65), time.Hour, time.Second},
		{"hmac", "X-Sig", "", "x-sig", ".", time.Hour, time.Second},
		{"hmac", "X-Sig", "", "X-Time", "0", time.Hour, time.Second},
		{"hmac", "X Sig", "é", "", "", time.Hour, 0},
		{"hmac", "Host", "", "Trailer", ".", time.Hour, 0},
		{"slack", "", "", "", "", time.Second + time.Millisecond, time.Second},
		{"stripe", "", "", "", "", time.Minute, 59999 * time.Millisecond},
		{"standard-webhooks", "", "", "", "", 6 * time.Minute, 0},
		{"github", "", "", "", "", time.Hour, 0},
		{"none", "", "", "", "", time.Hour, 0},
	} {
		f.Add(s.scheme, s.header, s.prefix, s.timestamp, s.separator, s.window.Milliseconds(), s.tolerance.Milliseconds())
	}
	f.Fuzz(func(t *testing.T, scheme, header, prefix, timestamp, separator string, window, tolerance int64) {
		fields := map[string]string{"scheme": scheme}
		if scheme != "none" {
			fields["secret"] = "A"
		}
		for name, value := range map[string]string{"header": header, "prefix": prefix, "timestamp_header": timestamp, "separator": separator} {
			if value != "" {
				fields[name] = value
			}
		}
		if tolerance != 0 {
			fields["tolerance"] = fmt.Sprintf("%dms", tolerance)
		}
		signature, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		routes, err := rules.ParseRoutes("routes.yaml", fmt.Appendf(nil, `routes:
  - {name: a, topics: [in], key: [raw], window: %dms, output: out, http: {path: /a, signature: %s}}
`, window, signature))
		if err != nil {
			return // the error names the mistake
		}
		if _, err := newVerifier(&routes.Routes[0].HTTP.Signature, shortestWindow("/a", routes)); err != nil {
			t.Errorf("%s with a window of %d ms: %v", signature, window, err)
		}
	})
}

// TestSignedRequestIsForwardedOnce: as long as the timestamp of a request is
// valid, the same bytes are a duplicate, though twice the tolerance exceeds the
// window.
func TestSignedRequestIsForwardedOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.NewReplacer("window: 1h", "window: 6s",
		"scheme: none", "scheme: hmac, header: X-Sig, timestamp_header: X-Time, secret: A, tolerance: 5s").Replace(signalRoutes))
	signed := time.Now().Truncate(time.Second).Add(-time.Minute)
	var now atomic.Int64 // ns
	front, err := front.NewIngressClient(b.config("ingress").Config, b.routes, prometheus.NewRegistry(), b.logger())
	if err != nil {
		t.Fatal(err)
	}
	i := b.open(front, func(c *Config) { c.Secrets = Secrets{"A": {Value: "the secret of senders"}} })
	i.now = func() time.Time { return time.Unix(0, now.Load()) }
	b.background("front", front.Run)
	i.start()
	b.wait("the client to be ready", func() bool { return front.Ready() == nil })
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
		r := i.post("/signals", body, "X-Time", at, "X-Sig", sign("the secret of senders", at+"."+body))
		if step.problem == "" {
			r.want(t, step.after.String(), step.status)
		} else {
			r.problem(t, step.after.String(), step.problem, step.status)
		}
	}
	if n := len(b.read("signals.unique", 1)); n != 1 {
		t.Errorf("%d events were forwarded, want 1", n)
	}
}

// TestCapturedDeliveryUnderAnotherIDIsADuplicate: GitHub signs the body alone, so
// a captured request under another delivery id is genuine. It is a duplicate.
func TestCapturedDeliveryUnderAnotherIDIsADuplicate(t *testing.T) {
	t.Parallel()
	const secret = "the secret of the webhook"
	b := newBench(t, strings.NewReplacer("{scheme: none}", "{scheme: github, secret: A}", "{field: id}", "raw").
		Replace(withHTTP("headers: [X-GitHub-Delivery, X-GitHub-Event]")))
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"A": {Value: secret}} })
	body := event("a")
	deliver := func(id, event string) reply {
		return i.post("/signals", body, "X-Hub-Signature-256", "sha256="+sign(secret, body), "X-GitHub-Delivery", id, "X-GitHub-Event", event)
	}
	deliver("d1", "push").want(t, "the delivery", 202)
	deliver("d1", "push").want(t, "GitHub's own retry", 409)
	deliver("d2", "push").want(t, "captured, under another id", 409)
	deliver("d3", "star").want(t, "captured, as another event", 409)
	if n := len(b.read("signals.unique", 1)); n != 1 {
		t.Errorf("%d events in the output, want 1", n)
	}
}
