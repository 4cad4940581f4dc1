package tracing

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/judge"
)

// firstsMax is how many first events a process can link duplicates to: 10 MB.
const firstsMax = 1 << 16

// Variables of OpenTelemetry that name the collector.
const (
	endpointVariable = "OTEL_EXPORTER_OTLP_ENDPOINT"
	tracesVariable   = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	disabledVariable = "OTEL_SDK_DISABLED"
)

// Endpoint returns the URL to which an environment, as NAME=value, wants spans sent; "" if it
// names none. Its error names the variable.
func Endpoint(environ []string) (string, error) {
	values := map[string]string{}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		values[name] = value
	}
	if strings.EqualFold(values[disabledVariable], "true") {
		return "", nil
	}
	name, path := tracesVariable, ""
	if values[name] == "" {
		name, path = endpointVariable, "v1/traces"
	}
	if values[name] == "" {
		return "", nil
	}
	at, err := url.Parse(values[name])
	if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" {
		return "", fmt.Errorf("%s: want http://host:port or https://host:port of a collector that accepts OTLP over HTTP", name)
	}
	return at.JoinPath(path).String(), nil
}

// firstKey is a dedup key in its namespace.
type firstKey struct {
	namespace uint8
	digest    dedup.Digest
}

// Tracer makes spans. Several workers may use it at the same time.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	firsts   *lru.Cache[firstKey, trace.SpanContext]
}

// New returns a tracer that sends its spans to endpoint. It connects to nothing before the
// first span. Its resource is service with instance and version, which OTEL_SERVICE_NAME and
// OTEL_RESOURCE_ATTRIBUTES override. Failed exports are logged.
func New(ctx context.Context, endpoint, service, instance, version string, log *slog.Logger) (*Tracer, error) {
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(endpoint))
	if err != nil {
		return nil, fmt.Errorf("exporter of spans: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", service),
		attribute.String("service.instance.id", instance), attribute.String("service.version", version)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("export of spans failed", "error", err) }))
	firsts, err := lru.New[firstKey, trace.SpanContext](firstsMax)
	if err != nil {
		return nil, err
	}
	// Every span has a sampled parent.
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(about), sdk.WithSampler(sdk.ParentBased(sdk.NeverSample())))
	return &Tracer{provider: provider, tracer: provider.Tracer("oncebus"), firsts: firsts}, nil
}

// Publish makes the spans of the events of a transaction that was committed at that time. A
// span begins when its event was appended.
func (t *Tracer) Publish(rt *app.App, events []judge.Traced, committed time.Time) {
	for i := range events {
		e := &events[i]
		parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: e.Trace, SpanID: e.Span, TraceFlags: trace.FlagsSampled, Remote: true})
		attributes := append(make([]attribute.KeyValue, 0, 6),
			attribute.String("messaging.system", "kafka"),
			attribute.String("oncebus.route", e.Route.Name),
			attribute.String("oncebus.verdict", e.Verdict.String()),
			attribute.String("oncebus.from", string(rt.PositionText(e.From))))
		if e.Key != nil {
			attributes = append(attributes, attribute.String("oncebus.key", hex.EncodeToString(e.Key[:])))
		}
		options := append(make([]trace.SpanStartOption, 0, 4), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(time.UnixMilli(e.BrokerTime)))
		key := firstKey{e.Route.NamespaceID, e.Digest}
		switch {
		case e.First != e.From:
			attributes = append(attributes, attribute.String("oncebus.first", string(rt.PositionText(e.First))))
			if first, ok := t.firsts.Get(key); ok {
				options = append(options, trace.WithLinks(trace.Link{SpanContext: first}))
			}
		case e.Key != nil:
			t.firsts.Add(key, parent)
		}
		_, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent), "judge "+e.Route.Name,
			append(options, trace.WithAttributes(attributes...))...)
		span.End(trace.WithTimestamp(committed))
	}
}

// Close sends the spans that wait, until ctx is done.
func (t *Tracer) Close(ctx context.Context) error { return t.provider.Shutdown(ctx) }
