package ingress

import (
	"errors"
	"io"
	"math"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"oncebus/dedup/rules"
)

// sourcesMax is of how many sources a route knows the rate at once, some 200
// bytes each. The one not seen for longest is forgotten, and has its burst
// again when it comes back: with so many sources the route's own rate is the
// limit.
const sourcesMax = 16_384

// limiter holds requests to a rate; nil does not.
type limiter struct {
	bucket *rate.Limiter
	mu     sync.Mutex
	now    time.Time // the latest; a bucket whose time goes back is filled twice
}

func newLimiter(r rules.Rate) *limiter {
	if r == (rules.Rate{}) {
		return nil
	}
	return &limiter{bucket: rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst)}
}

// take takes a place, or returns after what time there is one. A refusal leaves
// the bucket as it is: to reserve and cancel would run it into debt where
// requests are refused at once.
func (l *limiter) take(now time.Time) time.Duration {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.After(l.now) {
		l.now = now
	}
	if l.bucket.AllowN(l.now, 1) {
		return 0
	}
	missing := 1 - l.bucket.TokensAt(l.now)
	wait := min(missing/float64(l.bucket.Limit()), timeoutMax.Seconds())
	return max(time.Nanosecond, time.Duration(wait*float64(time.Second)))
}

// sources holds the requests of each source to a rate; nil does not.
type sources struct {
	rate rules.Rate
	mu   sync.Mutex // a source has one limiter, not one for each request that comes first
	by   *lru.Cache[netip.Addr, *limiter]
}

func newSources(r rules.Rate) *sources {
	if r == (rules.Rate{}) {
		return nil
	}
	by, err := lru.New[netip.Addr, *limiter](sourcesMax)
	if err != nil {
		panic(err) // a size that is not positive
	}
	return &sources{rate: r, by: by}
}

func (s *sources) take(source netip.Addr, now time.Time) time.Duration {
	if s == nil {
		return 0
	}
	key := network(source)
	s.mu.Lock()
	l, ok := s.by.Get(key)
	if !ok {
		l = newLimiter(s.rate)
		s.by.Add(key, l)
	}
	s.mu.Unlock()
	return l.take(now)
}

// network is what counts as one source: an IPv4 address, or the 64 bits that
// one customer of an IPv6 network has for himself.
func network(source netip.Addr) netip.Addr {
	if source.Is6() && !source.Is4In6() {
		if prefix, err := source.Prefix(64); err == nil {
			return prefix.Addr()
		}
	}
	return source
}

// retryAfter is a time for the header Retry-After, in whole seconds.
func retryAfter(wait time.Duration) int {
	return max(1, int(math.Ceil(min(wait.Seconds(), timeoutMax.Seconds()))))
}

// sourceOf returns who sent the request: the peer, or who a trusted proxy says
// that it was. The last entry of X-Forwarded-For is the nearest proxy's, so the
// list is believed from its end, as long as those who wrote it are trusted.
func sourceOf(r *http.Request, trusted []netip.Prefix) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{} // not TCP
	}
	source := peer.Addr().Unmap().WithZone("")
	if len(trusted) == 0 {
		return source
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0 && trusts(trusted, source); i-- {
		hop := strings.TrimSpace(hops[i])
		addr, err := netip.ParseAddr(hop)
		if withPort, portErr := netip.ParseAddrPort(hop); portErr == nil {
			addr, err = withPort.Addr(), nil
		}
		if err != nil {
			break
		}
		source = addr.Unmap().WithZone("")
	}
	return source
}

func trusts(trusted []netip.Prefix, addr netip.Addr) bool {
	for _, network := range trusted {
		if network.Contains(addr) {
			return true
		}
	}
	return false
}

// room bounds what is in hand at once.
type room struct {
	requests *inHand
	bodies   bodyMemory
}

func newRoom(cfg Config, m *metrics) *room {
	return &room{requests: newInHand(cfg.MaxRequests), bodies: bodyMemory{most: int64(cfg.MaxBodyBytes), shown: m.bodies}}
}

// bodyMemory is what bodies take together.
type bodyMemory struct {
	most  int64
	used  atomic.Int64
	shown prometheus.Gauge
}

var errBodies = errors.New("too many bytes of bodies are in hand")

// hold is memory of one body.
type hold struct {
	of    *bodyMemory
	bytes int64
}

func (h *hold) grow(n int64) error {
	if h.of.used.Add(n) > h.of.most {
		h.of.used.Add(-n)
		return errBodies
	}
	h.bytes += n
	h.of.shown.Add(float64(n))
	return nil
}

func (h *hold) release() {
	h.of.used.Add(-h.bytes)
	h.of.shown.Sub(float64(h.bytes))
	h.bytes = 0
}

// firstRead is what a body gets at first.
const firstRead = 16 << 10

// readBody reads a body of at most limit bytes. Its memory is taken as it
// comes: what a client only announces costs nothing.
func readBody(w http.ResponseWriter, r *http.Request, limit int, h *hold) ([]byte, error) {
	if r.ContentLength > int64(limit) {
		return nil, &http.MaxBytesError{Limit: int64(limit)}
	}
	most := int64(limit) + 1 // one more, to see the end
	if r.ContentLength >= 0 {
		most = r.ContentLength + 1
	}
	in := http.MaxBytesReader(w, r.Body, int64(limit))
	var body []byte
	for {
		if len(body) == cap(body) {
			size := min(most, max(firstRead, 2*int64(cap(body))))
			if err := h.grow(size - int64(cap(body))); err != nil {
				return nil, err
			}
			body = append(make([]byte, 0, size), body...)
		}
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			return nil, err
		}
	}
}
