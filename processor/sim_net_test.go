//go:build synctests

package processor_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafka"
)

// simNet is the network between one instance and the brokers. It knows where a request begins and ends, so that it
// can lose, hold back or alter single requests: "applied, but the answer was lost" is a rule here and not an
// accident.
type simNet struct {
	dialer  func(context.Context, string, string) (net.Conn, error)
	latency time.Duration // of every request
	open    sync.WaitGroup

	mu    sync.Mutex // never held while anybody waits
	gone  bool       // no connection, and none to be had
	thaw  chan struct{}
	conns map[*simConn]bool
	rules []*netRule

	// instant and frames find a client that asks again and again without virtual time going by.
	instant time.Time
	frames  map[kmsg.Key]int
}

// framesInAnInstant is how many requests one instance may send without virtual time going by. Virtual time goes by
// only while all goroutines wait.
const framesInAnInstant = 20_000

// unansweredDial is how long it takes to find out that nothing answers.
const unansweredDial = 2 * time.Second

// refusedDial is how long a refused connection takes: enough for virtual time to go by, and too little to cost the
// run.
const refusedDial = 20 * time.Millisecond

// netDo is what a rule does to a request of its kind, or to the answer.
type netDo uint8

const (
	loseRequest netDo = iota // the connection is cut before the broker has it
	loseAnswer               // the broker has applied it, the connection is cut
	holdRequest              // the connection is cut, the broker gets it later
	delayAnswer              // the answer takes its time
	alterAnswer              // the answer is changed
)

// A netRule does something to the next requests of one kind.
type netRule struct {
	key   kmsg.Key
	do    netDo
	delay time.Duration
	alter func(kmsg.Response)
	left  int
	hits  int
}

func newSimNet(dialer func(context.Context, string, string) (net.Conn, error), latency time.Duration) *simNet {
	return &simNet{dialer: dialer, latency: latency, conns: map[*simConn]bool{}, frames: map[kmsg.Key]int{}}
}

func (n *simNet) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	// The errors are the kernel's, so that clients see errors that they know. They take time, because a client that
	// asks again at once would otherwise do so for ever.
	if err := n.passable(ctx); err != nil {
		_ = kafka.Pause(ctx, unansweredDial)
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ETIMEDOUT)}
	}
	broker, err := n.dialer(ctx, network, addr)
	if err != nil {
		// When the connection for AddPartitionsToTxn is refused, franz-go asks for the coordinator and dials again at
		// once, without end (sink.produce).
		_ = kafka.Pause(ctx, refusedDial)
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	client, near := net.Pipe()
	c := &simConn{n: n, near: near, broker: broker}
	n.mu.Lock()
	n.conns[c] = true
	n.mu.Unlock()
	n.open.Go(c.up)
	n.open.Go(c.down)
	return clientEnd{client}, nil
}

// clientEnd is a client's end of a connection, which fails as a socket does.
type clientEnd struct{ net.Conn }

func (w clientEnd) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)}
	}
	return n, err
}

// passable waits while the network is frozen, and fails while it is gone.
func (n *simNet) passable(ctx context.Context) error {
	for {
		n.mu.Lock()
		thaw, gone := n.thaw, n.gone
		n.mu.Unlock()
		switch {
		case gone:
			return errors.New("sim: network is cut")
		case thaw == nil:
			return nil
		}
		select {
		case <-thaw:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// cut closes all connections. What is in flight is lost.
func (n *simNet) cut(forGood bool) {
	n.mu.Lock()
	n.gone = n.gone || forGood
	conns := n.conns
	n.conns = map[*simConn]bool{}
	n.mu.Unlock()
	for c := range conns {
		c.close()
	}
}

// freeze stops all traffic without closing a connection. What is in flight arrives when mend is called, whether or
// not its sender still waits.
func (n *simNet) freeze() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.thaw == nil {
		n.thaw = make(chan struct{})
	}
}

func (n *simNet) mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone = false
	if n.thaw != nil {
		close(n.thaw)
		n.thaw = nil
	}
}

func (n *simNet) arm(r *netRule) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules = append(n.rules, r)
}

// disarm ends a rule and reports whether the rule ever took effect.
func (n *simNet) disarm(r *netRule) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	r.left = 0
	return r.hits > 0
}

// meet returns the rule that applies to a request, if any.
func (n *simNet) meet(key kmsg.Key) *netRule {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := time.Now(); !now.Equal(n.instant) {
		n.instant = now
		clear(n.frames)
	}
	if n.frames[key]++; n.frames[key] > framesInAnInstant {
		panic(fmt.Sprintf("sim: requests of one instance in one instant: %v", n.frames))
	}
	for _, r := range n.rules {
		if r.key == key && r.left > 0 {
			r.left--
			r.hits++
			return r
		}
	}
	return nil
}

// simConn is one connection: near is the client's end, broker is the broker's end.
type simConn struct {
	n            *simNet
	near, broker net.Conn

	mu    sync.Mutex
	asked []asked // requests the broker has, in order; it answers in order
}

// asked is what must be known of a request to read its answer.
type asked struct {
	key     kmsg.Key
	version int16
	rule    *netRule
}

func (c *simConn) close() {
	_ = c.near.Close() // it is cut, whatever state it was in
	_ = c.broker.Close()
}

func readFrame(from io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, 4+binary.BigEndian.Uint32(size[:]))
	copy(frame, size[:])
	_, err := io.ReadFull(from, frame[4:])
	return frame, err
}

// up carries requests to the broker.
func (c *simConn) up() {
	defer c.close()
	for {
		frame, err := readFrame(c.near)
		if err != nil {
			return
		}
		// Virtual time moves only while all goroutines wait, so without any latency a client that asks again at once
		// would do so for ever.
		if c.n.latency > 0 {
			_ = kafka.Pause(context.Background(), c.n.latency)
		}
		if c.n.passable(context.Background()) != nil {
			return
		}
		a := asked{key: kmsg.Key(binary.BigEndian.Uint16(frame[4:])), version: int16(binary.BigEndian.Uint16(frame[6:]))}
		a.rule = c.n.meet(a.key)
		if a.rule != nil && a.rule.do == loseRequest {
			return
		}
		c.mu.Lock()
		c.asked = append(c.asked, a)
		c.mu.Unlock()
		if a.rule != nil && a.rule.do == holdRequest {
			_ = c.near.Close() // the client thinks what it thinks
			_ = kafka.Pause(context.Background(), a.rule.delay)
			_, _ = c.broker.Write(frame) // late, and no caller waits for the answer
			return
		}
		if _, err := c.broker.Write(frame); err != nil {
			return
		}
	}
}

// down carries answers. After the client has gone it reads on, so that no answer that the client does not read blocks
// the broker.
func (c *simConn) down() {
	defer c.close()
	for {
		frame, err := readFrame(c.broker)
		if err != nil {
			return
		}
		c.mu.Lock()
		a := c.asked[0]
		c.asked = c.asked[1:]
		c.mu.Unlock()
		if a.rule != nil {
			switch a.rule.do {
			case loseAnswer:
				return
			case delayAnswer:
				_ = kafka.Pause(context.Background(), a.rule.delay)
			case alterAnswer:
				frame = altered(frame, a)
			}
		}
		if c.n.passable(context.Background()) != nil {
			return
		}
		_, _ = c.near.Write(frame) // it may be gone
	}
}

// altered returns an answer after its rule has changed it.
func altered(frame []byte, a asked) []byte {
	resp := a.key.Response()
	resp.SetVersion(a.version)
	b := kbin.Reader{Src: frame[8:]}
	if resp.IsFlexible() && a.key != kmsg.ApiVersions {
		kmsg.SkipTags(&b)
	}
	if err := resp.ReadFrom(b.Src); err != nil {
		panic(fmt.Sprintf("sim: answer to %v version %d: %v", a.key, a.version, err))
	}
	a.rule.alter(resp)
	out := append([]byte(nil), frame[:8]...)
	if resp.IsFlexible() && a.key != kmsg.ApiVersions {
		out = append(out, 0)
	}
	out = resp.AppendTo(out)
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	return out
}

// failing returns a change to an answer: the answer says err wherever it said that something was done. The broker has
// done it and does not know.
func failing(err *kerr.Error) func(kmsg.Response) {
	return func(resp kmsg.Response) { failEach(reflect.ValueOf(resp).Elem(), err.Code) }
}

func failEach(v reflect.Value, code int16) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Name == "ErrorCode" {
				v.Field(i).SetInt(int64(code))
			} else {
				failEach(v.Field(i), code)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			failEach(v.Index(i), code)
		}
	}
}

// dropOffsets changes the answer to an offset fetch as a coordinator does that has not yet read all of its log: the
// answer has no offset, and no error (B7).
func dropOffsets(resp kmsg.Response) {
	for g := range resp.(*kmsg.OffsetFetchResponse).Groups {
		group := &resp.(*kmsg.OffsetFetchResponse).Groups[g]
		for t := range group.Topics {
			for p := range group.Topics[t].Partitions {
				at := &group.Topics[t].Partitions[p]
				at.Offset, at.LeaderEpoch, at.Metadata = -1, -1, nil
			}
		}
	}
}
