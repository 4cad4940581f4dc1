package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Fault is a rule that is active in a proxy. Its methods may be called from any goroutine, even after Remove.
type Fault struct {
	rule  Rule
	proxy *Proxy

	removed chan struct{} // closed by Remove
	once    sync.Once

	mu      sync.Mutex
	seen    int           // frames that matched
	struck  int           // frames that the rule acted on; never more than rule.Count, if that is set
	late    []Late        // for HoldRequest: the held requests that the proxy delivered or dropped
	errs    []error       // why strikes failed
	changed chan struct{} // closed, and replaced, when any of the above changes
	free    time.Time     // for Throttle: the time at which all bytes so far have passed
}

// Late says how a held request ended.
type Late struct {
	// Request is the held request.
	Request kmsg.Request
	// Response is the node's response; [ErrorOf] returns the error in it.
	Response kmsg.Response
	// Err says why there is no response: the connection to the node ended, or the rule was removed.
	Err error
}

// Rule returns the rule as it was added.
func (f *Fault) Rule() Rule { return f.rule }

// Name returns the rule's name.
func (f *Fault) Name() string { return f.rule.name() }

// Struck returns how many frames the rule acted on.
func (f *Fault) Struck() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.struck
}

// Err returns why strikes had no effect, for example because a response could not be decoded. The proxy delivered
// such frames unchanged.
func (f *Fault) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.errs...)
}

// Wait returns once the rule has struck n times. If ctx ends earlier, the error contains the number of strikes so
// far.
func (f *Fault) Wait(ctx context.Context, n int) error {
	return f.wait(ctx, func() bool { return f.struck >= n }, func() string { return fmt.Sprintf("struck %d of %d times", f.struck, n) })
}

// Late waits until n requests of a HoldRequest have ended, and returns the first n of them.
func (f *Fault) Late(ctx context.Context, n int) ([]Late, error) {
	err := f.wait(ctx, func() bool { return len(f.late) >= n }, func() string { return fmt.Sprintf("%d of %d held requests ended", len(f.late), n) })
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.late[:n]), nil
}

// wait returns once done returns true. It holds f.mu while it calls done.
func (f *Fault) wait(ctx context.Context, done func() bool, state func() string) error {
	for {
		f.mu.Lock()
		ok, changed, now := done(), f.changed, state()
		f.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("rule %s %s: %w", f.Name(), now, context.Cause(ctx))
		}
	}
}

// Remove ends the rule: it strikes no more frames. The proxy forwards the frames that a blackhole stopped, and drops
// the requests that a HoldRequest held. Remove may be called again.
func (f *Fault) Remove() {
	f.once.Do(func() {
		close(f.removed)
		f.proxy.removeFault(f)
	})
}

// matches reports whether the rule matches a request, or its response.
func (f *Fault) matches(node int32, r *request) bool {
	m := f.rule.Match
	if !m.matchesClient(node, r.clientID) || len(m.APIs) > 0 && !slices.Contains(m.APIs, r.key) {
		return false
	}
	if m.Where == nil {
		return true
	}
	req, err := r.decode()
	if err != nil {
		f.failed(err)
		return false
	}
	return m.Where(req)
}

// take decides whether the rule strikes a frame that matches, and counts the frame and the strike.
func (f *Fault) take(draw func() float64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.removed:
		return false
	default:
	}
	f.seen++
	if f.seen <= f.rule.Skip || f.rule.Count > 0 && f.struck >= f.rule.Count {
		return false
	}
	if p := f.rule.Probability; p > 0 && p < 1 && draw() >= p {
		return false
	}
	f.struck++
	f.notify()
	return true
}

// reserve reserves time for n bytes in a throttled direction. It returns the time at which these bytes will have
// passed.
func (f *Fault) reserve(n int, now time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.free.Before(now) {
		f.free = now
	}
	f.free = f.free.Add(time.Duration(n) * time.Second / time.Duration(f.rule.BytesPerSecond))
	return f.free
}

func (f *Fault) ended(l Late) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.late = append(f.late, l)
	f.notify()
}

// failed records that a strike had no effect.
func (f *Fault) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, fmt.Errorf("rule %s: %w", f.Name(), err))
	f.notify()
}

// notify wakes the waiters. The caller holds f.mu.
func (f *Fault) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}
