package ingress

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"
)

// place is the place of a connection among the open ones. It closes the connection
// when a head, or a frame of HTTP/2, that has begun does not end in time. net/http
// bounds the time of the first head of HTTP/1 only: later ones, and those of HTTP/2,
// may take its IdleTimeout.
type place struct {
	net.Conn // without TLS
	of       *connections
	source   netip.Addr

	// Of connections, which locks them.
	gone    bool
	element *list.Element // in connections.idle; nil with a request
	since   time.Time     // it is in connections.idle

	mu     sync.Mutex
	heads  headReader
	timer  *time.Timer // nil before the first head
	timing bool
}

// received takes bytes that the client sent, decrypted.
func (c *place) received(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heads.read(p)
	c.watch()
}

// setActive takes whether a request is in progress. An HTTP/2 connection is idle
// while it has no stream, and a head that is incomplete opens none.
func (c *place) setActive(active bool) {
	c.mu.Lock()
	c.heads.setActive(active)
	c.watch()
	c.mu.Unlock()
	c.of.setActive(c, active)
}

// watch starts the timer when a head begins and stops it when the head is complete.
// The caller has locked c.
func (c *place) watch() {
	incomplete := c.heads.incomplete()
	switch {
	case incomplete == c.timing:
		return
	case !incomplete:
		c.timer.Stop()
	case c.timer == nil:
		c.timer = time.AfterFunc(c.of.timeout, c.timeout)
	default:
		c.timer.Reset(c.of.timeout)
	}
	c.timing = incomplete
}

// timeout closes the connection if its head is still incomplete.
func (c *place) timeout() {
	c.mu.Lock()
	incomplete := c.timing
	c.mu.Unlock()
	if incomplete {
		c.of.metrics.closed.WithLabelValues(closedSlow).Inc()
		_ = c.Conn.Close() // net/http finds it closed, and closes c
	}
}

// Close implements net.Conn.
func (c *place) Close() error {
	c.of.mu.Lock()
	c.of.forget(c)
	c.of.mu.Unlock()
	c.mu.Lock()
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	return c.Conn.Close()
}
