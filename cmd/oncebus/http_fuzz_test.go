//go:build unix

package main_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oncebus/processor/kafkatest/embedded"
)

// fuzzRoutes have every kind of response in the document: both modes, with and without a verdict, two routes at one path, with a
// signature that does not cover the body and without one, and outcomes.
const fuzzRoutes = `routes:
  - name: signals
    topics: [APP.signals.raw]
    key: [{field: traceId}, {hash: [symbol, exchange, action, timestamp]}]
    window: 1h
    fingerprint: [symbol]
    output: APP.signals.unique
    dead_letter: APP.dead
    http:
      path: /signals
      methods: [POST, PUT]
      signature: {scheme: bearer, secret: FUZZ}
      timeout: 2m
      responses: {duplicate: {status: 200, body: '{"received":true}'}}
  - name: changes
    topics: [APP.operations.raw]
    match: {field: operation, in: [RESET]}
    mode: claim
    key: [{fields: [requestId, operation]}]
    window: 1h
    output: APP.operations.run
    outcomes: APP.operations.outcomes
    replies: APP.operations.replies
    lease: 1m
    dead_letter: APP.dead
    http: {path: /operations, signature: {scheme: none}, timeout: 2m, outcomes: {signature: {scheme: bearer, secret: FUZZ}}}
  - name: operations
    topics: [APP.operations.raw]
    mode: claim
    key: [{field: requestId}]
    window: 1h
    output: APP.operations.run
    outcomes: APP.operations.outcomes
    replies: APP.operations.replies
    lease: 1m
    on_missing_key: forward
    dead_letter: APP.dead
    http: {path: /operations, signature: {scheme: none}, timeout: 2m, outcomes: {signature: {scheme: bearer, secret: FUZZ}}}
  - name: posts
    topics: [APP.posts.raw]
    key: [{header: idempotency-key}, {raw: true}]
    window: 1h
    output: APP.posts.unique
    dead_letter: APP.dead
    http: {path: /posts, signature: {scheme: none}, answer: async, max_body: 4096}
`

// TestRealHTTPFuzz runs schemathesis, which sends valid and invalid requests of the served document and checks every response. make
// test and make fuzz-http name the program in the environment.
func TestRealHTTPFuzz(t *testing.T) {
	program := os.Getenv("ONCEBUS_TEST_SCHEMATHESIS")
	if program == "" {
		t.Skip("ONCEBUS_TEST_SCHEMATHESIS names no schemathesis: make fuzz-http runs this test")
	}
	t.Parallel()
	cluster := embedded.Start(t)
	w := newWorldAt(t, fuzzRoutes, cluster.ListenAddrs(), cluster.Admin(), false)
	w.createTopics(nil, "signals.raw", "operations.raw", "posts.raw")
	s := w.start("a", "INGRESS_ADDR=127.0.0.1:0", "INGRESS_SECRET_FUZZ=token-of-the-fuzzer", "INGRESS_WRITE_TIMEOUT=150s", "INGRESS_OPENAPI=true", "COMMIT_INTERVAL=5ms")
	s.awaitReady()
	url := "http://" + s.await("ingress listening")["addr"].(string)

	// On a loaded machine a transaction took 25 s: that is no error of the server, so each
	// request may wait for longer than that.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "run", url+"/openapi.json", "--seed", "7", "--max-examples", "60", "--workers", "2",
		"--phases", "examples,coverage,fuzzing", "--request-timeout", "150", "--no-color", "--continue-on-failure",
		"--generation-database", "none", "-H", "Authorization: Bearer token-of-the-fuzzer",
		// It does not check that valid data is accepted and invalid data rejected:
		// the key sources decide that.
		"--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"+
			"response_schema_conformance,unsupported_method,allow_header_conformance")
	cmd.Dir, cmd.Env = w.dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "PYTHONDONTWRITEBYTECODE=1", "PYTHONUTF8=1"}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("%s: %v", filepath.Base(program), err)
	}
	if err := s.Ended(); err != nil || strings.Contains(s.text(), "panic") {
		t.Errorf("the process: %v", err)
	}
	// Some requests must have reached Kafka.
	for _, what := range []string{"signals/unique", "operations/unique", "posts/unique"} {
		if s.events()[what] == 0 {
			t.Errorf("no event %s: %v", what, s.events())
		}
	}
	s.stop()
}
