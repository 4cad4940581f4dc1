package ingress

import (
	"container/list"
	"crypto/tls"
	"net"
	"sync"
)

// connections is a listener that limits how many connections are open. At the limit, a new connection replaces
// the one that has been without a request for longest: it is idle, or has sent nothing, or only a part of a
// head. If every connection has a request, a new one waits.
//
// connections does not divide the connections among clients; a proxy can do that. It does not limit how long
// the head of a request may take either; net/http does that.
type connections struct {
	net.Listener
	server *Server
	secure *tls.Config // nil without TLS

	mu     sync.Mutex
	freed  *sync.Cond // signalled when a connection ends or no longer has a request
	open   int
	quiet  list.List // connections without a request; the first has been without one for longest
	closed bool
}

// limit wraps listener to limit the open connections, and adds TLS if the server has certificates.
func (s *Server) limit(listener net.Listener) *connections {
	l := &connections{Listener: listener, server: s}
	l.freed = sync.NewCond(&l.mu)
	if s.certificates != nil {
		l.secure = s.certificates.Config()
	}
	return l
}

// Accept implements net.Listener.
func (l *connections) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, raw: conn, of: l}
	if l.secure != nil {
		c.Conn = tls.Server(conn, l.secure)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open >= l.server.cfg.MaxConnections && !l.closed {
		longest := l.quiet.Front()
		if longest == nil {
			l.freed.Wait()
			continue
		}
		victim := longest.Value.(*connection) //nolint:forcetypeassert // the list has no others
		l.forget(victim)
		l.server.metrics.replaced.Inc()
		_ = victim.raw.Close() // net/http's next read of victim fails, and net/http then closes it
	}
	if l.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	l.open++
	l.server.metrics.connections.Set(float64(l.open))
	c.quiet = l.quiet.PushBack(c)
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

// setActive records whether a connection has a request.
func (l *connections) setActive(c *connection, active bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.gone:
	case active && c.quiet != nil:
		l.quiet.Remove(c.quiet)
		c.quiet = nil
	case !active && c.quiet == nil:
		c.quiet = l.quiet.PushBack(c)
		l.freed.Signal()
	}
}

// forget removes a connection that ends, also if net/http closes the connection twice. The caller holds the
// lock.
func (l *connections) forget(c *connection) {
	if c.gone {
		return
	}
	c.gone = true
	if c.quiet != nil {
		l.quiet.Remove(c.quiet)
	}
	l.open--
	l.server.metrics.connections.Set(float64(l.open))
	l.freed.Signal()
}
