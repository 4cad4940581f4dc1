package ingress

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"
)

// connections is a listener that limits the open connections. At the limit a new one
// replaces a connection without a request: one that is idle, has sent nothing, or
// part of a request's head. Only if every connection has a request, new ones wait to
// be accepted.
//
// The replaced one is the longest without a request of the source that has most of
// them. So one source that opens many replaces its own, and the others keep theirs.
type connections struct {
	net.Listener
	max     int
	timeout time.Duration // of a request's head
	metrics *metrics

	mu     sync.Mutex
	freed  *sync.Cond // signalled when a connection ends or has no request
	open   int
	idle   map[netip.Addr]*list.List // those without a request by source, the longest first
	closed bool
}

func newConnections(listener net.Listener, cfg Config, m *metrics) *connections {
	l := &connections{
		Listener: listener, max: cfg.MaxConnections, timeout: cfg.ReadTimeout, metrics: m, idle: map[netip.Addr]*list.List{},
	}
	l.freed = sync.NewCond(&l.mu)
	return l
}

// Accept implements net.Listener. Its connections are places.
func (l *connections) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &place{Conn: conn, of: l, source: sourceNetwork(peerOf(conn.RemoteAddr().String()))}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open >= l.max && !l.closed {
		if victim := l.longestIdle(); victim != nil {
			l.forget(victim)
			l.metrics.closed.WithLabelValues(closedReplaced).Inc()
			_ = victim.Conn.Close() // net/http finds it closed, and closes victim
			continue
		}
		l.freed.Wait()
	}
	if l.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	l.open++
	l.metrics.connections.Set(float64(l.open))
	l.addIdle(c)
	return c, nil
}

// Close implements net.Listener.
func (l *connections) Close() error {
	l.mu.Lock()
	l.closed = true
	l.freed.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

// longestIdle returns the connection to replace; nil if each has a request. It looks
// at every source, only when the limit is reached.
func (l *connections) longestIdle() *place {
	var found *place
	most := 0
	for _, of := range l.idle {
		first := of.Front().Value.(*place) //nolint:forcetypeassert // the lists have no others
		if of.Len() > most || of.Len() == most && first.since.Before(found.since) {
			found, most = first, of.Len()
		}
	}
	return found
}

// addIdle adds a connection to those without a request. The caller has locked l.
func (l *connections) addIdle(c *place) {
	if c.gone || c.element != nil {
		return
	}
	of := l.idle[c.source]
	if of == nil {
		of = list.New()
		l.idle[c.source] = of
	}
	c.since = time.Now()
	c.element = of.PushBack(c)
	l.freed.Signal()
}

// removeIdle removes a connection from those without a request. The caller has locked
// l.
func (l *connections) removeIdle(c *place) {
	if c.element == nil {
		return
	}
	of := l.idle[c.source]
	of.Remove(c.element)
	c.element = nil
	if of.Len() == 0 {
		delete(l.idle, c.source)
	}
}

// forget removes a connection that ends. The caller has locked l.
func (l *connections) forget(c *place) {
	if c.gone {
		return
	}
	l.removeIdle(c)
	c.gone = true
	l.open--
	l.metrics.connections.Set(float64(l.open))
	l.freed.Signal()
}

// setActive takes whether a connection has a request.
func (l *connections) setActive(c *place, active bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if active {
		l.removeIdle(c)
	} else {
		l.addIdle(c)
	}
}
