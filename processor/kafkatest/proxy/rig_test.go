package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// rig is a proxy without sockets, for tests in virtual time: it stands between clients that write frames and a node
// that responds. Transfers take no virtual time.
type rig struct {
	t     *testing.T
	proxy *Proxy

	mu     sync.Mutex
	answer func(kmsg.Request) kmsg.Response // a nil response is not sent; called while the lock is held
	seen   []arrival
	nodes  []net.Conn // the node's ends
}

// arrival is a request that the node received.
type arrival struct {
	at      time.Duration // since the rig's start
	request kmsg.Request
	client  string
}

// success returns the response of a node that has executed the request.
func success(req kmsg.Request) kmsg.Response {
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	return resp
}

// inBubble runs a test with a rig in a synctest bubble, that is in virtual time. At the end of the test no goroutine
// may run any more, and the proxy must have seen no protocol error.
func inBubble(t *testing.T, test func(t *testing.T, g *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p, err := Listen(t.Context(), 0, WithSeed(1))
		if err != nil {
			t.Fatal(err)
		}
		g := &rig{t: t, proxy: p, answer: success}
		test(t, g)
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

func (g *rig) add(rule Rule) *Fault {
	g.t.Helper()
	f, err := g.proxy.Add(rule)
	if err != nil {
		g.t.Fatal(err)
	}
	return f
}

// arrivals returns the requests that the node has received. It first waits until every goroutine of the bubble is
// idle.
func (g *rig) arrivals() []arrival {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]arrival(nil), g.seen...)
}

// answerWith changes the node's responses.
func (g *rig) answerWith(answer func(kmsg.Request) kmsg.Response) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer = answer
}

// killNode closes the node's end of every connection.
func (g *rig) killNode() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, conn := range g.nodes {
		closeQuietly(conn)
	}
}

// node is the program of the node at its end of a connection; the proxy has the other end.
func (g *rig) node(conn net.Conn, start time.Time) {
	defer closeQuietly(conn)
	for {
		frame, err := readFrame(conn)
		if err != nil {
			return
		}
		r, err := parseRequest(frame)
		if err != nil {
			g.t.Errorf("node: %v", err)
			return
		}
		req, err := r.decode()
		if err != nil {
			g.t.Errorf("node: %v", err)
			return
		}
		g.mu.Lock()
		g.seen = append(g.seen, arrival{time.Since(start), req, r.clientID})
		resp := g.answer(req)
		g.mu.Unlock()
		if resp != nil && r.answered() {
			if _, err := conn.Write(encodeResponse(r.responseHeader(resp), resp)); err != nil {
				return
			}
		}
	}
}

// client is one connection of a client.
type client struct {
	g     *rig
	id    string
	conn  net.Conn
	start time.Time
	next  int32
}

// connect opens a client's connection to the node with the number 1.
func (g *rig) connect(id string) *client {
	near, far := net.Pipe()
	upstream, node := net.Pipe()
	start := time.Now()
	g.mu.Lock()
	g.nodes = append(g.nodes, node)
	g.mu.Unlock()
	g.proxy.running.Go(func() { g.proxy.carry(newConn(g.proxy, 1, far, upstream)) })
	go g.node(node, start)
	c := &client{g: g, id: id, conn: near, start: start}
	g.t.Cleanup(func() { closeQuietly(near) })
	return c
}

// send writes a request and returns its correlation id.
func (c *client) send(req kmsg.Request) int32 {
	c.g.t.Helper()
	c.next++
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID(c.id)).AppendRequest(nil, req, c.next)
	if _, err := c.conn.Write(frame); err != nil {
		c.g.t.Fatalf("send %s: %v", kmsg.NameForKey(req.Key()), err)
	}
	return c.next
}

// receive reads the next response, which must have the correlation id, and decodes it as the response to req.
func (c *client) receive(req kmsg.Request, id int32) kmsg.Response {
	c.g.t.Helper()
	frame, err := readFrame(c.conn)
	if err != nil {
		c.g.t.Fatalf("receive %s: %v", kmsg.NameForKey(req.Key()), err)
	}
	if got := correlationOf(frame); got != id {
		c.g.t.Fatalf("receive %s: correlation id %d, want %d", kmsg.NameForKey(req.Key()), got, id)
	}
	r := &request{key: req.Key(), version: req.GetVersion(), body: 1}
	resp, _, err := r.decodeResponse(frame)
	if err != nil {
		c.g.t.Fatal(err)
	}
	return resp
}

// ask sends a request and returns its response.
func (c *client) ask(req kmsg.Request) kmsg.Response {
	c.g.t.Helper()
	return c.receive(req, c.send(req))
}

// wantCut waits for the end of the connection and fails if a response comes instead.
func (c *client) wantCut() {
	c.g.t.Helper()
	if frame, err := readFrame(c.conn); !errors.Is(err, io.EOF) {
		c.g.t.Errorf("read %d bytes, %v; want the end of the connection", len(frame), err)
	}
}

// elapsed is the virtual time since the connection was made.
func (c *client) elapsed() time.Duration { return time.Since(c.start) }

// heartbeat and the functions below return requests in versions that current clients use.
func heartbeat(group string) *kmsg.HeartbeatRequest {
	req := kmsg.NewPtrHeartbeatRequest()
	req.SetVersion(4)
	req.Group = group
	return req
}

func endTxn(id string, commit bool) *kmsg.EndTxnRequest {
	req := kmsg.NewPtrEndTxnRequest()
	req.SetVersion(5)
	req.TransactionalID, req.Commit = id, commit
	return req
}

// produce returns a Produce request with size bytes of records.
func produce(acks int16, size int) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.SetVersion(9)
	req.Acks = acks
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic = "t"
	partition := kmsg.NewProduceRequestTopicPartition()
	partition.Records = make([]byte, size)
	topic.Partitions = append(topic.Partitions, partition)
	req.Topics = append(req.Topics, topic)
	return req
}

// frameOf returns a request's frame.
func frameOf(req kmsg.Request, clientID string, correlation int32) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID)).AppendRequest(nil, req, correlation)
}

// lengthPrefixed returns b as a frame.
func lengthPrefixed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// closeQuietly closes one end of a connection; the other end may already be closed.
func closeQuietly(c io.Closer) {
	c.Close() //nolint:errcheck // the tests look at what is read from the other end.
}

// soon limits waits, in virtual or real time.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}
