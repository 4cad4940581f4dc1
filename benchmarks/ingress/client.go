//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"oncebus/processor/kafkatest"
)

// client sends requests on a fixed number of kept-alive HTTP/1.1 connections, one request at a time on each. It
// shares two cores with the measured server, so it does as little as possible: it writes a request at once from
// prepared bytes, in which it changes only the number and the signature, and it reads a response at once and parses
// only the status and the length.
type client struct {
	event  func(n int) int // returns the number of the event in request n
	loop   func() (n int, ok bool)
	answer func(n, status int)
	fail   func(error)

	wg     sync.WaitGroup
	closed atomic.Bool
	all    []*connection

	mu     sync.Mutex
	idle   []*connection // used from the end
	queue  []int         // requests that are due and wait for a connection
	waited int           // how many requests have been in queue
}

// connection is one connection with at most one request in flight.
type connection struct {
	net    net.Conn
	number atomic.Int64 // number of the request in flight
	in     []byte

	// The response to a request may be read before the Write of the request has returned. mu makes the next
	// request wait until that Write has returned.
	mu      sync.Mutex
	request *request
}

// dial opens the connections. Each connection's goroutine calls answer with each response, and fail with the error
// that ends the run.
func dial(ctx context.Context, addr string, connections int, event func(n int) int, answer func(n, status int), fail func(error)) (*client, error) {
	c := &client{event: event, answer: answer, fail: fail}
	var dialer net.Dialer
	for range connections {
		conn, err := dialer.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open connection %d of %d: %w", len(c.all)+1, connections, err), c.close())
		}
		k := &connection{net: conn, request: newRequest(), in: make([]byte, responseMax)}
		c.all = append(c.all, k)
		c.idle = append(c.idle, k)
		c.wg.Go(func() { c.read(k) })
	}
	return c, nil
}

// close ends all connections and waits for their goroutines.
func (c *client) close() error {
	c.closed.Store(true)
	var errs []error
	for _, k := range c.all {
		errs = append(errs, k.net.Close())
	}
	c.wg.Wait()
	return errors.Join(errs...)
}

// submit sends request n, at once if a connection is free.
func (c *client) submit(n int) {
	c.mu.Lock()
	last := len(c.idle) - 1
	if last < 0 {
		c.queue = append(c.queue, n)
		c.waited++
		c.mu.Unlock()
		return
	}
	k := c.idle[last]
	c.idle = c.idle[:last]
	c.mu.Unlock()
	c.send(k, n)
}

// run makes every free connection send the requests that loop returns, one after the other. When loop returns false,
// the connection is free again.
func (c *client) run(loop func() (n int, ok bool)) {
	c.mu.Lock()
	c.loop = loop
	free := c.idle
	c.idle = make([]*connection, 0, len(c.all))
	c.mu.Unlock()
	for _, k := range free {
		if n, ok := c.next(k); ok {
			c.send(k, n)
		}
	}
}

// next returns the next request for connection k. If there is none, k becomes free.
func (c *client) next(k *connection) (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loop != nil {
		if n, ok := c.loop(); ok {
			return n, true
		}
	}
	if len(c.queue) > 0 {
		n := c.queue[0]
		c.queue = c.queue[1:]
		return n, true
	}
	c.idle = append(c.idle, k)
	return 0, false
}

// rest waits until no request is in flight.
func (c *client) rest(ctx context.Context) error {
	return kafkatest.Await(ctx, "no request is in flight", func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := len(c.all) - len(c.idle); n > 0 {
			return fmt.Errorf("%d connections wait for a response", n)
		}
		return nil
	})
}

func (c *client) send(k *connection, n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.number.Store(int64(n))
	if _, err := k.net.Write(k.request.of(c.event(n))); err != nil && !c.closed.Load() {
		c.fail(fmt.Errorf("send request %d: %w", n, err))
	}
}

// read reads the responses of one connection until it is closed.
func (c *client) read(k *connection) {
	for {
		status, err := k.readResponse()
		if err != nil {
			if !c.closed.Load() {
				c.fail(fmt.Errorf("read the response to request %d: %w", k.number.Load(), err))
			}
			return
		}
		c.answer(int(k.number.Load()), status)
		if n, ok := c.next(k); ok {
			c.send(k, n)
		}
	}
}

// responseMax is the maximum size of a response, head and body, in bytes.
const responseMax = 4096

var (
	headEnd       = []byte("\r\n\r\n")
	lineEnd       = []byte("\r\n")
	contentLength = []byte("content-length:")
)

// readResponse reads one response and returns its status. No bytes may follow the response, because the next request
// has not been sent.
func (k *connection) readResponse() (status int, err error) {
	have, need := 0, -1
	for need < 0 || have < need {
		if have == len(k.in) {
			return 0, fmt.Errorf("it has more than %d bytes", responseMax)
		}
		n, err := k.net.Read(k.in[have:])
		have += n
		if need < 0 {
			var parseErr error
			if status, need, parseErr = parseHead(k.in[:have]); parseErr != nil {
				return 0, parseErr
			}
		}
		if err != nil && (need < 0 || have < need) {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
	}
	if have > need {
		return 0, fmt.Errorf("%d bytes follow it", have-need)
	}
	return status, nil
}

// parseHead returns the status and the total length of a response. The length is -1 as long as the head is
// incomplete.
func parseHead(in []byte) (status, length int, err error) {
	head, _, whole := bytes.Cut(in, headEnd)
	if !whole {
		return 0, -1, nil
	}
	line, rest, _ := bytes.Cut(head, lineEnd)
	const before = len("HTTP/1.1 ")
	if len(line) < before+3 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return 0, 0, fmt.Errorf("%q is not a status line", line)
	}
	if status, err = strconv.Atoi(string(line[before : before+3])); err != nil {
		return 0, 0, fmt.Errorf("%q is not a status line", line)
	}
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, lineEnd)
		if len(line) < len(contentLength) || !bytes.EqualFold(line[:len(contentLength)], contentLength) {
			continue
		}
		n, err := strconv.Atoi(string(bytes.TrimSpace(line[len(contentLength):])))
		if err != nil || n < 0 {
			return 0, 0, fmt.Errorf("%q is not a length", line)
		}
		return status, len(head) + len(headEnd) + n, nil
	}
	return 0, 0, fmt.Errorf("a response of status %d has no Content-Length", status)
}

// response is the response to a request. Times count from the start of the schedule.
type response struct {
	status   int           // 0: none
	due, got time.Duration // when it was due, when its response arrived
}

// responses has the responses to all requests of a run, by the number of the request. Each response is written once,
// by one goroutine.
type responses struct {
	list  []response
	left  atomic.Int64
	whole chan struct{} // closed when no response is missing
}

func newResponses(requests int) *responses { return &responses{list: make([]response, requests)} }

// expect sets how many responses must arrive before whole is closed. Call it before the first request is due.
func (a *responses) expect(n int) {
	a.left.Store(int64(n))
	a.whole = make(chan struct{})
}

// take records a response.
func (a *responses) take(n, status int, due, got time.Duration) {
	a.list[n] = response{status, due, got}
	if a.left.Add(-1) == 0 {
		close(a.whole)
	}
}
