package processor

import (
	"context"
	"sync"
	"time"
)

// endBlockedMax is how long End may take while a rebalance callback waits for the lock.
// Without a deadlock it takes milliseconds.
const endBlockedMax = 2 * time.Second

// A rebalanceLock observes the rebalance lock of a client. The worker holds it from a
// poll that returned something to AllowRebalance, and rebalance callbacks wait for it.
type rebalanceLock struct {
	mu sync.Mutex
	// blocked says that a rebalance callback waits for the lock. onBlocked is
	// called then, while an End runs.
	blocked   bool
	onBlocked func()
}

// endContext returns the context of an End that tries to commit, and a function that
// releases it. End waits for a heartbeat, or for the callback onLost. After the broker
// removed this member there is no heartbeat, and onLost waits for the rebalance lock,
// which the worker holds. So if a callback waits for longer than endBlockedMax during
// End, the context is cancelled. The worker then replaces the client, as it must after
// a removal.
func (l *rebalanceLock) endContext() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onBlocked = func() { time.AfterFunc(endBlockedMax, cancel) }
	if l.blocked {
		l.onBlocked()
	}
	return ctx, func() {
		l.mu.Lock()
		l.onBlocked = nil
		l.mu.Unlock()
		cancel()
	}
}

// callbackBlocked runs when a rebalance callback begins to wait for the lock.
func (l *rebalanceLock) callbackBlocked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocked = true
	if l.onBlocked != nil {
		l.onBlocked()
	}
}

// released resets blocked. The worker calls it before AllowRebalance, and for a new client.
func (l *rebalanceLock) released() {
	l.mu.Lock()
	l.blocked = false
	l.mu.Unlock()
}
