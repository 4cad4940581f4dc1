package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// tcpNode is a node at a socket. It responds to every request, and sends the
// correlation id of each to got, and 0 for the end of a connection.
func tcpNode(t *testing.T) (addr string, got <-chan int32) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ids := make(chan int32, 100)
	done := make(chan struct{})
	t.Cleanup(func() {
		closeQuietly(l)
		<-done
	})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(t.Context(), func() { closeQuietly(conn) }) // before the test's cleanups
			for {
				frame, err := readFrame(conn)
				if err != nil {
					break
				}
				r, err := parseRequest(frame)
				if err != nil {
					t.Error(err)
					break
				}
				resp := kmsg.ResponseForKey(r.key)
				resp.SetVersion(r.version)
				if _, err := conn.Write(encodeResponse(r.responseHeader(resp), resp)); err != nil {
					break
				}
				ids <- r.correlation
			}
			stop()
			closeQuietly(conn)
			ids <- 0
		}
	}()
	return l.Addr().String(), ids
}

func open(t *testing.T, nodes int) *Proxy {
	t.Helper()
	p, err := Listen(t.Context(), nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

func dialTCP(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeQuietly(conn) })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// ask sends a heartbeat with the correlation id and reads its response, or returns the error.
func ask(t *testing.T, conn net.Conn, id int32) error {
	t.Helper()
	if _, err := conn.Write(frameOf(heartbeat("g"), "app-one", id)); err != nil {
		return err
	}
	frame, err := readFrame(conn)
	if err == nil && correlationOf(frame) != id {
		t.Errorf("response to %d, asked %d", correlationOf(frame), id)
	}
	return err
}

// TestNodes: each listener connects to its own node, early clients wait, and a rule
// for one node does not affect the other.
func TestNodes(t *testing.T) {
	p := open(t, 2)
	early := dialTCP(t, p.Addrs()[1])
	addr1, got1 := tcpNode(t)
	addr2, got2 := tcpNode(t)
	if err := p.Forward([]string{addr1}); err == nil {
		t.Error("one address for two nodes is no error")
	}
	f, err := p.Add(Rule{Match: Match{Node: 1}, Action: DropResponse})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Forward([]string{addr1, addr2}); err != nil {
		t.Fatal(err)
	}
	if err := ask(t, early, 21); err != nil {
		t.Error(err)
	}
	if err := ask(t, dialTCP(t, p.Addrs()[0]), 11); !errors.Is(err, io.EOF) {
		t.Errorf("error %v from the node whose responses are dropped", err)
	}
	if id1, id2 := <-got1, <-got2; id1 != 11 || id2 != 21 || f.Struck() != 1 || p.Connections() != 2 {
		t.Errorf("the nodes got %d and %d, %d strikes, %d connections", id1, id2, f.Struck(), p.Connections())
	}
}

// TestCutAndReset: a client sees a cut with reset as a reset, else as the end of the
// stream. Other clients are not cut.
func TestCutAndReset(t *testing.T) {
	p := open(t, 1)
	addr, _ := tcpNode(t)
	if err := p.Forward([]string{addr}); err != nil {
		t.Fatal(err)
	}
	for reset, want := range map[bool]error{false: io.EOF, true: syscall.ECONNRESET} {
		conn := dialTCP(t, p.Addrs()[0])
		if err := ask(t, conn, 1); err != nil {
			t.Fatal(err)
		}
		if n := p.Cut(Match{ClientID: "other"}, reset); n != 0 {
			t.Errorf("cut %d connections of an unknown client", n)
		}
		if n := p.Cut(Match{ClientID: "app"}, reset); n != 1 {
			t.Errorf("cut %d connections", n)
		}
		if _, err := readFrame(conn); !errors.Is(err, want) {
			t.Errorf("reset %v: error %v, want %v", reset, err, want)
		}
	}
}

// TestHalfClose: the request of a client that closes at once after it is delivered.
func TestHalfClose(t *testing.T) {
	p := open(t, 1)
	addr, got := tcpNode(t)
	if err := p.Forward([]string{addr}); err != nil {
		t.Fatal(err)
	}
	conn := dialTCP(t, p.Addrs()[0])
	if _, err := conn.Write(frameOf(endTxn("t", true), "app-one", 5)); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if id, end := <-got, <-got; id != 5 || end != 0 {
		t.Errorf("the node got %d, %d", id, end)
	}
}

// TestHalfCloseKeepsAnswers: a client that closes only its sending side gets its
// responses.
func TestHalfCloseKeepsAnswers(t *testing.T) {
	p := open(t, 1)
	addr, _ := tcpNode(t)
	if err := p.Forward([]string{addr}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Add(Rule{Action: DelayResponse, Delay: 200 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	conn := dialTCP(t, p.Addrs()[0])
	if _, err := conn.Write(frameOf(endTxn("t", true), "app-one", 5)); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if frame, err := readFrame(conn); err != nil || correlationOf(frame) != 5 {
		t.Errorf("read %v, %v", frame, err)
	}
}

// TestNodeDown: the connection to a stopped node fails, as without a proxy. It
// succeeds once the node runs again, also at another address.
func TestNodeDown(t *testing.T) {
	p := open(t, 1)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Forward([]string{l.Addr().String()}); err != nil {
		t.Fatal(err)
	}
	// Depending on timing, the client gets the reset during its dial or after it.
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addrs()[0])
	if err == nil {
		err = ask(t, conn, 1)
		closeQuietly(conn)
	}
	if err == nil {
		t.Error("a response from a node that is down")
	}
	addr, _ := tcpNode(t)
	if err := p.Forward([]string{addr}); err != nil {
		t.Fatal(err)
	}
	if err := ask(t, dialTCP(t, p.Addrs()[0]), 1); err != nil {
		t.Error(err)
	}
}
