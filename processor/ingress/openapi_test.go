package ingress

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// loadDocument reads the document of routes as its users do. It is one that the
// specification allows.
func loadDocument(t *testing.T, routes *rules.Routes) *openapi3.T {
	t.Helper()
	text, err := OpenAPI(routes)
	if err != nil {
		t.Fatal(err)
	}
	document, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := document.Validate(t.Context()); err != nil {
		t.Fatalf("no OpenAPI document: %v", err)
	}
	return document
}

// documented fails the test on every answer that the document does not have.
// All requests of the tests of this package with the bench's client go through it.
type documented struct {
	t        *testing.T
	next     http.RoundTripper
	document *openapi3.T
	mu       sync.Mutex // what validates a body compiles its schema
}

func (d *documented) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := d.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := conforms(d.document, r.Method, r.URL.Path, response, body); err != nil {
		d.t.Errorf("%s %s: not as documented: status %d: %v\n%v\n%s", r.Method, r.URL.Path, response.StatusCode, err, response.Header, body)
	}
	return response, nil
}

// conforms tells whether an answer is one that the document has for it.
func conforms(document *openapi3.T, method, path string, response *http.Response, body []byte) error {
	described, err := find(document, method, path, response)
	if err != nil {
		return err
	}
	for name, header := range described.Headers {
		value := response.Header.Get(name)
		if value == "" {
			if header.Value.Required {
				return fmt.Errorf("header %s is missing", name)
			}
			continue
		}
		var typed any = value
		if n, err := strconv.ParseFloat(value, 64); err == nil && header.Value.Schema.Value.Type.Is("integer") {
			typed = n
		}
		if err := header.Value.Schema.Value.VisitJSON(typed, openapi3.EnableJSONSchema2020()); err != nil {
			return fmt.Errorf("header %s: %w", name, err)
		}
	}
	for name := range headerMeanings {
		if response.Header.Get(name) != "" && described.Headers[name] == nil && described.Content["*/*"] == nil {
			return fmt.Errorf("header %s", name)
		}
	}
	kind := response.Header.Get("Content-Type")
	if kind == "" && len(body) == 0 {
		return nil
	}
	content := described.Content.Get(kind)
	if content == nil {
		return fmt.Errorf("content type %q", kind)
	}
	if method == http.MethodHead || content.Schema.Value.IsEmpty() || !strings.Contains(kind, "json") {
		return nil
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return err
	}
	return content.Schema.Value.VisitJSON(value, openapi3.EnableJSONSchema2020())
}

// find returns what the document says of an answer.
func find(document *openapi3.T, method, path string, response *http.Response) (*openapi3.Response, error) {
	item := document.Paths.Value(path)
	if item == nil {
		return general(document, "NotFound", response, 404)
	}
	operation := item.GetOperation(method)
	if operation == nil {
		allowed := strings.Split(response.Header.Get("Allow"), ", ")
		for other := range item.Operations() {
			if !slices.Contains(allowed, other) {
				return nil, fmt.Errorf("method %s is not in header Allow: %q", other, allowed)
			}
		}
		if len(allowed) != len(item.Operations()) {
			return nil, fmt.Errorf("methods that are not documented: %q", allowed)
		}
		return general(document, "MethodNotAllowed", response, 405)
	}
	ref := operation.Responses.Status(response.StatusCode)
	if ref == nil {
		ref = operation.Responses.Default()
	}
	if ref == nil {
		return nil, errors.New("the status is not documented")
	}
	return ref.Value, nil
}

func general(document *openapi3.T, name string, response *http.Response, status int) (*openapi3.Response, error) {
	if response.StatusCode != status {
		return nil, fmt.Errorf("want status %d", status)
	}
	return document.Components.Responses[name].Value, nil
}

// TestConforms: answers that are not documented are seen as such.
func TestConforms(t *testing.T) {
	document := loadDocument(t, parseRoutes(t, signalRoutes))
	about := strings.Join([]string{"Oncebus-Verdict: duplicate", "Oncebus-Key: key", "Content-Type: application/problem+json"}, "\n")
	const duplicate = `{"type":"/problems/duplicate","title":"t","status":409}`
	for _, c := range []struct {
		name, method, path string
		status             int
		headers, body      string
		fault              string
	}{
		{"right", "POST", "/signals", 409, about, duplicate, ""},
		{"status", "POST", "/signals", 500, about, duplicate, "not documented"},
		{"header that is missing", "POST", "/signals", 409, strings.Replace(about, "-Key", "-Quay", 1), duplicate, "Oncebus-Key is missing"},
		{"header's value", "POST", "/signals", 409, strings.Replace(about, "duplicate", "double", 1), duplicate, "header Oncebus-Verdict"},
		{"header that does not belong there", "POST", "/signals", 409, about + "\nRetry-After: 1", duplicate, "header Retry-After"},
		{"content type", "POST", "/signals", 409, strings.Replace(about, "+json", "+xml", 1), duplicate, "content type"},
		{"no content type", "POST", "/signals", 409, strings.Replace(about, "Content-Type", "Content", 1), duplicate, "content type"},
		{"no JSON", "POST", "/signals", 409, about, "{", "unexpected end"},
		{"problem", "POST", "/signals", 409, about, strings.Replace(duplicate, "problems/duplicate", "problems/in-progress", 1), "/type"},
		{"status in the problem", "POST", "/signals", 409, about, strings.Replace(duplicate, "409", "408", 1), "/status"},
		{"no title", "POST", "/signals", 409, about, strings.Replace(duplicate, "title", "name", 1), "title"},
		{"body", "POST", "/signals", 202, "Oncebus-Verdict: unique\nOncebus-Key: key\nContent-Type: application/json", `{"status":"maybe"}`, "const"},
		{"method", "PUT", "/signals", 409, about, duplicate, "Allow"},
		{"path", "POST", "/nowhere", 409, about, duplicate, "404"},
	} {
		response := &http.Response{StatusCode: c.status, Header: http.Header{}}
		for line := range strings.Lines(c.headers) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			response.Header.Set(name, value)
		}
		err := conforms(document, c.method, c.path, response, []byte(c.body))
		if c.fault == "" && err != nil || c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.fault)
		}
	}
}

// TestDocumentNamesHeaders: whatever signature is asked for, the document says
// which headers have it.
func TestDocumentNamesHeaders(t *testing.T) {
	for scheme, want := range map[string]string{
		"scheme: standard-webhooks":         "Webhook-Signature Webhook-Id Webhook-Timestamp",
		"scheme: github":                    "X-Hub-Signature-256",
		"scheme: stripe":                    "Stripe-Signature",
		"scheme: slack":                     "X-Slack-Signature X-Slack-Request-Timestamp",
		"scheme: hmac, header: x-signature": "X-Signature",
		"scheme: hmac, header: x-a, timestamp_header: traceparent": "X-A Traceparent",
		"scheme: bearer": "bearer",
		"scheme: none":   "",
	} {
		text := signalRoutes
		if scheme != "scheme: none" {
			text = strings.Replace(text, "scheme: none", scheme+", secret: S", 1)
		}
		document := loadDocument(t, parseRoutes(t, text))
		post := document.Paths.Value("/signals").Post
		var got []string
		if post.Security != nil {
			scheme := document.Components.SecuritySchemes["signals"].Value
			got = append(got, scheme.Name+scheme.Scheme)
			if len(*post.Security) != 1 || (*post.Security)[0]["signals"] == nil {
				t.Errorf("%s: security %v", scheme.Name, *post.Security)
			}
		}
		seen := map[string]bool{}
		for _, p := range post.Parameters {
			if p.Value.Required {
				got = append(got, p.Value.Name)
			}
			if name := strings.ToLower(p.Value.Name); seen[name] {
				t.Errorf("%s: parameter %s comes twice", scheme, name)
			} else {
				seen[name] = true
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: headers %q, want %q", scheme, got, want)
		}
		if answer := post.Responses.Status(401); (answer != nil) != (scheme != "scheme: none") {
			t.Errorf("%s: 401: %v", scheme, answer)
		}
	}
}

// TestDocumentRequiresTheKeysHeader, where no request without it has a key and
// every one must have one.
func TestDocumentRequiresTheKeysHeader(t *testing.T) {
	const second = "  - {name: other, topics: [signals.raw], window: 1h, output: signals.unique, dead_letter: dead,\n" +
		"     http: {path: /signals, headers: [X-Id], signature: {scheme: none}, timeout: 50s, on_kafka_unavailable: wait}, key: [KEY]}\n"
	for _, c := range []struct {
		key, second string
		required    bool
	}{
		{"[{header: x-id}]", "", true},
		{"[{header: x-id, normalise: trim}, record_key]", "", true},
		{"[{header: x-id}]\n    on_missing_key: forward", "", false},
		{"[{header: x-id}, {field: id}]", "", false},
		{"[{field: id}]", "", false},
		{"[{header: x-id}, {header: idempotency-key}]", "", false},
		{"[{cloudevent: true}]", "", false},
		{"[{header: x-id}]\n    match: {field: kind, in: [x]}", "{header: x-id}", true},
		{"[{header: x-id}]\n    match: {field: kind, in: [x]}", "raw", false},
	} {
		text := strings.NewReplacer("[{field: id}]", c.key, "path: /signals\n", "path: /signals\n      headers: [X-Id]\n").Replace(signalRoutes)
		if c.second != "" {
			text += strings.Replace(second, "KEY", c.second, 1)
		}
		for _, p := range loadDocument(t, parseRoutes(t, text)).Paths.Value("/signals").Post.Parameters {
			if want := c.required && p.Value.Name == "x-id"; p.Value.Required != want || (p.Value.Schema.Value.MinLength == 1) != want {
				t.Errorf("%s %s: parameter %s: %+v", c.key, c.second, p.Value.Name, p.Value)
			}
		}
	}
}

// TestEveryProblemIsDocumented: a problem that no path has is one that the
// document forgot.
func TestEveryProblemIsDocumented(t *testing.T) {
	routes := strings.Replace(claimRoutes, "    http:\n      path: /orders", "    limits: {live_keys: 1}\n    http:\n      rate: {per_second: 1, burst: 1}\n      path: /orders", 1) +
		strings.TrimPrefix(signalRoutes, "routes:\n")
	routes = strings.Replace(routes, "    key: [{field: id}]", "    match: {field: a, in: [b]}\n    key: [{field: id}]", 1)
	text, err := OpenAPI(parseRoutes(t, routes))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !bytes.Contains(text, []byte(`"`+problemType+p.name+`"`)) {
			t.Errorf("problem %s is not in the document", p.name)
		}
	}
}

// TestEveryVerdictIsDocumented, where a route may give it.
func TestEveryVerdictIsDocumented(t *testing.T) {
	routes := parseRoutes(t, claimRoutes+strings.TrimPrefix(signalRoutes, "routes:\n"))
	told := map[string]bool{}
	for _, r := range routes.Routes {
		r.Limits.LiveKeys, r.FailOpen, r.Fingerprint = 1, true, []rules.Field{{}}
		for _, s := range eventSamples([]*rules.Route{r}, routes) {
			told[s.verdict] = true
		}
	}
	for _, v := range dedup.Verdicts {
		if !told[v.String()] {
			t.Errorf("no answer has verdict %v", v)
		}
	}
}

// TestDocumentIsServed as it is made, and equal routes give equal bytes.
func TestDocumentIsServed(t *testing.T) {
	b := newBench(t, claimRoutes)
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"EXECUTOR": {Value: "token"}} })
	want, err := OpenAPI(parseRoutes(t, claimRoutes))
	if err != nil {
		t.Fatal(err)
	}
	got := i.send("GET", "/openapi.json", "").want(t, "the document", 200).header(t, "the document", "Content-Type", "application/json")
	if got.text != string(want) {
		t.Error("what is served is not what OpenAPI returns")
	}
	if got := i.send("HEAD", "/openapi.json", "").want(t, "its head", 200); got.ContentLength != int64(len(want)) {
		t.Errorf("length %d", got.ContentLength)
	}
}

// TestMalformedIsDocumented: what net/http answers by itself is as documented.
func TestMalformedIsDocumented(t *testing.T) {
	b := newBench(t, signalRoutes)
	document := loadDocument(t, b.routes)
	i := b.serve(func(c *Config) { c.MaxHeaderBytes = 2048 })
	for status, head := range map[int]string{
		400: "POST /signals HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		417: "POST /signals HTTP/1.1\r\nHost: a\r\nExpect: a miracle\r\nContent-Length: 1\r\n\r\n",
		431: "POST /signals HTTP/1.1\r\nHost: a\r\nX-Long: " + strings.Repeat("x", 8<<10) + "\r\n\r\n",
		501: "POST /signals HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
		505: "POST /signals HTTP/3.0\r\nHost: a\r\n\r\n",
	} {
		conn := i.dial()
		if _, err := io.WriteString(conn, head); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%d: %v", status, err)
		}
		body, _ := io.ReadAll(response.Body) // the server hangs up on what it has not read
		_ = response.Body.Close()
		if response.StatusCode != status {
			t.Errorf("status %d, want %d", response.StatusCode, status)
		}
		if err := conforms(document, http.MethodPost, "/signals", response, body); err != nil {
			t.Errorf("%d: %v: %v %q", status, err, response.Header, body)
		}
	}
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: &documented{t: t, next: transport, document: document}}
	long := strings.Repeat("x", 1000)
	got, err := i.try(client, i.request("POST", "/signals", http.NoBody, "X-A", long, "X-B", long, "X-C", long))
	if err == nil {
		got.want(t, "HTTP/2", 431)
	} else if !strings.Contains(err.Error(), "header list") { // the client knew the limit already
		t.Error(err)
	}
}
