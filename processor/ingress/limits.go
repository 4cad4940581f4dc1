package ingress

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// requestLimits bound the in-flight requests and the memory of their bodies.
type requestLimits struct {
	requests *inFlight
	bodies   bodyMemory
}

func newRequestLimits(cfg Config, m *metrics) *requestLimits {
	return &requestLimits{requests: newInFlight(cfg.MaxRequests), bodies: bodyMemory{limit: int64(cfg.MaxBodyBytes), used: m.bodies}}
}

// inFlight counts in-flight requests up to a limit.
type inFlight struct {
	mu    sync.Mutex
	idle  *sync.Cond // signalled when n becomes 0
	n     int
	limit int
}

func newInFlight(limit int) *inFlight {
	f := &inFlight{limit: limit}
	f.idle = sync.NewCond(&f.mu)
	return f
}

// enter counts a request, or returns false if the limit is reached.
func (f *inFlight) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n >= f.limit {
		return false
	}
	f.n++
	return true
}

func (f *inFlight) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n--; f.n == 0 {
		f.idle.Broadcast()
	}
}

func (f *inFlight) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

// waitIdle returns when no request is in flight.
func (f *inFlight) waitIdle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.n > 0 {
		f.idle.Wait()
	}
}

// bodyMemory is the memory that all bodies share.
type bodyMemory struct {
	limit    int64 // bytes
	reserved atomic.Int64
	used     prometheus.Gauge
}

var errBodyMemory = errors.New("the bodies of in-flight requests use all their memory")

// reservation is the part of bodyMemory that one body has.
type reservation struct {
	of    *bodyMemory
	bytes int64
}

// grow reserves n more bytes, or returns errBodyMemory.
func (r *reservation) grow(n int64) error {
	if r.of.reserved.Add(n) > r.of.limit {
		r.of.reserved.Add(-n)
		return errBodyMemory
	}
	r.bytes += n
	r.of.used.Add(float64(n))
	return nil
}

func (r *reservation) release() {
	r.of.reserved.Add(-r.bytes)
	r.of.used.Sub(float64(r.bytes))
	r.bytes = 0
}
