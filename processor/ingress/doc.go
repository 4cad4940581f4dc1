// Package ingress is the HTTP server that receives events and outcomes. A
// front.IngressClient produces them to Kafka, and the response has the verdict.
//
// It owns HTTP: connections, limits, signatures, responses and the OpenAPI
// document. It may import processor/{front,app,wire,security}, dedup, dedup/rules
// and signature. front.IngressClient is its only client of Kafka.
//
// # A request, step by step
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
// The body becomes the record's value, byte for byte, and the carried headers
// become its headers. A repeated header is joined with commas (RFC 9110, section
// 5.3), except Idempotency-Key, Content-Type and the attributes of CloudEvents: once.
//
// # Invariants
//
// After a 2xx all in-sync replicas have acknowledged the event, or with on_kafka_unavailable:
// keep the disk has it (front.IngressClient.KeepIn). Without a 2xx the client may retry: the
// retry is a duplicate. An event without a key may be emitted twice, and so may one that may
// be forwarded unchecked: its problem has its own type.
//
// Every resource that a client can occupy has a limit: connections, in-flight requests, bytes of
// bodies and headers, the time to receive a request, to write a response and to keep a connection idle.
// front.IngressClient limits the events that wait for Kafka, and divides them by path.
//
// A new connection replaces an idle one (connections), and net/http ends a head within
// Config.ReadTimeout; a proxy divides the connections among clients. No source and no endpoint can
// occupy all in-flight requests or all memory of bodies (requestLimits). A request counts between
// its head and its body.
//
// OpenAPI has no handwritten response: openapi_responses.go collects those of the code.
//
// # What looks wrong
//
// A client that closes only its sending side gets no response: net/http cannot
// tell it from one that disconnected (respondToError).
//
// ServeHTTP panics for a disconnected client: to return would send a 200.
// receive clears the read deadline: net/http would end the wait for the verdict
// as if the client had disconnected.
//
// Every chunked request ends its connection: net/http hides whether Content-Length came
// too (beginRequest). Outcomes have limits of their own, and so have questions for them: senders that wait
// for an outcome must block neither. A location (location.go) is no capability.
//
// security.Reloaded has no goroutine: files are read while something needs them.
package ingress
