// Package ingress is the HTTP server that receives events from senders and outcomes from executors. A front.IngressClient
// produces both to Kafka and waits for the verdict; the HTTP response tells the verdict.
//
// This package owns everything about HTTP: connections, limits, signatures, responses and the OpenAPI document. It may
// import processor/{front,app,wire,security}, dedup, dedup/rules and signature. It reaches Kafka only through
// front.IngressClient.
//
// # A request, step by step: each check, and its statuses
//
//	path, method, source  404, 405, 403
//	in-flight requests    503 with Retry-After; in sum and of the source
//	rate of the source    429 with Retry-After
//	media type            415 for a batch of CloudEvents: it has several events
//	content coding        415, unless the path decompresses it
//	body                  413, 408; read whole, from memory that all bodies share
//	signature             401; a token before the body, others before anything is parsed, but the body of signature.Adyen
//	decompression         413, 400; after the signature, unless it is of the plain body
//	requests of the path  503 with Retry-After; only signed requests count
//	rate of the endpoint  429 with Retry-After; only signed requests count
//	handshake             200, 204; no event
//	route and key         400
//	Kafka, verdict        202, 409, 422, 429, 503, 504 or the stored outcome
//
// The body becomes the value of the Kafka record, byte for byte, and the carried headers become the headers of the record.
// A header that the request repeats is joined with commas (RFC 9110, section 5.3). Idempotency-Key, Content-Type and the
// attributes of CloudEvents may come only once.
//
// # Invariants
//
// After a 2xx, all in-sync replicas have acknowledged the event; on a route with on_kafka_unavailable: keep,
// the event is at least on the disk of this process (front.IngressClient.KeepIn). Without a 2xx the client may
// retry: the task recognises the retry as a duplicate. Two kinds of events may be emitted twice: events without
// a key, and events on a route that may forward unchecked, for which the response is a separate problem.
//
// Every resource that a client can occupy has a limit: connections, in-flight requests, the bytes of bodies and headers,
// and the times to receive a request, to write a response and to keep a connection idle. front.IngressClient limits the
// events that wait for Kafka, and divides that limit among the paths.
//
// At the limit of connections, a new connection replaces an idle one (connections), and net/http ends a request whose head
// takes longer than Config.ReadTimeout; how connections are divided among clients is left to a proxy. No source and no
// endpoint can occupy all in-flight requests or all memory of bodies (requestLimits). The server counts a request as in
// flight after it has accepted the head and before it reads the body.
//
// No response in the OpenAPI document is written by hand: openapi_responses.go collects the responses from the code that
// sends them.
//
// # What looks wrong
//
// A client that closes only its sending side gets no response: net/http cannot tell such a client from one that has
// disconnected (respondToError).
//
// ServeHTTP panics when the client has disconnected: if it returned instead, net/http would send a 200. receive clears the
// read deadline: if it were kept, net/http would end the wait for the verdict as if the client had disconnected.
//
// The connection closes after every chunked request: net/http hides from us whether the request had a
// Content-Length as well (beginRequest). Outcomes, and requests that ask for an outcome, have separate limits,
// so that senders that wait for an outcome block neither. A location (location.go) gives no access by itself.
//
// security.Reloaded has no goroutine: it reads a file again when a request or a connection needs the content.
package ingress
