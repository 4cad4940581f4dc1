// Package tracing exports a span for each event whose sender samples its trace.
//
// # What it owns
//
//   - Endpoint reads the variables of OpenTelemetry that name a collector.
//   - Tracer makes the spans of committed transactions and sends them by OTLP over
//     HTTP. A duplicate's span links to the span of the sender of the first event.
//
// It may import the processor's packages below it. Its outside system is
// OpenTelemetry, which reads the other OTEL_ variables from the environment.
//
// # Invariants
//
//   - A span is made after the commit is known: an aborted transaction has none, and no
//     fault of the collector reaches an event.
//   - Memory is bounded: that of the first events by firstsMax, that of spans by the
//     queue of OpenTelemetry, which drops spans that the collector does not take.
//   - Without an endpoint there is no Tracer, and events cost nothing.
//
// # What looks wrong
//
//   - A first event that this process did not judge, or whose trace was not sampled, has
//     no link. The attribute oncebus.first has its position all the same.
package tracing
