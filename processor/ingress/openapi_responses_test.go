package ingress

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// TestEveryProblemIsDocumented: each problem is a response of some path.
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

// TestEveryDocumentListsAllProblems: also those that its routes do not cause.
func TestEveryDocumentListsAllProblems(t *testing.T) {
	listed := loadDocument(t, parseRoutes(t, signalRoutes)).Components.Schemas["Problem"].Value.Properties["type"].Value.Enum
	if len(listed) != len(problems) {
		t.Errorf("%d types are listed, want %d", len(listed), len(problems))
	}
}

// TestRetryAfterWhereARetryHelps: the state that caused the response ends by itself.
func TestRetryAfterWhereARetryHelps(t *testing.T) {
	retried := []string{"busy", "rate", "request-timeout", "in-progress", "limited", "failed", "erased", "kafka-unavailable", "held", "verdict-timeout"}
	routes := strings.Replace(claimRoutes, "    http:\n      path: /orders", "    limits: {live_keys: 1}\n    http:\n      rate: {per_second: 1, burst: 1}\n      path: /orders", 1) +
		strings.TrimPrefix(signalRoutes, "routes:\n")
	all := parseRoutes(t, routes)
	seen := map[string]bool{}
	for _, r := range all.Routes {
		for _, s := range eventSamples([]*rules.Route{r}, all) {
			if s.problem == nil {
				continue
			}
			seen[s.problem.name] = true
			if want := slices.Contains(retried, s.problem.name); (s.header.Get("Retry-After") != "") != want {
				t.Errorf("%s: Retry-After %q", s.problem.name, s.header.Get("Retry-After"))
			}
			if s.status < 400 || s.contentType != problemJSON {
				t.Errorf("%s: status %d, type %s", s.problem.name, s.status, s.contentType)
			}
		}
	}
	for _, name := range retried {
		if !seen[name] {
			t.Errorf("no sample of %s", name)
		}
	}
}

// TestErrorStatusOfTheRoutesFile: without a body in the file it is a problem, under the
// status of the file.
func TestErrorStatusOfTheRoutesFile(t *testing.T) {
	t.Parallel()
	b := newBench(t, withHTTP("responses: {duplicate: {status: 422}, invalid: {status: 418, body: short, content_type: text/plain}}"))
	i := b.serve(nil)
	i.post("/signals", event("a")).want(t, "first", 202)
	i.post("/signals", event("a")).header(t, "duplicate", "Oncebus-Verdict", "duplicate").problem(t, "duplicate", "duplicate", 422)
	if got := i.post("/signals", "{").want(t, "invalid", 418); got.text != "short" {
		t.Errorf("body %q", got.text)
	}
}

// TestEveryVerdictIsDocumented: each verdict has a sample of some route.
func TestEveryVerdictIsDocumented(t *testing.T) {
	routes := parseRoutes(t, claimRoutes+strings.TrimPrefix(signalRoutes, "routes:\n"))
	seen := map[string]bool{}
	for _, r := range routes.Routes {
		r.Limits.LiveKeys, r.FailOpen, r.Fingerprint = 1, true, []rules.Detail{{}}
		for _, s := range eventSamples([]*rules.Route{r}, routes) {
			seen[s.verdict] = true
		}
	}
	for _, v := range dedup.Verdicts {
		if !seen[v.String()] {
			t.Errorf("no response has verdict %v", v)
		}
	}
}

// TestMalformedIsDocumented: net/http's own responses are problems, and documented.
func TestMalformedIsDocumented(t *testing.T) {
	t.Parallel()
	b := newBench(t, signalRoutes)
	document := loadDocument(t, b.routes)
	i := b.serve(func(c *Config) { c.MaxHeaderBytes = 2048 })
	names := map[int]string{400: "malformed", 417: "expectation", 431: "headers-too-large", 501: "transfer-encoding", 505: "http-version"}
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
		body, _ := io.ReadAll(response.Body) // the server disconnects a client whose request it has not read
		_ = response.Body.Close()
		reply{response, string(body)}.problem(t, head[:20], names[status], status)
		if !response.Close || response.Header.Get("Cache-Control") != "no-store" || response.Header.Get("Date") == "" {
			t.Errorf("%d: %v", status, response.Header)
		}
		if err := conforms(document, http.MethodPost, "/signals", response, body); err != nil {
			t.Errorf("%d: %v: %v %q", status, err, response.Header, body)
		}
	}
	if n := i.count("oncebus_http_requests_total", "response", "malformed", "code", "400"); n != 1 {
		t.Errorf("%v malformed requests are counted", n)
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
	} else if !strings.Contains(err.Error(), "header list") { // the client had read the limit already
		t.Error(err)
	}
}
