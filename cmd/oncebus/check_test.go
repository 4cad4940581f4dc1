package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
)

const testRoutes = `routes:
  - name: signals
    topics: [signals.raw, signals.retry]
    match: {field: kind, in: [signal, "1"]}
    key:
      - field: traceId
      - hash: [symbol, exchange, action, timestamp]
    window: 24h
    output: signals.unique
    duplicates: {to: signals.duplicates}
    dead_letter: dead
  - name: payments
    namespace: money
    topics: [payments.raw]
    prepartitioned: true
    key: [header: Idempotency-Key, record_key, raw]
    window: 90m
    grace: 1m30s
    skew: 0s
    time: {field: at, format: rfc3339}
    output: payments.unique
    duplicates: forward
    on_missing_key: forward
    on_late: drop
    on_future: clamp
`

// TestCheckFindsWhatAStartWouldRefuse: a schema file that is missing or wrong, and a topic of oncebus itself.
func TestCheckFindsWhatAStartWouldRefuse(t *testing.T) {
	route := func(more string) string {
		return "routes:\n  - {name: a, topics: [in], key: [{field: id}], window: 1h, output: out, dead_letter: dead, " + more + "}\n"
	}
	for file, want := range map[string]string{
		route("format: {type: avro, schema: nofile.avsc}"):                                              "read schema file nofile.avsc: openat nofile.avsc: no such file or directory: put it next to the routes file, or set ONCEBUS_SCHEMA_DIR",
		route("format: {type: avro, schema: wrong.avsc}"):                                               "read schema file wrong.avsc: avro schema: ",
		route("format: {type: avro, schema: right.avsc}"):                                               "",
		strings.Replace(route("format: json"), "output: out", "output: oncebus-manifest", 1):            "routes name topic oncebus-manifest, which is internal to app oncebus: use another topic or ONCEBUS_APP_ID",
		strings.Replace(route("format: json"), "[in]", "[oncebus-repartition]", 1):                      "routes name topic oncebus-repartition, which is internal",
		strings.Replace(route("format: json"), "dead_letter: dead", "dead_letter: oncebus-verdicts", 1): "",
		strings.Replace(route("format: json"), "output: out", "output: other-manifest", 1):              "",
	} {
		path := clitest.WriteFile(t, "routes.yaml", file)
		for name, text := range map[string]string{"wrong.avsc": "{", "right.avsc": `{"type":"record","name":"E","fields":[{"name":"id","type":"string"}]}`} {
			if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, args := range [][]string{{"check", path}, {"check", "--settings", path}, {"check", "-o", "json", path}} {
			got := execute(t.Context(), []string{"ONCEBUS_BROKERS=localhost:9092"}, "", args...)
			if want == "" && got.Code != cli.ExitStopped || want != "" && (got.Code != cli.ExitWrong || !strings.Contains(got.Stdout+got.Stderr, want)) {
				t.Errorf("%v: %+v, want %q of\n%s", args[:len(args)-1], got, want, file)
			}
		}
	}
}

// TestCheckShowsEveryPartOfARule: steps of each source, formats by topic, and the rule on trial.
func TestCheckShowsEveryPartOfARule(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", `routes:
  - name: a
    topics: [in]
    format: cbor
    key: [{field: id, normalise: [trim, lower]}, {hash: [x, {header: h, normalise: upper}], normalise: {x: {step: 1m}}}, raw]
    window: 1h
    output: out
    dead_letter: dead
    shadow: {name: next, key: [{field: order, normalise: {decimals: 2}}], sample: 0.5%, window: 2h}
`)
	got := execute(t.Context(), nil, "", "check", path)
	for _, want := range []string{
		"  format       in: cbor\n",
		"  key          field: id (normalise field id: trim, lower); else hash: [x, {header: h}] (normalise field x: step(60000ms); header h: upper); else raw\n",
		"  shadow       next: key field: order (normalise field order: decimals(2)); window 2h, grace 10m; 0.5 % of the keys\n",
	} {
		if got.Code != cli.ExitStopped || !strings.Contains(got.Stdout, want) {
			t.Errorf("want %q in\n%s%s", want, got.Stdout, got.Stderr)
		}
	}
}

func TestCheckPrintsTheRoutes(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", testRoutes)
	want := path + ` is valid: 2 routes

route signals
  topics       signals.raw, signals.retry, through the repartition topic
  match        field kind is "signal" or "1"
  key          field: traceId; else hash: [symbol, exchange, action, timestamp]
  hash         SHA-256
  window       24h by the record's timestamp; grace 10m, skew 1h
  output       signals.unique
  duplicates   to signals.duplicates
  missing key  to dead
  late         to dead
  far future   to dead
  dead letter  dead

route payments
  namespace    money
  topics       payments.raw, prepartitioned by the dedup key
  key          header: Idempotency-Key; else record_key; else raw
  hash         SHA-256
  window       1h30m by field at (rfc3339); grace 1m30s, skew 0s
  output       payments.unique
  duplicates   forwarded to payments.unique, marked
  missing key  forwarded to payments.unique, marked
  late         dropped and counted
  far future   event time set to broker time plus skew
  dead letter  oncebus.dead-letter
`
	for _, got := range []clitest.Result{
		execute(t.Context(), nil, "", "check", path),
		execute(t.Context(), []string{"ONCEBUS_ROUTES=" + path}, "", "check"),
		execute(t.Context(), []string{"ONCEBUS_ROUTES=none.yaml"}, "", "check", path),
		execute(t.Context(), []string{"ONCEBUS_BROKERS=a:1"}, "", "check", "--settings", path),
	} {
		if got.Code != cli.ExitStopped || got.Stdout != want || got.Stderr != "" {
			t.Errorf("exit code %d, stderr %q, stdout:\n%s\nwant:\n%s", got.Code, got.Stderr, got.Stdout, want)
		}
	}
}

// TestCheckSaysThatARouteIsOff: in the print-out, as a warning and in a plan's routes.
func TestCheckSaysThatARouteIsOff(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", strings.Replace(testRoutes, "    output: signals.unique\n", "    output: signals.unique\n    enabled: false\n", 1))
	got := execute(t.Context(), nil, "", "check", path)
	const want = "\nroute signals\n  switched off  each event is forwarded to signals.unique as bypassed, with its copies, and nothing is stored\n"
	if got.Code != cli.ExitStopped || !strings.Contains(got.Stdout, want) || !strings.Contains(got.Stderr, "routes[0].enabled: the route is switched off") {
		t.Errorf("exit code %d, stderr %q, stdout:\n%s", got.Code, got.Stderr, got.Stdout)
	}
}

func TestCheckPrintsHTTP(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", `routes:
  - name: full
    topics: [a, b]
    mode: claim
    key: [field: id]
    window: 24h
    output: out
    outcomes: outcomes
    replies: replies
    http:
      path: /full
      methods: [POST, PUT]
      topic: b
      headers: [X-Provider]
      signature: {scheme: stripe, secret: FULL}
      on_timeout: 202
      on_kafka_unavailable: wait
      max_requests: 50
      rate: {per_second: 1000, burst: 2000}
      rate_per_source: {per_second: 0.5, burst: 1}
      require_key: false
      outcomes: {signature: {scheme: none}}
      responses:
        in_progress: {status: 425}
        unique: {status: 201}
  - name: plain
    topics: [c]
    key: [raw]
    window: 24h
    output: out
    http: {path: /plain, answer: async, signature: {scheme: bearer, secret: PLAIN}}
  - name: kind
    topics: [d]
    key: [{field: id}]
    window: 24h
    output: out
    http: {path: /kind, answer: async, signature: {scheme: bearer, secret: PLAIN}, responses: {missing_key: {status: 200}}}
`)
	got := execute(t.Context(), nil, "", "check", path)
	for _, want := range []string{`
  http               POST or PUT /full to b, stripe with ONCEBUS_INGRESS_SECRET_FULL, tolerance 5m
  http headers       content-type, idempotency-key, traceparent, tracestate, x-provider
  http response      the verdict within 10s, else 202; Kafka unavailable: 503 after 10s
  http statuses      unique 201, in_progress 425
  http limits        1048576 bytes; 50 in flight; 1000 a second, 2000 at once; 0.5 a second from one address, 1 at once
  http outcomes      POST /full/outcomes, without a signature, from any sender

`, `
  http           POST /plain, bearer with ONCEBUS_INGRESS_SECRET_PLAIN
  http headers   content-type, idempotency-key, traceparent, tracestate
  http response  202 when Kafka has the event; Kafka unavailable: 503 immediately; missing key: 400
  http limits    1048576 bytes
`, `
  http response  202 when Kafka has the event; Kafka unavailable: 503 immediately
  http statuses  missing_key 200
`} {
		if got.Code != cli.ExitStopped || !strings.Contains(got.Stdout, want) {
			t.Errorf("exit code %d, stderr %q, stdout:\n%s\nwant:\n%s", got.Code, got.Stderr, got.Stdout, want)
		}
	}
}

// TestCheckWarnsOfUnsignedKeys: the file is valid, and the warning is apart from its
// meaning.
func TestCheckWarnsOfUnsignedKeys(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", `routes:
  - name: deliveries
    topics: [deliveries.raw]
    key: [{header: x-github-delivery}]
    window: 24h
    output: deliveries.unique
    http: {path: /deliveries, headers: [X-GitHub-Delivery], signature: {scheme: github, secret: GITHUB}}
`)
	for _, args := range [][]string{{"check", path}, {"check", "--openapi", path}} {
		got := execute(t.Context(), nil, "", args...)
		want := "warning: " + path + ":4: routes[0].key[0]: header x-github-delivery is not covered by the signature, scheme: github: "
		if got.Code != cli.ExitStopped || !strings.HasPrefix(got.Stderr, want) || strings.Contains(got.Stdout, "warning") {
			t.Errorf("%v: exit code %d, stderr %q", args, got.Code, got.Stderr)
		}
	}
}

func TestCheckSaysThatASecretIsNeeded(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", strings.Replace(testRoutes, "    prepartitioned: true\n", "    prepartitioned: true\n    secret: true\n", 1))
	got := execute(t.Context(), nil, "", "check", path)
	if got.Code != cli.ExitStopped || !strings.Contains(got.Stdout, "  hash         HMAC-SHA-256 with the secret\n") ||
		!strings.HasSuffix(got.Stdout, "\nONCEBUS_KEY_SECRET or ONCEBUS_KEY_SECRET_FILE must be set to run these routes.\n") {
		t.Errorf("%+v", got)
	}
	got = execute(t.Context(), []string{"ONCEBUS_BROKERS=a:1"}, "", "check", "--settings", path)
	if got.Code != cli.ExitWrong || !strings.HasPrefix(got.Stderr, "ONCEBUS_KEY_SECRET: not set") {
		t.Errorf("%+v", got)
	}
}

// badRoutes has four mistakes on different lines.
const badRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key:
      - field: traceId
    windw: 24h
    window: soon
    output: signals.unique
  - name: signals
    topics: [other.raw]
    key: [raw]
    window: 1h
`

func TestCheckReportsAllMistakesAtOnce(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", badRoutes)
	got := execute(t.Context(), nil, "", "check", path)
	lines := strings.Split(strings.TrimSuffix(got.Stderr, "\n"), "\n")
	if got.Code != cli.ExitWrong || got.Stdout != "" || len(lines) < 4 {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{":6:5: routes[0]: ", "\n    6 |     windw: 24h\n      |     ^\n", ":7:13: routes[0].window", ":9:11: routes[1].", "routes[1].output"} {
		if !strings.Contains(got.Stderr, want) {
			t.Errorf("no mistake at %q in:\n%s", want, got.Stderr)
		}
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, path+":") && !strings.Contains(line, " | ") {
			t.Errorf("a mistake without file and line: %s", line)
		}
	}
}

func TestCheckPrintsJSON(t *testing.T) {
	type result struct {
		File     string
		Valid    bool
		Mistakes []struct {
			Line, Column         int
			Field, Problem, Text string
		}
		Errors []string
		Routes []struct {
			Name    string
			Meaning map[string]string
		}
		NeedsSecret bool `json:"needs_secret"`
	}
	check := func(want int, args ...string) (r result) {
		t.Helper()
		got := execute(t.Context(), nil, "", append([]string{"check", "-o", "json"}, args...)...)
		if err := json.Unmarshal([]byte(got.Stdout), &r); err != nil || got.Code != want || got.Stderr != "" {
			t.Fatalf("%v: %+v", err, got)
		}
		return r
	}
	path := clitest.WriteFile(t, "routes.yaml", badRoutes)
	bad := check(cli.ExitWrong, path)
	if bad.Valid || bad.File != path || len(bad.Mistakes) < 4 || bad.Mistakes[1].Line != 7 || bad.Mistakes[1].Column != 13 ||
		bad.Mistakes[1].Field != "routes[0].window" || bad.Mistakes[1].Text != "    window: soon" || bad.Mistakes[1].Problem == "" || bad.Errors != nil {
		t.Errorf("%+v", bad)
	}
	if none := check(cli.ExitWrong, "--settings", "none.yaml"); none.Valid || len(none.Errors) != 2 || none.Mistakes != nil {
		t.Errorf("%+v", none)
	}
	good := check(cli.ExitStopped, filepath.Join(moduleRoot, "deployments", "routes", "signals.yaml"))
	if !good.Valid || len(good.Routes) != 1 || good.Routes[0].Name != "signals" || !strings.HasPrefix(good.Routes[0].Meaning["window"], "24h ") || good.Errors != nil {
		t.Errorf("%+v", good)
	}
}

func TestCheckMissingFile(t *testing.T) {
	got := execute(t.Context(), nil, "", "check", "none.yaml")
	if want := "routes file (ONCEBUS_ROUTES): open none.yaml: no such file or directory\n"; got.Code != cli.ExitWrong || got.Stderr != want {
		t.Errorf("%+v", got)
	}
}

func TestCheckSettings(t *testing.T) {
	path := clitest.WriteFile(t, "routes.yaml", badRoutes)
	got := execute(t.Context(), []string{"ONCEBUS_PARTITIONS=0", "ONCEBUS_WORKERS=x"}, "", "check", "--settings", path)
	if got.Code != cli.ExitWrong {
		t.Errorf("exit code %d", got.Code)
	}
	for _, want := range []string{"ONCEBUS_WORKERS: ", "ONCEBUS_PARTITIONS: 0", "ONCEBUS_BROKERS: not set", path + ":6:5: "} {
		if !strings.Contains(got.Stderr, want) {
			t.Errorf("no mistake %q in:\n%s", want, got.Stderr)
		}
	}
}

func TestCheckSchema(t *testing.T) {
	got := execute(t.Context(), nil, "", "check", "--schema")
	var schema struct {
		Schema     string                     `json:"$schema"`
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal([]byte(got.Stdout), &schema); err != nil {
		t.Fatal(err)
	}
	if got.Code != cli.ExitStopped || schema.Schema == "" || schema.Properties["routes"] == nil {
		t.Errorf("%+v", got)
	}
}
