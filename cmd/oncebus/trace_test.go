//go:build unix

package main_test

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest/embedded"
)

// spanCollector accepts spans by OTLP over HTTP.
type spanCollector struct {
	t *testing.T
	*httptest.Server

	mu       sync.Mutex
	services []string
	spans    []*spans.Span
}

func startCollector(t *testing.T) *spanCollector {
	c := &spanCollector{t: t}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

// ServeHTTP implements http.Handler.
func (c *spanCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			c.t.Error(err)
			return
		}
		body = unzipped
	}
	b, err := io.ReadAll(body)
	var request collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(b, &request)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		c.t.Errorf("%s %s: %v", r.Method, r.URL, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		for _, a := range resource.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				c.services = append(c.services, a.GetValue().GetStringValue())
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// take returns the spans that have arrived, in the order of their traces.
func (c *spanCollector) take() []*spans.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.spans
	c.spans = nil
	slices.SortFunc(taken, func(a, b *spans.Span) int { return strings.Compare(string(a.GetTraceId()), string(b.GetTraceId())) })
	return taken
}

func attributeOf(span *spans.Span, name string) string {
	for _, a := range span.GetAttributes() {
		if a.GetKey() == name {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// traceparents of the test: a trace and the sender's span in it.
const (
	traceOfFirst, spanOfFirst = "11111111111111111111111111111111", "1111111111111111"
	traceOfAgain, spanOfAgain = "22222222222222222222222222222222", "2222222222222222"
	traceOfLater, spanOfLater = "33333333333333333333333333333333", "3333333333333333"
)

// TestSpans: each sampled event has a span below that of its sender. The one of a duplicate links to the sender's span of the first
// event, while the process knows it, and names the position of the first event in any case.
func TestSpans(t *testing.T) {
	cluster, receiver := embedded.Start(t), startCollector(t)
	environ := ingressEnviron(t, cluster, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL, "ONCEBUS_APP_ID=traced", "ONCEBUS_PARTITIONS=1")
	client := cluster.Client(kgo.ConsumeTopics("signals.unique"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	// judged sends one event with each traceparent under one key, and then one under another key, which is judged last: with one
	// partition, the topic's order is that of the verdicts. It returns the spans that a process has exported when it ends.
	judged := func(last string, traceparents ...string) []*spans.Span {
		t.Helper()
		s := serveCommand(t, "run", environ...)
		defer s.stop()
		s.ready()
		var records []*kgo.Record
		for _, traceparent := range traceparents {
			records = append(records, &kgo.Record{Topic: "signals.raw", Value: []byte(`{"id":"a"}`), Headers: []kgo.RecordHeader{{Key: "traceparent", Value: []byte(traceparent)}}})
		}
		records = append(records, &kgo.Record{Topic: "signals.raw", Value: []byte(last)})
		if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		s.until("the last event", func() bool {
			fetches := client.PollFetches(t.Context())
			if err := fetches.Err(); err != nil {
				t.Fatal(err)
			}
			for _, r := range fetches.Records() {
				if string(r.Value) == `{"id":"a"}` && headerOf(r, "traceparent") != traceparents[0] {
					t.Errorf("the event came out with traceparent %q, want %q", headerOf(r, "traceparent"), traceparents[0])
				}
			}
			return slices.ContainsFunc(fetches.Records(), func(r *kgo.Record) bool { return string(r.Value) == last })
		})
		s.stop()
		s.ended()
		return receiver.take()
	}

	first := "00-" + traceOfFirst + "-" + spanOfFirst + "-01"
	got := judged(`{"id":"b"}`, first, "00-"+traceOfAgain+"-"+spanOfAgain+"-01", "00-"+traceOfLater+"-"+spanOfLater+"-00", "malformed")
	if len(got) != 2 {
		t.Fatalf("%d spans of two sampled events, one that is not and one malformed header: %v", len(got), got)
	}
	for i, want := range []struct{ trace, parent, verdict string }{{traceOfFirst, spanOfFirst, "unique"}, {traceOfAgain, spanOfAgain, "duplicate"}} {
		span := got[i]
		if hex.EncodeToString(span.GetTraceId()) != want.trace || hex.EncodeToString(span.GetParentSpanId()) != want.parent || attributeOf(span, "oncebus.verdict") != want.verdict ||
			attributeOf(span, "oncebus.route") != "signals" || len(attributeOf(span, "oncebus.key")) != 64 || span.GetStartTimeUnixNano() == 0 || span.GetEndTimeUnixNano() < span.GetStartTimeUnixNano() {
			t.Errorf("span %v, want %+v", span, want)
		}
	}
	if links := got[0].GetLinks(); len(links) != 0 || attributeOf(got[0], "oncebus.first") != "" {
		t.Errorf("the first event links to %v", links)
	}
	from := attributeOf(got[0], "oncebus.from")
	if links := got[1].GetLinks(); len(links) != 1 || hex.EncodeToString(links[0].GetTraceId()) != traceOfFirst || hex.EncodeToString(links[0].GetSpanId()) != spanOfFirst ||
		attributeOf(got[1], "oncebus.first") != from || from != "signals.raw/0/0" {
		t.Errorf("the duplicate links to %v, its first is %q, want the sender's span of the first, at %q", links, attributeOf(got[1], "oncebus.first"), from)
	}
	if !slices.Contains(receiver.services, "traced") {
		t.Errorf("the spans are of %q, want the app", receiver.services)
	}

	got = judged(`{"id":"c"}`, "00-"+traceOfLater+"-"+spanOfLater+"-01")
	if len(got) != 1 || len(got[0].GetLinks()) != 0 || attributeOf(got[0], "oncebus.verdict") != "duplicate" || attributeOf(got[0], "oncebus.first") != from {
		t.Errorf("after a restart: %v, want one span without a link, whose first is %s", got, from)
	}
}

// TestSpansWithoutACollector: events do not wait for one that does not respond, and a wrong address is a mistake of the settings.
func TestSpansWithoutACollector(t *testing.T) {
	got := execute(t.Context(), runEnviron(t, "ONCEBUS_BROKERS=localhost:1", "OTEL_EXPORTER_OTLP_ENDPOINT=localhost:4318"), "", "run")
	if want := "OTEL_EXPORTER_OTLP_ENDPOINT: want http://host:port or https://host:port of a collector that accepts OTLP over HTTP\n"; got.Code != cli.ExitWrong || got.Stderr != want {
		t.Errorf("exit code %d: %s", got.Code, got.Stderr)
	}
	receiver := startCollector(t)
	receiver.Close()
	cluster := embedded.Start(t)
	s := serveCommand(t, "run", ingressEnviron(t, cluster, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL)...)
	defer s.stop()
	s.ready()
	client := cluster.Client(kgo.ConsumeTopics("signals.unique"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	record := &kgo.Record{Topic: "signals.raw", Value: []byte(`{"id":"a"}`), Headers: []kgo.RecordHeader{{Key: "traceparent", Value: []byte("00-" + traceOfFirst + "-" + spanOfFirst + "-01")}}}
	if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if fetches := client.PollFetches(t.Context()); fetches.Err() != nil || fetches.NumRecords() != 1 {
		t.Errorf("%d records, %v", fetches.NumRecords(), fetches.Err())
	}
	s.stop()
	s.ended()
	if !strings.Contains(s.stderr.String(), "spans") {
		t.Error("the failure is not logged")
	}
}
