package tracing

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/wire"
)

func TestEndpoint(t *testing.T) {
	t.Parallel()
	for environ, want := range map[string]string{
		"":                             "",
		"OTEL_EXPORTER_OTLP_ENDPOINT=": "",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318":                                                                 "http://c:4318/v1/traces",
		"OTEL_EXPORTER_OTLP_ENDPOINT=https://c:4318/base/":                                                          "https://c:4318/base/v1/traces",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318 OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://t/custom":              "http://t/custom",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318 OTEL_SDK_DISABLED=true":                                          "",
		"OTEL_EXPORTER_OTLP_ENDPOINT=c:4318":                                                                        "OTEL_EXPORTER_OTLP_ENDPOINT: want",
		"OTEL_EXPORTER_OTLP_ENDPOINT=grpc://c:4317":                                                                 "OTEL_EXPORTER_OTLP_ENDPOINT: want",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318 OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://secret:password@:/%zz": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: want",
	} {
		got, err := Endpoint(strings.Fields(environ))
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.HasPrefix(got, want) || want == "" || strings.Contains(got, "password")) {
			t.Errorf("%s: %q, want %q", environ, got, want)
		}
	}
}

// BenchmarkSpans is what sampled events cost, the export included, and what the look at the header of any other costs.
func BenchmarkSpans(b *testing.B) {
	b.Run("sampled", func(b *testing.B) {
		collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
		defer collector.Close()
		t, err := New(b.Context(), collector.URL, "app", "instance", "version", slog.New(slog.DiscardHandler))
		if err != nil {
			b.Fatal(err)
		}
		rt := &app.App{Topology: &app.Topology{}}
		events := make([]judge.Traced, 100)
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			if n%len(events) == 0 {
				for i := range events {
					e := &events[i]
					*e = judge.Traced{Trace: [16]byte{1, byte(i)}, Span: [8]byte{1}, Route: &app.Route{Route: &rules.Route{Name: "route"}}, Verdict: dedup.Unique,
						Digest: dedup.Digest{byte(i), byte(n), byte(n >> 8), byte(n >> 16)}, Key: &[32]byte{1}, From: dedup.Position{Offset: int64(n + i)}, BrokerTime: 1}
					e.First = e.From
				}
				t.Publish(rt, events, time.UnixMilli(2))
			}
		}
		if err := t.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	})
	b.Run("not sampled", func(b *testing.B) {
		value := []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
		b.ReportAllocs()
		for b.Loop() {
			if _, _, sampled, ok := wire.ParseTraceparent(value); sampled || !ok {
				b.Fatal("sampled")
			}
		}
	})
}
