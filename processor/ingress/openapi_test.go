package ingress

import (
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

	"oncebus/dedup/rules"
)

// loadDocument parses and validates the document of routes.
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

// documented fails the test on every response that is not documented.
// The bench's client sends all its requests through it.
type documented struct {
	t        *testing.T
	next     http.RoundTripper
	document *openapi3.T
	mu       sync.Mutex // validation of a body compiles its schema
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

// conforms returns how a response differs from its description; nil if it does not.
func conforms(document *openapi3.T, method, path string, response *http.Response, body []byte) error {
	described, err := find(document, method, path, response)
	if err != nil {
		return err
	}
	if err := conformHeaders(described, response); err != nil {
		return err
	}
	contentType := response.Header.Get("Content-Type")
	if contentType == "" && len(body) == 0 {
		return nil
	}
	content := described.Content.Get(contentType)
	if content == nil {
		return fmt.Errorf("content type %q", contentType)
	}
	if method == http.MethodHead || content.Schema.Value.IsEmpty() || !strings.Contains(contentType, "json") {
		return nil
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return err
	}
	return content.Schema.Value.VisitJSON(value, openapi3.EnableJSONSchema2020())
}

func conformHeaders(described *openapi3.Response, response *http.Response) error {
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
	return nil
}

// find returns the description of a response.
func find(document *openapi3.T, method, path string, response *http.Response) (*openapi3.Response, error) {
	if route, _, ok := cutLocation(path); ok {
		path = route + rules.RequestsSuffix + "{operation}"
	}
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

// TestConforms: conforms finds responses that are not documented.
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

// TestDocumentNamesHeaders: the document names the headers of every scheme.
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
		if got := strings.Join(requiredHeaders(t, document, post), " "); got != want {
			t.Errorf("%s: headers %q, want %q", scheme, got, want)
		}
		if response := post.Responses.Status(401); (response != nil) != (scheme != "scheme: none") {
			t.Errorf("%s: 401: %v", scheme, response)
		}
	}
}

// requiredHeaders returns the signature's headers, and checks that the document
// has each parameter once.
func requiredHeaders(t *testing.T, document *openapi3.T, o *openapi3.Operation) []string {
	t.Helper()
	var required []string
	if o.Security != nil {
		scheme := document.Components.SecuritySchemes["signals"].Value
		required = append(required, scheme.Name+scheme.Scheme)
		if len(*o.Security) != 1 || (*o.Security)[0]["signals"] == nil {
			t.Errorf("%s: security %v", scheme.Name, *o.Security)
		}
	}
	seen := map[string]bool{}
	for _, p := range o.Parameters {
		if p.Value.Required {
			required = append(required, p.Value.Name)
		}
		name := strings.ToLower(p.Value.Name)
		if seen[name] {
			t.Errorf("parameter %s comes twice", name)
		}
		seen[name] = true
	}
	return required
}

// TestDocumentRequiresTheKeysHeader: the key's header is required where every
// request needs a key and the header is its only source.
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

// TestDocumentIsServed: the server returns OpenAPI's bytes, which equal routes
// repeat. A client may keep them, and gets them compressed if it reads that.
func TestDocumentIsServed(t *testing.T) {
	t.Parallel()
	b := newBench(t, claimRoutes)
	i := b.serve(func(c *Config) { c.OpenAPI, c.Secrets = true, Secrets{"EXECUTOR": {Value: "token-of-executors"}} })
	want, err := OpenAPI(parseRoutes(t, claimRoutes))
	if err != nil {
		t.Fatal(err)
	}
	got := i.send("GET", "/openapi.json", "").want(t, "the document", 200).header(t, "the document", "Content-Type", "application/json")
	if got.text != string(want) {
		t.Error("the served document differs from OpenAPI's")
	}
	if got := i.send("HEAD", "/openapi.json", "").want(t, "its head", 200); got.ContentLength != int64(len(want)) {
		t.Errorf("length %d", got.ContentLength)
	}
	for coding, compressed := range map[string]bool{"gzip": true, "br, GZIP;q=0.5": true, "*": false, "gzip;q=0": false, "identity": false} {
		got := i.send("GET", "/openapi.json", "", "Accept-Encoding", coding).want(t, coding, 200).header(t, coding, "Cache-Control", "max-age=300").header(t, coding, "Vary", "Accept-Encoding")
		if (got.Header.Get("Content-Encoding") == "gzip") != compressed || compressed && len(got.text) > len(want)/4 || !compressed && got.text != string(want) {
			t.Errorf("Accept-Encoding %s: %d bytes of %d, encoding %q", coding, len(got.text), len(want), got.Header.Get("Content-Encoding"))
		}
	}
}

// TestDocumentIsOffByDefault: it has topics and key rules, and anybody may ask.
func TestDocumentIsOffByDefault(t *testing.T) {
	t.Parallel()
	i := newBench(t, bareRoutes).serve(nil)
	i.send("GET", "/openapi.json", "").problem(t, "the document", "not-found", 404)
}
