package ingress

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/security"
	"oncebus/state"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon")) // comes with badger, lives for ever
}

// bench is an embedded broker, a processor and the servers in front of it.
type bench struct {
	t       *testing.T
	cluster *kfake.Cluster
	client  *kgo.Client
	admin   *kadm.Client
	routes  *rules.Routes
	logs    *logBuffer
	http    *http.Client
	stop    func() // ends the processor

	partitions int32
}

// oneTask has everything judged by one task.
func oneTask(b *bench) { b.partitions = 1 }

// newBench starts a broker, and a processor that judges.
func newBench(t *testing.T, routes string, options ...func(*bench)) *bench {
	t.Helper()
	b := &bench{t: t, routes: parseRoutes(t, routes), logs: &logBuffer{}, partitions: 4}
	for _, o := range options {
		o(b)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(b.logs.String())
		}
	})
	var err error
	b.cluster, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(100*time.Millisecond), kfake.DefaultNumPartitions(4))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.cluster.Close)
	if b.client, err = kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.FetchMaxWait(100*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.client.Close)
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
		AppConfig: processor.AppConfig{
			Config: security.Config{
				Brokers:    b.cluster.ListenAddrs(),
				AppID:      "app",
				InstanceID: instance,
			},
			Partitions:         b.partitions,
			ReplicationFactor:  1,
			CreateTopics:       true,
			Start:              processor.StartEarliest,
			TransactionTimeout: 5 * time.Second,
		},
		StateDir:       b.t.TempDir(),
		Workers:        1,
		CommitInterval: 5 * time.Millisecond,
		SessionTimeout: time.Second,
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

// background runs something until the returned function is called or the test
// ends, and fails the test if it fails.
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

// wait waits for a condition that some event of the system brings about.
func (b *bench) wait(what string, holds func() bool) {
	b.t.Helper()
	deadline := time.NewTimer(60 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			b.t.Fatalf("gave up waiting for %s", what)
		}
	}
}

// instance is a server and its front.
type instance struct {
	*Server
	b        *bench
	front    *processor.Front
	registry *prometheus.Registry
	url      string
	addr     string
	stop     func() // ends the server, and returns when it has
}

func testConfig() Config {
	cfg := DefaultConfig()
	cfg.Addr = "127.0.0.1:0"
	return cfg
}

// serve starts a server. change may change settings.
func (b *bench) serve(change func(*Config)) *instance {
	b.t.Helper()
	return b.serveAs("door", change)
}

func (b *bench) serveAs(name string, change func(*Config), extra ...kgo.Opt) *instance {
	b.t.Helper()
	front, err := processor.NewFront(b.config(name).AppConfig, b.routes, b.logger(), extra...)
	if err != nil {
		b.t.Fatal(err)
	}
	i := b.open(front, change)
	b.background("front", front.Run)
	i.start()
	b.wait("the front to be ready", func() bool { return front.Ready() == nil })
	return i
}

// open makes a server that does not serve yet.
func (b *bench) open(front *processor.Front, change func(*Config)) *instance {
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

// reply is an answer, read.
type reply struct {
	*http.Response
	text string
}

// send sends a request; headers are name, value, name, value.
func (i *instance) send(method, path, body string, headers ...string) reply {
	i.b.t.Helper()
	r, err := i.try(i.b.http, i.request(method, path, strings.NewReader(body), headers...))
	if err != nil {
		i.b.t.Fatal(err)
	}
	return r
}

func (i *instance) post(path, body string, headers ...string) reply {
	i.b.t.Helper()
	return i.send(http.MethodPost, path, body, headers...)
}

func (i *instance) request(method, path string, body io.Reader, headers ...string) *http.Request {
	i.b.t.Helper()
	r, err := http.NewRequestWithContext(i.b.t.Context(), method, i.url+path, body)
	if err != nil {
		i.b.t.Fatal(err)
	}
	for n := 0; n < len(headers); n += 2 {
		r.Header.Add(headers[n], headers[n+1])
	}
	return r
}

func (i *instance) try(client *http.Client, r *http.Request) (reply, error) {
	response, err := client.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return reply{response, string(text)}, err
}

// later sends a request and returns where its answer will be.
func (i *instance) later(path, body string, headers ...string) <-chan reply {
	i.b.t.Helper()
	r := i.request(http.MethodPost, path, strings.NewReader(body), headers...)
	answer := make(chan reply, 1)
	go func() {
		got, err := i.try(i.b.http, r)
		if err != nil {
			i.b.t.Error(err)
		}
		answer <- got
	}()
	return answer
}

// want checks status, and what the body contains.
func (r reply) want(t *testing.T, what string, status int, contains ...string) reply {
	t.Helper()
	if r.Response == nil {
		t.Fatalf("%s: no answer", what)
	}
	if r.StatusCode != status {
		t.Errorf("%s: status %d, want %d: %s", what, r.StatusCode, status, r.text)
	}
	for _, text := range contains {
		if !strings.Contains(r.text, text) {
			t.Errorf("%s: the body %q does not contain %q", what, r.text, text)
		}
	}
	return r
}

// problem checks that the answer is the problem of a name.
func (r reply) problem(t *testing.T, what, name string, status int) problemBody {
	t.Helper()
	r.want(t, what, status)
	var p problemBody
	if err := json.Unmarshal([]byte(r.text), &p); err != nil {
		t.Fatalf("%s: %v: %q", what, err, r.text)
	}
	if p.Type != "/problems/"+name || p.Status != status || p.Title == "" || r.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s: want problem %s with status %d: %s: %s", what, name, status, r.Header.Get("Content-Type"), r.text)
	}
	return p
}

func (r reply) header(t *testing.T, what, name, value string) reply {
	t.Helper()
	if got := r.Header.Get(name); got != value {
		t.Errorf("%s: header %s is %q, want %q", what, name, got, value)
	}
	return r
}

// read returns the committed records of a topic, at least n of them: it waits
// until they are there.
func (b *bench) read(topic string, n int) []*kgo.Record {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 60*time.Second)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond))
	if err != nil {
		b.t.Fatal(err)
	}
	defer client.Close()
	var records []*kgo.Record
	for len(records) < n {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			b.t.Fatalf("%d records of %s, want %d", len(records), topic, n)
		}
		records = append(records, fetches.Records()...)
	}
	return records
}

// arrivals follows a topic. What it returns waits until so many records with a
// value have come.
func (b *bench) arrivals(topic string) (arrive func(value string, n int)) {
	b.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(client.Close)
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

func recordHeader(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
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
	families, err := i.registry.Gather()
	if err != nil {
		i.b.t.Fatal(err)
	}
	var sum float64
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			matches := true
			for n := 0; n < len(labels); n += 2 {
				matches = matches && have[labels[n]] == labels[n+1]
			}
			if matches {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

// logBuffer keeps a log.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// requests are the lines of the access log.
func (l *logBuffer) requests(t *testing.T) []map[string]any {
	t.Helper()
	var lines []map[string]any
	for line := range strings.Lines(l.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if fields["msg"] == "request" {
			lines = append(lines, fields)
		}
	}
	return lines
}

// event makes a body.
func event(id string) string { return fmt.Sprintf(`{"id":%q,"price":"1.0"}`, id) }
