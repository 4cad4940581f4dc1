package ingress

import (
	"container/list"
	"crypto/tls"
	"net"
	"sync"
)

// connections is a listener that limits the open connections. At the limit a new one replaces the one that is the
// longest without a request: it is idle, or has sent nothing or a part of a head. If each has a request, new ones wait.
//
// Which clients have the connections is the matter of a proxy, and how long a head may take that of net/http.
type connections struct {
	net.Listener
	server *Server
	secure *tls.Config // nil without TLS

	mu     sync.Mutex
	freed  *sync.Cond // signalled when a connection ends or has no request
	open   int
	quiet  list.List // those without a request, the longest first
	closed bool
}

// limit returns a listener of the server's connections, with TLS if it has certificates.
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
		_ = victim.raw.Close() // net/http finds it closed, and closes victim
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

// setActive takes whether a connection has a request.
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

// forget removes a connection that ends; net/http may close it twice. The caller has locked l.
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
