package ingress

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"oncebus/dedup/rules"
	"oncebus/processor"
)

// TestKeylessEventIsNotCalledSafe to send again: nothing would tell its copies.
func TestKeylessEventIsNotCalledSafe(t *testing.T) {
	for _, c := range []struct {
		err  error
		says string
	}{
		{processor.ErrBusAway, "it is safe to send the request again"},
		{fmt.Errorf("%w: %w", processor.ErrKeyless, processor.ErrBusAway), "the event has no key: if it reached the bus all the same, sending it again puts it there twice"},
	} {
		var body problemBody
		if err := json.Unmarshal(failure(c.err, &rules.HTTP{}).body, &body); err != nil || body.Type != problemType+problemKafkaUnavailable.name || body.Detail != c.says {
			t.Errorf("%v: %+v, %v", c.err, body, err)
		}
	}
}

// FuzzSignaturesOfRoutesFiles: what `oncebus check` passes, the ingress takes.
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
			return // which names the mistake
		}
		if _, err := newVerifier(&routes.Routes[0].HTTP.Signature, shortestWindow("/a", routes)); err != nil {
			t.Errorf("%s with a window of %d ms: %v", signature, window, err)
		}
	})
}
