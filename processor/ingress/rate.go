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

// limitersMax bounds how many sources an endpoint tracks, and how many tenants; each needs some 200 bytes.
// Beyond the bound the server forgets the source or tenant that it has not seen for longest, so when that
// source or tenant returns, it gets its full burst again. With so many sources the endpoint's own rate is the
// effective limit, and the tasks check the quota of a tenant too.
const limitersMax = 16_384

// rateLimiter is a token bucket. A nil rateLimiter does not limit.
type rateLimiter struct {
	bucket *rate.Limiter
	mu     sync.Mutex
	now    time.Time // the latest time seen: the bucket would refill twice for a period if its clock went back
}

func newRateLimiter(r rules.Rate) *rateLimiter {
	if r == (rules.Rate{}) {
		return nil
	}
	return &rateLimiter{bucket: rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst)}
}

// allow takes a token and returns 0; if there is no token, it returns how long to wait for one. A rejected
// request reserves no token: otherwise rejected requests would use up the rate.
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

// rateLimiters limits the rate of each source, or of each tenant, separately.
type rateLimiters[K comparable] struct {
	mu sync.Mutex // makes concurrent first requests of a key share a limiter
	by *lru.Cache[K, *rateLimiter]
}

func newRateLimiters[K comparable]() *rateLimiters[K] {
	by, err := lru.New[K, *rateLimiter](limitersMax)
	if err != nil {
		panic(err) // lru rejects only a size that is not positive
	}
	return &rateLimiters[K]{by: by}
}

// allow takes a token of the limiter of this key, as rateLimiter.allow does. r is the rate of a key that has no
// limiter yet.
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

// retryAfter returns the value of the header Retry-After for a wait, rounded up to whole seconds and at least
// 1.
func retryAfter(wait time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(min(wait.Seconds(), timeoutMax.Seconds())))))
}
