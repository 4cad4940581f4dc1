package ingress

import (
	"cmp"
	"errors"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// requestLimits bounds the in-flight requests and the memory of their bodies: in total, per source and per
// endpoint, so that no single source and no single endpoint can occupy everything.
//
// A source may use as much as is free, an endpoint twice as much as is free. For example, a source that floods
// the server alone gets half of the total, an endpoint alone gets two thirds, and several sources that flood at
// once still leave a part free, however many they are. A fixed bound per source would protect against a single
// source only.
//
// A source is the network of a client's address (sourceNetwork). An endpoint counts a request only once its
// signature is verified, so that senders without the secret cannot use up the endpoint's part.
type requestLimits struct {
	max       usage
	sourceMax int64 // in-flight requests of a source; 0: as many as are free
	endpoints int   // how many there are; a single endpoint has no bound of its own
	bodyBytes prometheus.Gauge

	mu      sync.Mutex
	idle    *sync.Cond // signalled when no request is in flight
	total   usage
	sources map[netip.Addr]*usage // the sources with in-flight requests
}

// usage is what a group of requests uses.
type usage struct {
	requests int64
	bytes    int64 // of bodies
}

// endpointUsage is what the verified requests of an endpoint use.
type endpointUsage struct {
	usage
	max int64 // most requests; 0: as many as twice the free ones, as requestLimits describes
}

func newRequestLimits(cfg Config, endpoints int, m *metrics) *requestLimits {
	l := &requestLimits{
		max: usage{int64(cfg.MaxRequests), int64(cfg.MaxBodyBytes)}, sourceMax: int64(cfg.MaxRequestsPerSource),
		endpoints: endpoints, bodyBytes: m.bodies, sources: map[netip.Addr]*usage{},
	}
	l.idle = sync.NewCond(&l.mu)
	return l
}

// count returns the number of in-flight requests.
func (l *requestLimits) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.total.requests)
}

// waitIdle returns when no request is in flight.
func (l *requestLimits) waitIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.total.requests > 0 {
		l.idle.Wait()
	}
}

// The limits that can reject a request:
var (
	errRequests         = errors.New("requests are at their limit")
	errSourceRequests   = errors.New("requests of the source are at their limit")
	errEndpointRequests = errors.New("requests of the endpoint are at their limit")
	errBodies           = errors.New("the bodies of in-flight requests use all their memory")
	errSourceBodies     = errors.New("the bodies of the source use its memory")
	errEndpointBodies   = errors.New("the bodies of the endpoint use its memory")
)

// reservation is what one in-flight request uses.
type reservation struct {
	limits   *requestLimits
	source   *usage
	network  netip.Addr // of the source
	endpoint *endpointUsage
	verified bool // the endpoint counts the request
	bytes    int64
}

// reserve counts a request before its body is read, or returns the limit that it would exceed. If signed is
// true, the endpoint counts the request only after verify; otherwise it counts the request at once.
func (l *requestLimits) reserve(source netip.Addr, endpoint *endpointUsage, signed bool) (*reservation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	network := sourceNetwork(source)
	r := &reservation{limits: l, source: l.sources[network], network: network, endpoint: endpoint, verified: !signed}
	if r.source == nil {
		r.source = &usage{}
	}
	switch free := l.max.requests - l.total.requests; {
	case free <= 0:
		return nil, errRequests
	case r.source.requests >= cmp.Or(l.sourceMax, free):
		return nil, errSourceRequests
	case l.endpointIsFull(endpoint, free): // also for a signed request: verify would only reject it after its body was read
		return nil, errEndpointRequests
	}
	l.sources[network] = r.source
	r.add(1, 0)
	return r, nil
}

// endpointIsFull reports whether an endpoint must not have a further request, if free is the number of requests
// that all endpoints together may still have.
func (l *requestLimits) endpointIsFull(e *endpointUsage, free int64) bool {
	return e.max > 0 && e.requests >= e.max || e.max == 0 && l.endpoints > 1 && e.requests >= 2*free
}

// endpointBytesFull reports whether n more bytes are too many for an endpoint. others is the number of further
// requests of the endpoint; free is how many bytes would remain free. The only request of an endpoint may use
// all memory, because the endpoint promises max_body.
func (l *requestLimits) endpointBytesFull(e *endpointUsage, n, free, others int64) bool {
	return l.endpoints > 1 && others > 0 && e.bytes+n > 2*free
}

// verify makes the endpoint count a request whose signature was verified, or returns the limit that it would
// exceed.
func (r *reservation) verify() error {
	l, e := r.limits, r.endpoint
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case r.verified:
		return nil
	case l.endpointIsFull(e, l.max.requests-l.total.requests+1):
		return errEndpointRequests
	case l.endpointBytesFull(e, r.bytes, l.max.bytes-l.total.bytes, e.requests):
		return errEndpointBodies
	}
	r.verified = true
	e.requests++
	e.bytes += r.bytes
	return nil
}

// grow reserves n more bytes for the body, or returns the limit that they would exceed. The bodies of a source
// with several requests may take as many bytes as remain free. If MaxRequestsPerSource is set, they may also
// take the same share of MaxBodyBytes as MaxRequestsPerSource is of MaxRequests, if that is more.
func (r *reservation) grow(n int64) error {
	l := r.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	free := l.max.bytes - l.total.bytes - n
	most := max(free, int64(float64(l.max.bytes)*float64(l.sourceMax)/float64(l.max.requests)))
	switch {
	case free < 0:
		return errBodies
	case r.source.requests > 1 && r.source.bytes+n > most:
		return errSourceBodies
	case r.verified && l.endpointBytesFull(r.endpoint, n, free, r.endpoint.requests-1):
		return errEndpointBodies
	}
	r.add(0, n)
	return nil
}

// add counts requests and bytes for all that have them. The caller holds the lock of the limits.
func (r *reservation) add(requests, bytes int64) {
	r.bytes += bytes
	r.limits.bodyBytes.Add(float64(bytes))
	users := []*usage{&r.limits.total, r.source, &r.endpoint.usage}
	if !r.verified {
		users = users[:2]
	}
	for _, u := range users {
		u.requests += requests
		u.bytes += bytes
	}
}

// release ends the request and frees what it has reserved.
func (r *reservation) release() {
	l := r.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	r.add(-1, -r.bytes)
	if r.source.requests == 0 {
		delete(l.sources, r.network)
	}
	if l.total.requests == 0 {
		l.idle.Broadcast()
	}
}
