package ingress

import (
	"math"
	"net/netip"
	"strconv"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"oncebus/dedup/rules"
)

// limitersMax bounds the sources whose rate an endpoint tracks, and the tenants of a route, some 200 bytes
// each. The least recently seen one is dropped and gets its full burst again if
// it returns: with so many the endpoint's own rate is the limit, and the tasks have a tenant's quota too.
const limitersMax = 16_384

// rateLimiter is a token bucket; nil does not limit.
type rateLimiter struct {
	bucket *rate.Limiter
	mu     sync.Mutex
	now    time.Time // the latest; a bucket whose time goes back is refilled twice
}

func newRateLimiter(r rules.Rate) *rateLimiter {
	if r == (rules.Rate{}) {
		return nil
	}
	return &rateLimiter{bucket: rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst)}
}

// allow takes a token and returns 0, or returns the time until there is one. A
// rejected request reserves no token; else rejections use up the rate.
func (l *rateLimiter) allow(now time.Time) time.Duration {
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

// rateLimiters limit the rate of each source, or of each tenant.
type rateLimiters[K comparable] struct {
	mu sync.Mutex // so that concurrent first requests of a key share one limiter
	by *lru.Cache[K, *rateLimiter]
}

func newRateLimiters[K comparable]() *rateLimiters[K] {
	by, err := lru.New[K, *rateLimiter](limitersMax)
	if err != nil {
		panic(err) // lru rejects only a size that is not positive
	}
	return &rateLimiters[K]{by: by}
}

// allow is rateLimiter.allow for one key, whose rate is r.
func (s *rateLimiters[K]) allow(key K, r rules.Rate, now time.Time) time.Duration {
	if r == (rules.Rate{}) {
		return 0
	}
	s.mu.Lock()
	l, ok := s.by.Get(key)
	if !ok {
		l = newRateLimiter(r)
		s.by.Add(key, l)
	}
	s.mu.Unlock()
	return l.allow(now)
}

// sourceLimiters limit the rate of each source.
type sourceLimiters struct {
	rate rules.Rate
	by   *rateLimiters[netip.Addr]
}

func (s sourceLimiters) allow(source netip.Addr, now time.Time) time.Duration {
	return s.by.allow(sourceNetwork(source), s.rate, now)
}

// retryAfter returns the value of the header Retry-After: whole seconds, at
// least one.
func retryAfter(wait time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(min(wait.Seconds(), timeoutMax.Seconds())))))
}
