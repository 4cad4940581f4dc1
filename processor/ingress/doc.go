// Package ingress is the HTTP server in front of the bus: it takes webhooks and
// other requests in, has processor.Front put them on the bus, and answers with
// what deduplication decided.
//
// # The way of a request
//
//	path, method          404, 405
//	requests in hand      503 with Retry-After
//	rate of the source    429 with Retry-After
//	content coding        415 unless identity: nothing is unpacked here
//	body                  413, 408; read whole, within memory that all share
//	signature             401; over the raw body, before anything is parsed
//	rate of the route     429 with Retry-After; nobody without the secret uses it up
//	route and key         400
//	bus, verdict          202, 409, 422, 429, 503, 504 or the recorded outcome
//
// The body becomes the record's value, byte for byte, and the carried headers
// become its headers; a header that came several times is one list, joined with
// commas (RFC 9110, section 5.3). Idempotency-Key comes once, and a String of
// RFC 9651 in it is carried as what it stands for, without quotes (idempotency.go).
//
// # What a sender may rely on
//
// After a 2xx the event is on the bus, acknowledged by all in-sync replicas.
// After anything else, or nothing, sending the event again is safe: it is a
// copy then, or it is not. Only one without a key, where a route takes such, is
// nobody's copy and may pass twice. Where the answer is lost with its connection
// the same holds. A client that closes its sending side before the answer counts
// as gone, and its connection is cut off: nothing is answered that is not known.
//
// # What is bounded
//
// Connections, requests in hand, bytes of bodies, bytes of headers, the time a
// request takes to come in, an answer takes to go out and a connection is idle,
// and the number of sources whose rate is known. What waits for the bus is the
// front's, which has bounds of its own.
package ingress
