package rules

import (
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/dedup"
)

// TestPresetsKeyByWhatIsSigned: no preset has a warning, and one whose delivery id is not
// signed has no key by a header.
func TestPresetsKeyByWhatIsSigned(t *testing.T) {
	for i := range Providers {
		p := &Providers[i]
		rs := parse(t, p.ExampleText())
		if len(rs.Warnings) > 0 {
			t.Errorf("%s: %v", p.Name, rs.Warnings)
		}
		r := rs.Routes[0]
		for k := range r.Keys {
			s := &r.Keys[k]
			if s.header != "" && (!p.SignedID || !r.HTTP.Signature.Covers(s.header)) {
				t.Errorf("%s: its key is the header %s, which is not signed", p.Name, s.header)
			}
		}
		if !p.Keys(r) {
			t.Errorf("%s: the key of its example is not its own", p.Name)
		}
		if r.Window != p.Window || r.HTTP.Timeout != p.Timeout || r.HTTP.Signature.Tolerance >= r.Window {
			t.Errorf("%s: window %v, timeout %v, tolerance %v", p.Name, r.Window, r.HTTP.Timeout, r.HTTP.Signature.Tolerance)
		}
		for _, v := range answered {
			if r.HTTP.Responses[v] != p.Response {
				t.Errorf("%s: the response to %v is %+v, want %+v", p.Name, v, r.HTTP.Responses[v], p.Response)
			}
		}
		if !strings.HasPrefix(p.Source, "https://") || p.Vector == "" || p.Why == "" || p.Retries == "" || p.Expects == "" || p.Media == "" || p.ID == "" {
			t.Errorf("%s: a column is empty: %+v", p.Name, p)
		}
		if i > 0 && Providers[i].Name == Providers[i-1].Name {
			t.Errorf("%s is there twice", p.Name)
		}
	}
	if len(Providers) < 21 {
		t.Errorf("%d presets", len(Providers))
	}
}

// TestFileOverridesItsPreset: what the file has stays, field by field.
func TestFileOverridesItsPreset(t *testing.T) {
	const head = "routes:\n  - name: a\n    topics: [in]\n    output: out\n"
	r := parse(t, head+`    key: [raw]
    window: 1h
    time: {field: at}
    mode: plain
    http:
      path: /a
      provider: stripe
      timeout: 1s
      signature: {secret: S, tolerance: 10m}
      responses: {duplicate: {status: 208}}
`).Routes[0]
	if r.KeyRule() != `v1 namespace=a secret=false key=raw()` || r.Window != time.Hour || r.Time.Field.Path.Text != "at" || r.Time.Format != UnixMilli {
		t.Errorf("key %s, window %v, time %+v", r.KeyRule(), r.Window, r.Time)
	}
	if h := r.HTTP; h.Timeout != time.Second || h.Signature.Scheme != Stripe || h.Signature.Tolerance != 10*time.Minute ||
		h.Responses[dedup.Duplicate].Status != 208 || h.Responses[dedup.Unique].Status != 200 {
		t.Errorf("%+v", r.HTTP)
	}
	if ProviderOf("stripe").Keys(r) {
		t.Error("the file's key counts as the preset's")
	}
	own := parse(t, head+"    http: {path: /a, provider: zoom, signature: {scheme: none}, handshake: {kind: none}, headers: [x-a]}\n").Routes[0].HTTP
	if own.Signature != (Signature{Scheme: NoSignature}) || own.Handshake != (Handshake{}) || !slices.Equal(own.Headers, []string{"x-a"}) {
		t.Errorf("%+v", own)
	}
	claim := parse(t, head+"    mode: claim\n    outcomes: o\n    replies: r\n    http: {path: /a, provider: svix, signature: {secret: S}}\n").Routes[0].HTTP
	if claim.Responses[dedup.InProgress].Status != 200 {
		t.Errorf("in claim mode %+v", claim.Responses)
	}
}

// TestZoomEventsWithoutATimeAreKeyed: Zoom's own types of the events of a chatbot have no
// event_ts, and the signature has a time of its own.
func TestZoomEventsWithoutATimeAreKeyed(t *testing.T) {
	deriver := parse(t, ProviderOf("zoom").ExampleText()).NewDeriver(nil)
	for _, body := range []string{
		`{"event":"bot_notification","payload":{"accountId":"a","cmd":"hello","timestamp":1767225600000}}`,
		`{"event":"meeting.started","event_ts":1767225600000,"payload":{}}`,
	} {
		if got := deriver.Derive(&Input{Topic: "zoom.raw", Value: []byte(body), Headers: headerMap{}, Timestamp: 1767225601000}); got.Finding != Keyed || got.Time != 1767225601000 {
			t.Errorf("%s: %v %s, time %d", body, got.Finding, got.Reason, got.Time)
		}
	}
}

// TestMistakesInPresets: a mistake names the line of the file.
func TestMistakesInPresets(t *testing.T) {
	for http, want := range map[string]string{
		"{path: /a, provider: strpe}":                                                                                   `f.yaml:6:32: routes[0].http.provider: "strpe" is no provider; did you mean stripe?`,
		"{path: /a, provider: [stripe]}":                                                                                "is no provider; known are stripe, github,",
		"{path: /a, provider: stripe}":                                                                                  "f.yaml:6:32: routes[0].http.signature.secret: is required",
		"{path: /a, provider: twilio, signature: {secret: S}}":                                                          "routes[0].http.signature.url: is required",
		"{path: /a, provider: twilio, signature: {secret: S, url: /a}}":                                                 "want the address of the endpoint as its sender has it",
		"{path: /a, provider: meta, signature: {secret: S}}":                                                            "routes[0].http.handshake.verify_token: is required",
		"{path: /a, provider: zoom, signature: {secret: S}, handshake: {verify_token: T}}":                              "handshake.verify_token: belongs to kind: meta",
		"{path: /a, provider: telegram, signature: {secret: S, query: t}}":                                              "want header, or query",
		"{path: /a, provider: stripe, signature: {secret: S, header: X}}":                                               "signature.header: belongs to scheme: hmac or token",
		"{path: /a, provider: tradingview, signature: {secret: S}, allowed_sources: [host]}":                            `allowed_sources[0]: "host" is malformed`,
		"{path: /a, provider: stripe, signature: {secret: S}, decompress: {signed: as_sent}}":                           "decompress.max_bytes: is required",
		"{path: /a, provider: stripe, signature: {secret: S}, decompress: {max_bytes: 1}, headers: [content-encoding]}": "content-encoding would be wrong",
	} {
		_, err := ParseRoutes("f.yaml", []byte("routes:\n  - name: a\n    topics: [in]\n    output: out\n\n    http: "+http+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", http, err, want)
		}
	}
}

// TestKeysThatTheSignatureDoesNotCover: Adyen signs eight fields, Twilio the fields joined,
// and none the media type of a form.
func TestKeysThatTheSignatureDoesNotCover(t *testing.T) {
	for _, c := range []struct {
		provider, key string
		warned        bool
	}{
		{"adyen", "[{field: notificationItems.0.NotificationRequestItem.merchantReference}]", false},
		{"adyen", "[{field: notificationItems.0.NotificationRequestItem.eventDate}]", true},
		{"adyen", "[raw]", true},
		{"adyen", "[{payload: {}}]", true},
		{"twilio", "[form]", false},
		{"github", "[form]", true},
		{"telegram", "[form]", false},
		{"twilio", "[{field: MessageSid}, form]", true},
		{"twilio", "[raw]", true},
	} {
		text := strings.Replace(ProviderOf(c.provider).ExampleText(), "    http:", "    key: "+c.key+"\n    http:", 1)
		if got := parse(t, text).Warnings; (len(got) > 0) != c.warned {
			t.Errorf("%s with %s: warnings %v", c.provider, c.key, got)
		}
	}
}

// TestKeyRulesOfPresetsStay: the manifest pins the key rule of a route. A changed one would
// stop every app with the preset, so another rule is a preset with another name.
func TestKeyRulesOfPresetsStay(t *testing.T) {
	const item = `"notificationItems.0.NotificationRequestItem.`
	want := map[string]string{
		"stripe": `field("id")`, "github": "raw()", "gitlab": "raw()", "gitlab-signed": `header("webhook-id")`, "slack": `field("event_id");raw()`,
		"shopify": "raw()", "twilio": "form();raw()", "paypal": `field("id")`, "square": `field("event_id")`,
		"adyen": "fields(" + item + `pspReference",` + item + `eventCode",` + item + `success")`,
		"meta":  "raw()", "zoom": "raw()", "discord": `field("id");raw()`, "telegram": `field("update_id")`, "sendgrid": "raw()",
		"svix": `header("svix-id")`, "standard-webhooks": `header("webhook-id")`, "paddle": `field("event_id")`, "coinbase": `field("event.id")`, "coinbase-cdp": `field("eventId");raw()`,
		"linear": `payload(exclude,"webhookTimestamp")`, "jira": "raw()", "tradingview": "raw()",
	}
	for i := range Providers {
		p := &Providers[i]
		if got := p.Example().KeyRule(); got != "v1 namespace="+p.Name+" secret=false key="+want[p.Name] {
			t.Errorf("%s: %s, want the key %s", p.Name, got, want[p.Name])
		}
	}
}
