//go:build unix

package main_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"golang.org/x/time/rate"

	"oncebus/processor/kafkatest/embedded"
)

// gate is the network in front of an embedded broker: its port closes as if the broker had stopped, and opens again, and what the
// broker sends can be slowed down.
type gate struct {
	t    *testing.T
	addr string

	mu      sync.Mutex
	changed *sync.Cond
	inner   net.Listener // nil while the port is closed
	conns   map[net.Conn]bool
	ended   bool

	perSecond atomic.Int64 // bytes that each connection gets; 0 for no limit
}

// startGated starts an embedded broker behind a gate.
func startGated(t *testing.T) (*embedded.Cluster, *gate) {
	t.Helper()
	g := &gate{t: t, conns: map[net.Conn]bool{}}
	g.changed = sync.NewCond(&g.mu)
	cluster := embedded.Start(t, kfake.ListenFn(func(network, address string) (net.Listener, error) {
		inner, err := net.Listen(network, address) //nolint:noctx // the cluster closes it
		if err == nil {
			g.inner, g.addr = inner, inner.Addr().String()
		}
		return g, err
	}))
	return cluster, g
}

// Accept implements net.Listener. It waits while the port is closed.
func (g *gate) Accept() (net.Conn, error) {
	for {
		g.mu.Lock()
		for g.inner == nil && !g.ended {
			g.changed.Wait()
		}
		inner, ended := g.inner, g.ended
		g.mu.Unlock()
		if ended {
			return nil, net.ErrClosed
		}
		conn, err := inner.Accept()
		if err != nil {
			continue // the port was closed
		}
		g.mu.Lock()
		if g.inner == inner {
			g.conns[conn] = true
			g.mu.Unlock()
			return &gatedConn{conn, g, rate.NewLimiter(rate.Inf, gatePiece)}, nil
		}
		g.mu.Unlock()
		_ = conn.Close() // accepted while the port was closed
	}
}

// Addr implements net.Listener.
func (g *gate) Addr() net.Addr {
	addr, err := net.ResolveTCPAddr("tcp", g.addr)
	if err != nil {
		g.t.Error(err)
	}
	return addr
}

// Close implements net.Listener.
func (g *gate) Close() error {
	g.stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	g.changed.Broadcast()
	return nil
}

// stop closes the port and every connection.
func (g *gate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inner != nil {
		_ = g.inner.Close() // ends Accept
		g.inner = nil
	}
	for conn := range g.conns {
		_ = conn.Close() // what was in flight is lost, as at a crash
	}
	clear(g.conns)
}

// start opens the port again.
func (g *gate) start() {
	g.t.Helper()
	inner, err := net.Listen("tcp", g.addr) //nolint:noctx // stop closes it
	if err != nil {
		g.t.Fatal(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inner = inner
	g.changed.Broadcast()
}

// gatedConn is a connection to the broker.
type gatedConn struct {
	net.Conn

	gate *gate
	rate *rate.Limiter // of bytes, while the gate has a rate
}

// gatePiece is how many bytes pass a slow gate at a time.
const gatePiece = 4 << 10

// Write implements net.Conn. It writes at the rate of the gate.
func (c *gatedConn) Write(p []byte) (written int, err error) {
	for written < len(p) && err == nil {
		if perSecond := c.gate.perSecond.Load(); perSecond > 0 {
			c.rate.SetLimit(rate.Limit(perSecond))
		} else {
			c.rate.SetLimit(rate.Inf)
		}
		piece := p[written:min(len(p), written+gatePiece)]
		if err = c.rate.WaitN(context.Background(), len(piece)); err == nil {
			var n int
			n, err = c.Conn.Write(piece)
			written += n
		}
	}
	return written, err
}

// Close implements net.Conn.
func (c *gatedConn) Close() error {
	c.gate.mu.Lock()
	delete(c.gate.conns, c.Conn)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}
