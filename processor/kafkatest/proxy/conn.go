package proxy

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// conn is a client's connection together with the proxy's connection to the node. In each direction one goroutine
// reads frames, applies the rules and pushes each frame to a line; the goroutine of the line delivers the frames.
type conn struct {
	p              *Proxy
	node           int32
	client, broker net.Conn

	toBroker, toClient *line

	done chan struct{} // closed by cut: from then on the connection delivers no frames
	once sync.Once

	mu       sync.Mutex
	clientID string     // client id of the newest request
	pending  []*request // requests delivered to the node that have no response yet, in order
	answered *sync.Cond // signalled when pending has become shorter; uses mu
}

func newConn(p *Proxy, node int32, client, broker net.Conn) *conn {
	c := &conn{p: p, node: node, client: client, broker: broker, toBroker: newLine(), toClient: newLine(), done: make(chan struct{})}
	c.answered = sync.NewCond(&c.mu)
	return c
}

// serve forwards frames until the connection ends.
func (c *conn) serve() {
	var wg sync.WaitGroup
	wg.Go(c.readRequests)
	wg.Go(c.readResponses)
	wg.Go(func() { c.toBroker.run(c.done) })
	wg.Go(func() { c.toClient.run(c.done) })
	wg.Wait()
	c.cut(false)
}

// cut closes both sides at once and drops the frames that are on their way.
func (c *conn) cut(reset bool) {
	c.once.Do(func() {
		close(c.done)
		c.mu.Lock()
		pending := c.pending
		c.pending = nil
		c.mu.Unlock()
		c.answered.Broadcast()
		for _, r := range pending {
			if r.held != nil {
				recordLate(r, nil, fmt.Errorf("the connection to node %d ended before the response", c.node))
			}
		}
		closeConn(c.client, reset)
		closeConn(c.broker, reset)
	})
}

// closeConn closes a connection by RST if reset is set, else by FIN. It ignores errors, because the other side may
// already have closed the connection.
func closeConn(conn net.Conn, reset bool) {
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		tcp.SetLinger(0) //nolint:errcheck // it fails only on a closed connection.
	}
	conn.Close() //nolint:errcheck // no more writes follow.
}

// id returns the client id of the newest request; "" before the first request.
func (c *conn) id() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clientID
}

// readRequests reads the client's requests until the client ends the connection.
func (c *conn) readRequests() {
	for {
		frame, err := readFrame(c.client)
		var r *request
		if err == nil {
			r, err = parseRequest(frame)
		}
		if err != nil {
			c.p.reportFrame(c, "client", err)
			c.pushEnd(c.toBroker, ToBroker, c.endRequests)
			return
		}
		c.mu.Lock()
		c.clientID = r.clientID
		c.mu.Unlock()
		v := c.p.judge(c.node, r, ToBroker)
		if !c.toBroker.push(item{gates: v.gates, do: c.delivery(r, v)}, v.delay) {
			return
		}
	}
}

// delivery returns the action that the line executes when the request is due.
func (c *conn) delivery(r *request, v verdict) func() error {
	deliver := func() error { return c.deliver(r, v.limits) }
	if v.fate == nil {
		return deliver
	}
	switch rule := v.fate.rule; rule.Action {
	case DropRequest:
		return func() error { c.cut(rule.Reset); return errStopped }
	case HoldRequest:
		return func() error { return c.hold(r, v.fate) }
	case Refuse:
		return func() error { return c.refuse(r, v.fate) }
	default: // DuplicateRequest
		again := *r
		again.duplicate = true
		return func() error {
			if err := deliver(); err != nil {
				return err
			}
			return c.deliver(&again, v.limits)
		}
	}
}

// deliver writes a request to the node.
func (c *conn) deliver(r *request, limits []*Fault) error {
	if r.answered() {
		c.mu.Lock()
		if c.closed() {
			c.mu.Unlock()
			return errStopped
		}
		c.pending = append(c.pending, r)
		c.mu.Unlock()
	}
	if err := write(c.broker, r.frame, limits, c.done); err != nil {
		return err // the connection to the node ended; readResponses notices that too
	}
	c.p.passed(r.key)
	return nil
}

// endRequests handles a client that has disconnected: after its last request, the proxy closes its sending side of
// the connection to the node. The node then still responds to the delivered requests before it closes its own side.
func (c *conn) endRequests() error {
	if half, ok := c.broker.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		return errStopped
	}
	c.cut(false)
	return errStopped
}

// hold closes the client's side of the connection and delivers the request to the node later. It runs in the line to
// the node, after the requests that were delivered before; no request follows it on this connection.
func (c *conn) hold(r *request, f *Fault) error {
	closeConn(c.client, f.rule.Reset)
	r.held = &held{fault: f}
	var timeout <-chan time.Time
	if f.rule.Delay > 0 {
		timer := time.NewTimer(f.rule.Delay)
		defer timer.Stop()
		timeout = timer.C
	}
	var err error
	select {
	case <-timeout:
	case <-f.rule.Release:
	case <-f.removed:
		err = fmt.Errorf("rule %s was removed while the request was held", f.Name())
	case <-c.done:
		err = fmt.Errorf("the connection to node %d ended while the request was held", c.node)
	}
	if err == nil {
		if err = c.deliver(r, nil); err == nil {
			return errStopped
		}
		err = fmt.Errorf("deliver the held request to node %d: %w", c.node, err)
	}
	recordLate(r, nil, err)
	c.cut(false)
	return errStopped
}

// recordLate records how a held request ended.
func recordLate(r *request, resp kmsg.Response, err error) {
	r.held.once.Do(func() {
		f := r.held.fault
		req, decodeErr := r.decode()
		if decodeErr != nil {
			f.failed(decodeErr)
		}
		f.ended(Late{Request: req, Response: resp, Err: err})
	})
}

// refuse responds to a request in place of the node, and waits until the node's responses to earlier requests have
// been read, so that the responses keep their order.
func (c *conn) refuse(r *request, f *Fault) error {
	req, err := r.decode()
	if err != nil {
		f.failed(err)
		return c.deliver(r, nil)
	}
	c.mu.Lock()
	for len(c.pending) > 0 { // cut empties pending
		c.answered.Wait()
	}
	c.mu.Unlock()
	resp := refusal(req, f.rule.Error)
	c.passBack(r, encodeResponse(r.responseHeader(resp), resp))
	return nil
}

func (c *conn) closed() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// readResponses reads the node's responses until the node ends the connection.
func (c *conn) readResponses() {
	for {
		frame, err := readFrame(c.broker)
		if err != nil {
			c.p.reportFrame(c, "node", err)
			if !c.pushEnd(c.toClient, ToClient, func() error { c.cut(false); return errStopped }) {
				c.cut(false)
			}
			return
		}
		r, err := c.match(frame)
		if errors.Is(err, errStopped) {
			return
		}
		if err != nil {
			c.p.reportFrame(c, "node", err)
			c.cut(false)
			return
		}
		if r.held != nil {
			resp, _, err := r.decodeResponse(frame)
			recordLate(r, resp, err)
			c.cut(false)
			return
		}
		if !r.duplicate {
			c.passBack(r, frame)
		}
		c.dropOldest()
	}
}

// passBack pushes a response to the line to the client.
func (c *conn) passBack(r *request, frame []byte) {
	v := c.p.judge(c.node, r, ToClient)
	var do func() error
	if v.fate != nil { // DropResponse
		do = func() error { c.cut(v.fate.rule.Reset); return errStopped }
	} else {
		frame := c.patched(r, frame, v.patches)
		do = func() error { return write(c.client, frame, v.limits, c.done) }
	}
	// A line that has stopped has no client any more. The proxy still reads the node's other responses, because a
	// held request may wait for its own.
	c.toClient.push(item{gates: v.gates, do: do}, v.delay)
}

// patched returns the frame of a response with the changes of the patches.
func (c *conn) patched(r *request, frame []byte, patches []*Fault) []byte {
	for _, f := range patches {
		resp, body, err := r.decodeResponse(frame)
		if err != nil {
			f.failed(err)
			continue
		}
		if f.rule.Patch != nil {
			f.rule.Patch(resp)
		} else {
			setError(resp, f.rule.Error)
		}
		frame = encodeResponse(frame[:body], resp)
	}
	return frame
}

// match returns the request that a response belongs to: the oldest pending request, because a node responds in order.
// The request stays in pending until dropOldest removes it. After cut has emptied pending, match returns errStopped:
// the response had been read before the connection was cut.
func (c *conn) match(frame []byte) (*request, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed() {
		return nil, errStopped
	}
	id := correlationOf(frame)
	if len(c.pending) == 0 || c.pending[0].correlation != id {
		return nil, &frameError{fmt.Errorf("a response with the correlation id %d out of order", id)}
	}
	return c.pending[0], nil
}

// dropOldest removes the oldest request from pending. Its response must already be in the line.
func (c *conn) dropOldest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) > 0 {
		c.pending = slices.Delete(c.pending, 0, 1)
	}
	c.answered.Broadcast()
}

// pushEnd pushes the end of one direction after the frames of that direction, and reports whether the line accepted
// it. A blackhole delays the end as it delays frames.
func (c *conn) pushEnd(l *line, way Direction, end func() error) bool {
	do := func() error {
		for {
			gates := c.p.blackholes(c.node, c.id(), way)
			if len(gates) == 0 {
				return end()
			}
			if !passGates(gates, c.done) {
				return errStopped
			}
		}
	}
	return l.push(item{do: do}, 0)
}
