package processor

import (
	"context"
	"sync"
	"time"
)

// endBlockedMax is how long End may take while a rebalance callback
// waits; an End that is not stuck takes milliseconds.
const endBlockedMax = 2 * time.Second

// A rebalanceLock watches the lock that a client holds from a poll that returned
// something until AllowRebalance: rebalance callbacks wait for it.
type rebalanceLock struct {
	mu sync.Mutex
	// blocked says that a rebalance callback waits for the lock. onBlocked is
	// called then, while an End runs.
	blocked   bool
	onBlocked func()
}

// endContext returns the context of an End that tries to commit, and what ends it.
// End waits for a heartbeat, or for the callback that says the partitions are lost.
// After the broker removed this member there is no heartbeat, and the callback waits
// for the rebalance lock, which the worker holds. So if a callback still waits
// endBlockedMax into End, the context is cancelled. The client then has to be
// replaced, which a lost member has to be in any case.
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

// released notes that no callback waits: the lock is free, or its client is new.
func (l *rebalanceLock) released() {
	l.mu.Lock()
	l.blocked = false
	l.mu.Unlock()
}
