package ingress

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/security"
)

// providerRoutes are routes with each preset.
func providerRoutes() string {
	var b strings.Builder
	b.WriteString("routes:\n")
	for i := range rules.Providers {
		text, _ := strings.CutPrefix(rules.Providers[i].ExampleText(), "routes:\n")
		b.WriteString(text + patience)
	}
	return b.String()
}

// TestProvidersOverHTTP sends each recorded webhook twice. The first is an event, with its
// bytes as sent; the second is a duplicate; both get the provider's response. A handshake
// is answered and gets to no topic. Before that, each comes altered and gets 401.
func TestProvidersOverHTTP(t *testing.T) {
	requests := recordedRequests(t)
	b := newBench(t, providerRoutes(), oneTask)
	i := b.serveAt(time.Unix(requests[0].At, 0), func(c *Config) {
		c.TrustedProxies = []string{"127.0.0.1"}
		c.Secrets = providerSecrets(b.routes, requests)
	})
	for _, r := range requests {
		t.Run(r.name(), func(t *testing.T) {
			path, headers := "/"+r.Provider, []string{"X-Forwarded-For", "52.89.214.238"} // an address of TradingView
			if r.Query != "" {
				path += "?" + r.Query
			}
			for name, value := range r.Headers {
				headers = append(headers, name, value)
			}
			for what, body := range alteredBodies(&r) {
				i.post(path, body, headers...).want(t, what, 401, "/problems/signature")
			}
			if r.Handshake != nil {
				if got := i.post(path, r.Body, headers...); got.StatusCode != r.Handshake.Status || got.text != r.Handshake.Body || got.Header.Get(headerKey) != "" {
					t.Errorf("the handshake got %d %q, want %d %q", got.StatusCode, got.text, r.Handshake.Status, r.Handshake.Body)
				}
				return
			}
			want := rules.ProviderOf(r.Provider).Response
			for _, verdict := range []string{"unique", "duplicate"} {
				got := i.post(path, r.Body, headers...)
				if got.StatusCode != want.Status || got.text != want.Body || got.Header.Get(headerVerdict) != verdict {
					t.Errorf("%d %q with verdict %q, want %d %q with %s", got.StatusCode, got.text, got.Header.Get(headerVerdict), want.Status, want.Body, verdict)
				}
			}
		})
	}
	if t.Failed() {
		return
	}
	bodies := map[string][]string{}
	for _, r := range requests {
		if r.Handshake == nil {
			bodies[r.Provider] = append(bodies[r.Provider], r.Body)
		}
	}
	for provider, want := range bodies {
		var got []string
		for _, record := range b.read(provider+".unique", len(want)) {
			got = append(got, string(record.Value))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s.unique has %q, want %q", provider, got, want)
		}
	}
}

// alteredBodies are bodies that were not signed, also those of handshakes. A token signs none.
func alteredBodies(r *providerRequest) map[string]string {
	if rules.ProviderOf(r.Provider).Example().HTTP.Signature.Scheme == rules.Token {
		return nil
	}
	return map[string]string{"altered": strings.Replace(r.Body, r.Changed[0], r.Changed[1], 1), "empty": ""}
}

// providerSecrets returns the secrets of the requests. A provider's second one is its next.
func providerSecrets(routes *rules.Routes, requests []providerRequest) Secrets {
	secrets := Secrets{"VERIFY": {Value: verifyToken}}
	for _, r := range requests {
		name := routes.Route(r.Provider).HTTP.Signature.Secret
		source := SecretSource{Value: security.Secret(r.Secret)}
		if first, ok := secrets[name]; ok && first != source {
			name += nextSuffix
		}
		secrets[name] = source
	}
	return secrets
}

// serveAt starts a server whose clock stands at a time.
func (b *bench) serveAt(at time.Time, change func(*Config)) *instance {
	b.t.Helper()
	front, err := front.NewIngressClient(b.config("ingress").Config, b.routes, prometheus.NewRegistry(), b.logger())
	if err != nil {
		b.t.Fatal(err)
	}
	i := b.open(front, change)
	i.now = func() time.Time { return at }
	b.background("front", front.Run)
	i.start()
	b.wait("the client to be ready", func() bool { return front.Ready() == nil })
	return i
}

// TestHandshakesAreNotEvents: what is not quite a handshake is refused, or is an event; what
// is one gets to no topic.
func TestHandshakesAreNotEvents(t *testing.T) {
	b := newBench(t, withHTTP("handshake: {kind: meta, verify_token: VERIFY}"))
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"VERIFY": {Value: verifyToken}} })
	get := func(query string) reply { return i.send(http.MethodGet, "/signals?"+query, "") }
	good := "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=" + verifyToken
	got := get(good)
	got.want(t, "handshake", 200)
	if got.text != "1158201444" || got.Header.Get("Content-Type") != textType || got.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("handshake: %q with %v", got.text, got.Header)
	}
	for what, query := range map[string]string{
		"no token": "hub.mode=subscribe&hub.challenge=1", "another token": strings.Replace(good, "tests", "other", 1),
		"token twice": good + "&hub.verify_token=" + verifyToken, "no challenge": "hub.mode=subscribe&hub.verify_token=" + verifyToken,
		"another mode": strings.Replace(good, "subscribe", "unsubscribe", 1), "line end": strings.Replace(good, "1158201444", "a%0d%0ab", 1),
	} {
		get(query).want(t, what, 403, "/problems/handshake")
	}
	i.post("/signals", event("a")).want(t, "event", 202)
	if n := len(b.read("signals.unique", 1)); n != 1 {
		t.Errorf("%d records, want that of the event", n)
	}
}

// TestHandshakeSignsNoRequest: what is signed of a request has colons, so the answer to a
// handshake is the signature of none.
func TestHandshakeSignsNoRequest(t *testing.T) {
	v := newReceiver(t, "zoom", "a-secret-of-the-tests-0123456789", "")
	ask := func(token string) *response {
		return v.handshake(&providerRequest{Body: fmt.Sprintf(`{"event":"endpoint.url_validation","payload":{"plainToken":%q}}`, token)})
	}
	if got := ask("qgg8vlvZRS6UYooatFL8Aw"); got == nil {
		t.Error("a handshake got no answer")
	}
	for _, token := range []string{"v0:1767225600:{}", "a:b", "", "a\nb", strings.Repeat("a", headerMaxBytes+1)} {
		if got := ask(token); got != nil {
			t.Errorf("the token %.40q is signed: %s", token, got.body)
		}
	}
}

// TestAllowedSources: another address gets 403 before its body is read.
func TestAllowedSources(t *testing.T) {
	b := newBench(t, withHTTP("allowed_sources: [192.0.2.0/24, \"2001:db8::1\"]"))
	i := b.serve(func(c *Config) { c.TrustedProxies = []string{"127.0.0.1"} })
	for source, want := range map[string]int{
		"192.0.2.7": 202, "2001:db8::1": 202, "::ffff:192.0.2.8": 202, "192.0.3.7": 403, "2001:db8::2": 403, "": 403,
	} {
		headers := []string{"X-Forwarded-For", source}
		if source == "" {
			headers = nil
		}
		i.post("/signals", event("of "+source), headers...).want(t, source, want)
	}
	if got := i.count("oncebus_http_refused_total", "reason", reasonAddress); got != 3 {
		t.Errorf("%v refused, want 3", got)
	}
}

// rawDeflate is the coding deflate without the header of zlib.
const rawDeflate = codingDeflate + " without its header"

func compressed(tb testing.TB, coding, text string) string {
	tb.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	switch coding {
	case codingDeflate:
		w = zlib.NewWriter(&b)
	case rawDeflate:
		var err error
		if w, err = flate.NewWriter(&b, flate.DefaultCompression); err != nil {
			tb.Fatal(err)
		}
	}
	if _, err := io.WriteString(w, text); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

// TestCompressedBodies: a bomb gets 413 and a damaged body 400; Kafka has the decompressed
// body of the others, and the signature is over the bytes that came.
func TestCompressedBodies(t *testing.T) {
	routes := strings.Replace(withHTTP("decompress: {max_bytes: 1000}"), "scheme: none", "scheme: github, secret: A", 1)
	b := newBench(t, routes)
	i := b.serve(func(c *Config) {
		c.Secrets = Secrets{"A": {Value: "token-of-sender-a"}}
		c.MaxBodyBytes = 4 << 20 // less than a bomb
	})
	post := func(coding, body string) reply {
		coding = strings.TrimSuffix(coding, " without its header")
		return i.post("/signals", body, "Content-Encoding", coding, "X-Hub-Signature-256", "sha256="+sign("token-of-sender-a", body))
	}
	bomb := strings.Repeat(" ", 10<<20)
	for _, coding := range []string{codingGzip, codingDeflate, rawDeflate} {
		whole := compressed(t, coding, event(coding))
		post(coding, whole).want(t, coding, 202)
		post(coding, whole).want(t, coding+" again", 409)
		post(coding, compressed(t, coding, bomb)).want(t, coding+" bomb", 413, "1000 bytes")
		post(coding, compressed(t, coding, strings.Repeat(" ", 1001))).want(t, coding+" over the bound", 413)
		post(coding, whole[:len(whole)-3]).want(t, coding+" cut off", 400, "/problems/broken-encoding")
		post(coding, whole+"rest").want(t, coding+" with a rest", 400, "/problems/broken-encoding")
		post(coding, event("plain")).want(t, coding+" of a plain body", 400, "/problems/broken-encoding")
		i.post("/signals", whole, "Content-Encoding", strings.TrimSuffix(coding, " without its header"), "X-Hub-Signature-256", "sha256="+sign("token-of-sender-a", event(coding))).
			want(t, coding+" with the signature of the plain body", 401)
		i.post("/signals", whole, "X-Hub-Signature-256", "sha256="+sign("token-of-sender-a", whole)).
			want(t, coding+" without its coding", 400, "/problems/broken-encoding")
	}
	for _, coding := range []string{"br", "gzip, gzip", "gzip, deflate", "compress"} {
		got := post(coding, "x")
		got.want(t, coding, 415)
		if want := "gzip, deflate, identity"; got.Header.Get("Accept-Encoding") != want {
			t.Errorf("%s: Accept-Encoding %q, want %q", coding, got.Header.Get("Accept-Encoding"), want)
		}
	}
	post("identity", event("plain")).want(t, "identity", 202)
	for _, record := range b.read("signals.unique", 4) {
		if !strings.HasPrefix(string(record.Value), `{"id":`) {
			t.Errorf("the output has %q", record.Value)
		}
	}
}

// TestSignatureOverDecompressedBody: with signed: decompressed the signature is that of the
// body before a proxy compressed it, and a bomb is bounded before its signature is verified.
func TestSignatureOverDecompressedBody(t *testing.T) {
	routes := strings.Replace(withHTTP("decompress: {max_bytes: 1000, signed: decompressed}"), "scheme: none", "scheme: github, secret: A", 1)
	b := newBench(t, routes)
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"A": {Value: "token-of-sender-a"}} })
	body := event("a")
	sent := compressed(t, codingGzip, body)
	i.post("/signals", sent, "Content-Encoding", "gzip", "X-Hub-Signature-256", "sha256="+sign("token-of-sender-a", body)).want(t, "signed", 202)
	i.post("/signals", sent, "Content-Encoding", "gzip", "X-Hub-Signature-256", "sha256="+sign("token-of-sender-a", sent)).want(t, "signature of what came", 401)
	bomb := compressed(t, codingGzip, strings.Repeat(" ", 10<<20))
	i.post("/signals", bomb, "Content-Encoding", "gzip", "X-Hub-Signature-256", "sha256="+sign("another secret", bomb)).want(t, "bomb", 413)
	i.post("/signals", bomb, "Content-Encoding", "gzip").want(t, "bomb without a signature", 401)
}

// TestForms: paths read the fields of a form, and Kafka has the form as it came.
func TestForms(t *testing.T) {
	b := newBench(t, withHTTP("form: true"))
	i := b.serve(nil)
	const urlencoded = "application/x-www-form-urlencoded"
	const multipart = "--x\r\nContent-Disposition: form-data; name=\"id\"\r\n\r\na\r\n" +
		"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f.txt\"\r\n\r\n\x00\xff\r\n--x--\r\n"
	i.post("/signals", "id=a&other=%E2%82%AC", "Content-Type", urlencoded).want(t, "form", 202)
	i.post("/signals", "other=2&id=a", "Content-Type", urlencoded+"; charset=utf-8").want(t, "the id in another form", 409)
	i.post("/signals", event("a")).want(t, "the id in JSON", 409)
	i.post("/signals", multipart, "Content-Type", "multipart/form-data; boundary=x").want(t, "the id in parts", 409)
	i.post("/signals", strings.Replace(multipart, "\r\na\r\n", "\r\nb\r\n", 1), "Content-Type", "multipart/form-data; boundary=x").want(t, "another id in parts", 202)
	i.post("/signals", "other=1", "Content-Type", urlencoded).want(t, "no id", 400, "missing-key")
	i.post("/signals", "id=%zz", "Content-Type", urlencoded).want(t, "malformed", 400, "invalid")
	i.post("/signals", "id=%ff", "Content-Type", urlencoded).want(t, "not UTF-8", 400, "invalid")
	i.post("/signals", multipart[:40], "Content-Type", "multipart/form-data; boundary=x").want(t, "cut off", 400, "invalid")
	i.post("/signals", multipart, "Content-Type", "multipart/form-data").want(t, "no boundary", 400, "invalid")
	i.post("/signals", "id=c", "Content-Type", "application/json").want(t, "a form that says it is JSON", 400, "invalid")
	records := b.read("signals.unique", 2)
	if got := string(records[0].Value) + string(records[1].Value); !strings.Contains(got, "id=a&other=%E2%82%AC") || !strings.Contains(got, "\x00\xff") {
		t.Errorf("the output has %q", got)
	}
}
