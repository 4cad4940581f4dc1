package ingress

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/front"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/security"
	"oncebus/state"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"), // from badger, never ends
		goleak.IgnoreAnyFunction("oncebus/processor/kafka.(*Budget).collectNow"))   // ends with the garbage collection
}

// bench is an embedded broker, a processor and ingress servers.
type bench struct {
	t       *testing.T
	cluster *embedded.Cluster
	client  *kgo.Client
	admin   *kadm.Client
	routes  *rules.Routes
	logs    *embedded.Log
	http    *http.Client
	stop    func() // ends the processor

	partitions int32
	keepIn     string // directory of kept events; "" for none
	keepBytes  int
}

// oneTask gives the app a single task.
func oneTask(b *bench) { b.partitions = 1 }

// newBench starts a broker and a processor.
func newBench(t *testing.T, routes string, options ...func(*bench)) *bench {
	t.Helper()
	b := &bench{t: t, routes: parseRoutes(t, routes), logs: embedded.NewLog(t), partitions: 4}
	for _, o := range options {
		o(b)
	}
	b.cluster = embedded.Start(t)
	b.client = b.cluster.Client(kgo.FetchMaxWait(100 * time.Millisecond))
	b.admin = kadm.NewClient(b.client)
	transport := &http.Transport{}
	b.http = &http.Client{Transport: &documented{t: t, next: transport, document: loadDocument(t, b.routes)}, Timeout: 60 * time.Second}
	t.Cleanup(transport.CloseIdleConnections)
	b.judge()
	return b
}

func parseRoutes(t *testing.T, text string) *rules.Routes {
	t.Helper()
	routes, err := rules.ParseRoutes("routes.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return routes
}

func (b *bench) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(b.logs, nil)) }

func (b *bench) config(instance string) processor.Config {
	return processor.Config{
		Config: app.Config{
			Config: security.Config{
				Brokers:    b.cluster.ListenAddrs(),
				AppID:      "app",
				InstanceID: instance,
			},
			Partitions:         b.partitions,
			ReplicationFactor:  1,
			CreateTopics:       true,
			Start:              app.StartEarliest,
			TransactionTimeout: 5 * time.Second,
		},
		StateDir:       b.t.TempDir(),
		Workers:        1,
		CommitInterval: 5 * time.Millisecond,
		SessionTimeout: 6 * time.Second, // longer than a busy machine stops
		StopTimeout:    20 * time.Second,
		State:          state.DefaultConfig(),
	}
}

// judge starts a processor and waits until it is ready.
func (b *bench) judge() {
	b.t.Helper()
	p, err := processor.New(b.config("judge"), b.routes, prometheus.NewRegistry(), b.logger())
	if err != nil {
		b.t.Fatal(err)
	}
	b.stop = b.background("processor", p.Run)
	b.wait("the processor to be ready", func() bool { return p.Ready() == nil })
}

// background calls run until the returned function is called or the test ends. An
// error of run fails the test.
func (b *bench) background(what string, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := run(ctx); err != nil {
			b.t.Errorf("%s: %v", what, err)
		}
	}()
	stop = func() {
		cancel()
		<-ended
	}
	b.t.Cleanup(stop)
	return stop
}

// wait waits for a condition.
func (b *bench) wait(what string, holds func() bool) {
	b.t.Helper()
	embedded.Wait(b.t, what, holds)
}

// instance is a server and its client.
type instance struct {
	*Server
	b        *bench
	front    *front.IngressClient
	registry *prometheus.Registry
	clients  *prometheus.Registry // of front; nil for a server that open made
	url      string
	addr     string
	stop     func() // ends the server, and returns when it has

	stopFront func() // ends the client
}

func testConfig() Config {
	cfg := DefaultConfig()
	cfg.Addr = "127.0.0.1:0"
	return cfg
}

// serve starts a server. change may change settings.
func (b *bench) serve(change func(*Config)) *instance {
	b.t.Helper()
	return b.serveAs("ingress", change)
}

func (b *bench) serveAs(name string, change func(*Config), extra ...kgo.Opt) *instance {
	b.t.Helper()
	clients := prometheus.NewRegistry()
	front, err := front.NewIngressClient(b.config(name).Config, b.routes, clients, b.logger(), extra...)
	if err != nil {
		b.t.Fatal(err)
	}
	if b.keepIn != "" {
		if err := front.KeepIn(b.keepIn, b.keepBytes); err != nil {
			b.t.Fatal(err)
		}
	}
	i := b.open(front, change)
	i.clients = clients
	i.stopFront = b.background("front", front.Run)
	i.start()
	b.wait("the client to be ready", func() bool { return front.Ready() == nil })
	return i
}

// open returns a server that does not serve yet.
func (b *bench) open(front *front.IngressClient, change func(*Config)) *instance {
	b.t.Helper()
	cfg := testConfig()
	if change != nil {
		change(&cfg)
	}
	i := &instance{b: b, front: front, registry: prometheus.NewRegistry()}
	var err error
	if i.Server, err = New(cfg, b.routes, front, i.registry, b.logger()); err != nil {
		b.t.Fatal(err)
	}
	return i
}

// start serves on a port of its own.
func (i *instance) start() {
	i.b.t.Helper()
	var listen net.ListenConfig
	listener, err := listen.Listen(i.b.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		i.b.t.Fatal(err)
	}
	i.addr = listener.Addr().String()
	i.url = "http://" + i.addr
	i.stop = i.b.background("server", func(ctx context.Context) error { return i.Serve(ctx, listener) })
}

// bareRoutes is a route with every default.
const bareRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key: [{field: id}]
    window: 1h
    output: signals.unique
    dead_letter: dead
    http:
      path: /signals
      signature: {scheme: none}
`

// patience keeps slow machines from failing tests that do not measure time.
const patience = "      timeout: 50s\n      on_kafka_unavailable: wait\n"

const signalRoutes = bareRoutes + patience

// withHTTP adds lines to the http part of bareRoutes, and patience where they
// do not set it.
func withHTTP(lines ...string) string {
	text := bareRoutes
	for line := range strings.Lines(patience) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, name+":") }) {
			text += line
		}
	}
	for _, line := range lines {
		text += "      " + line + "\n"
	}
	return text
}

// signedRoutes, and the headers of a request that they accept.
var (
	signedRoutes = strings.Replace(signalRoutes, "scheme: none", "scheme: bearer, secret: A", 1)
	bearer       = []string{"Authorization", "Bearer token-of-sender-a"}
)

func serveSigned(b *bench) *instance {
	return b.serve(func(c *Config) { c.Secrets = Secrets{"A": {Value: "token-of-sender-a"}} })
}

// claimRoutes are two routes in claim mode: one whose duplicates wait
// for the outcome, and one whose duplicates get in_progress.
const claimRoutes = `routes:
  - name: orders
    topics: [orders.raw]
    mode: claim
    key: [{header: idempotency-key}]
    fingerprint: [side]
    window: 1h
    output: orders.unique
    outcomes: orders.outcomes
    replies: orders.replies
    lease: 1m
    while_in_progress: reject
    result_limit: 128
    request: {field: requestId}
    dead_letter: dead
    http:
      path: /orders
      signature: {scheme: none}
` + patience + `      outcomes: {signature: {scheme: bearer, secret: EXECUTOR}}
  - name: operations
    topics: [operations.raw]
    mode: claim
    key: [{field: id}]
    window: 1h
    output: operations.unique
    outcomes: operations.outcomes
    replies: operations.replies
    lease: 1m
    while_in_progress: wait
    dead_letter: dead
    http:
      path: /operations
      signature: {scheme: none}
` + patience + `      outcomes: {signature: {scheme: none}}
      responses: {unique: {status: 201}}
  - name: hasty
    topics: [hasty.raw]
    mode: claim
    key: [{field: id}]
    window: 1h
    output: hasty.unique
    outcomes: hasty.outcomes
    replies: hasty.replies
    lease: 1m
    while_in_progress: wait
    dead_letter: dead
    http: {path: /hasty, signature: {scheme: none}, timeout: 6s, on_kafka_unavailable: wait}
`

func claimBench(t *testing.T) (*bench, *instance) {
	t.Helper()
	b := newBench(t, strings.ReplaceAll(claimRoutes, "EXECUTOR", "EXEC"))
	i := b.serve(func(c *Config) { c.Secrets = Secrets{"EXEC": {Value: "token-of-executors"}} })
	return b, i
}

// postOutcome posts an outcome.
func (i *instance) postOutcome(path, token, kind, body string, headers ...string) reply {
	i.b.t.Helper()
	return i.post(path+"/outcomes", body, append([]string{"Authorization", "Bearer token-of-executors", "Oncebus-Claim-Token", token, "Oncebus-Outcome", kind}, headers...)...)
}

// tokens returns the claim tokens of a topic's records, once there are n.
func (b *bench) tokens(topic string, n int) []string {
	b.t.Helper()
	var tokens []string
	for _, r := range b.read(topic, n) {
		tokens = append(tokens, kafkatest.Header(r, "oncebus-claim-token"))
	}
	return tokens
}

// stopJudging stops the processor, so that no verdict comes until the returned
// function is called.
func (b *bench) stopJudging(i *instance) (release func()) {
	b.t.Helper()
	i.warm("/signals", event("before")) // the client has connected
	b.stop()
	return b.judge
}

// warm posts an event until it has a verdict: the first one of a bench may take longer than the
// timeout of a route.
func (i *instance) warm(path, body string) {
	i.b.t.Helper()
	i.b.wait("a first verdict", func() bool {
		status := i.post(path, body).StatusCode
		return status == http.StatusAccepted || status == http.StatusConflict
	})
}

// read returns the committed records of a topic, at least n of them: it waits
// until they are there.
func (b *bench) read(topic string, n int) []*kgo.Record {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 60*time.Second)
	defer cancel()
	var records []*kgo.Record
	err := kafkatest.Await(ctx, fmt.Sprintf("%s has %d records", topic, n), func(ctx context.Context) (err error) {
		if records, err = kafkatest.ReadCommitted(ctx, b.client, nil, topic); err == nil && len(records) < n {
			err = fmt.Errorf("it has %d", len(records))
		}
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return records
}

// arrivals follows a topic. The returned function waits for n records with a
// value.
func (b *bench) arrivals(topic string) (arrive func(value string, n int)) {
	b.t.Helper()
	client := b.cluster.Client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond))
	seen := map[string]int{}
	return func(value string, n int) {
		b.t.Helper()
		ctx, cancel := context.WithTimeout(b.t.Context(), 60*time.Second)
		defer cancel()
		for seen[value] < n {
			fetches := client.PollFetches(ctx)
			if ctx.Err() != nil {
				b.t.Fatalf("%d records in %s with value %q, want %d", seen[value], topic, value, n)
			}
			fetches.EachRecord(func(r *kgo.Record) { seen[string(r.Value)]++ })
		}
	}
}

// produce writes a record and waits until it is acknowledged.
func (b *bench) produce(topic string, value []byte, headers ...string) {
	b.t.Helper()
	rec := &kgo.Record{Topic: topic, Value: value}
	for n := 0; n < len(headers); n += 2 {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: headers[n], Value: []byte(headers[n+1])})
	}
	if err := b.client.ProduceSync(b.t.Context(), rec).FirstErr(); err != nil {
		b.t.Fatal(err)
	}
}

// count returns the sum of a metric's series whose labels are as given: name,
// value, name, value. Of histograms it is the number of observations.
func (i *instance) count(name string, labels ...string) float64 {
	i.b.t.Helper()
	var sum float64
	for series, value := range embedded.Metrics(i.b.t, i.registry) {
		matches := series == name || strings.HasPrefix(series, name+"{")
		for n := 0; n < len(labels); n += 2 {
			matches = matches && strings.Contains(series, fmt.Sprintf("%s=%q", labels[n], labels[n+1]))
		}
		if matches {
			sum += value
		}
	}
	return sum
}

// requests are the lines of the access log.
func (b *bench) requests() []map[string]any {
	b.t.Helper()
	var lines []map[string]any
	for line := range strings.Lines(b.logs.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			b.t.Fatalf("%v: %s", err, line)
		}
		if fields["msg"] == "request" {
			lines = append(lines, fields)
		}
	}
	return lines
}

// event returns a body.
func event(id string) string { return fmt.Sprintf(`{"id":%q,"price":"1.0"}`, id) }
