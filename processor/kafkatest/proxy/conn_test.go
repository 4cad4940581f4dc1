package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPass: without rules the proxy delivers requests and responses unchanged and in order. The test sends several
// requests at once, among them a Produce that gets no response.
func TestPass(t *testing.T) {
	inBubble(t, func(t *testing.T, g *rig) {
		c := g.connect("app-one")
		first, second := heartbeat("g1"), endTxn("t", true)
		id1 := c.send(first)
		c.send(produce(0, 100))
		id2 := c.send(second)
		c.receive(first, id1)
		c.receive(second, id2)
		got := g.arrivals()
		if len(got) != 3 || got[0].client != "app-one" || c.elapsed() != 0 {
			t.Fatalf("the node got %+v after %v", got, c.elapsed())
		}
		if end, ok := got[2].request.(*kmsg.EndTxnRequest); !ok || end.TransactionalID != "t" || !end.Commit {
			t.Errorf("the node got %+v", got[2].request)
		}
		if n := g.proxy.Requests(kmsg.EndTxn); n != 1 {
			t.Errorf("%d EndTxn requests counted", n)
		}
	})
}

// TestDrop: a request that DropRequest drops does not reach the node. If DropResponse drops the response, the request
// has reached the node. With Count 1 each rule cuts one connection.
func TestDrop(t *testing.T) {
	for action, reached := range map[Action]int{DropRequest: 0, DropResponse: 1} {
		inBubble(t, func(t *testing.T, g *rig) {
			f := g.add(Rule{Match: Match{APIs: []int16{kmsg.EndTxn.Int16()}}, Action: action, Count: 1})
			c := g.connect("app-one")
			c.ask(heartbeat("g"))
			c.send(endTxn("t", true))
			c.wantCut()
			if got := len(g.arrivals()) - 1; got != reached {
				t.Errorf("%v: %d EndTxn requests reached the node, want %d", action, got, reached)
			}
			again := g.connect("app-one")
			again.ask(endTxn("t", true))
			if err := f.Wait(soon(t), 1); err != nil || f.Struck() != 1 {
				t.Errorf("%v: struck %d times, %v", action, f.Struck(), err)
			}
		})
	}
}

// TestDelay: a delay is latency, not a limit on the rate. Frames keep their order, and frames that a client sends
// together arrive together.
func TestDelay(t *testing.T) {
	inBubble(t, func(t *testing.T, g *rig) {
		g.add(Rule{Match: Match{APIs: []int16{kmsg.Heartbeat.Int16()}}, Action: DelayRequest, Delay: 100 * time.Millisecond})
		back := g.add(Rule{Match: Match{APIs: []int16{kmsg.EndTxn.Int16()}}, Action: DelayResponse, Delay: time.Second})
		c := g.connect("app-one")
		for range 10 {
			c.send(heartbeat("g"))
		}
		id := c.send(endTxn("t", true)) // without a delay of its own
		for i := range int32(10) {
			c.receive(heartbeat("g"), i+1)
		}
		if got := c.elapsed(); got != 100*time.Millisecond {
			t.Errorf("ten requests took %v", got)
		}
		c.receive(endTxn("t", true), id)
		if got := c.elapsed(); got != 1100*time.Millisecond {
			t.Errorf("the last response took %v", got)
		}
		if got := g.arrivals(); len(got) != 11 || got[10].at != 100*time.Millisecond {
			t.Errorf("the node got %+v", got)
		}
		back.Remove()
		c.ask(endTxn("t", true))
		if got := c.elapsed(); got != 1100*time.Millisecond {
			t.Errorf("the response took until %v without the rule", got)
		}
	})
}

// TestJitter: delays vary between Delay and Delay + Jitter.
func TestJitter(t *testing.T) {
	inBubble(t, func(t *testing.T, g *rig) {
		g.add(Rule{Action: DelayResponse, Delay: 50 * time.Millisecond, Jitter: 450 * time.Millisecond})
		c := g.connect("app-one")
		var took []time.Duration
		for range 20 {
			before := c.elapsed()
			c.ask(heartbeat("g"))
			took = append(took, c.elapsed()-before)
		}
		if low, high := slices.Min(took), slices.Max(took); low < 50*time.Millisecond || high > 500*time.Millisecond || high-low < 200*time.Millisecond {
			t.Errorf("answers took %v", took)
		}
	})
}

// TestHold: a held request arrives after its client has continued over another connection, and the fault records the
// node's response.
func TestHold(t *testing.T) {
	inBubble(t, func(t *testing.T, g *rig) {
		commits := func(req kmsg.Request) bool { return req.(*kmsg.EndTxnRequest).Commit }
		f := g.add(Rule{
			Match:  Match{APIs: []int16{kmsg.EndTxn.Int16()}, ClientID: "app-one", Where: commits},
			Action: HoldRequest, Delay: 5 * time.Second, Count: 1,
		})
		g.answerWith(func(req kmsg.Request) kmsg.Response {
			resp := success(req)
			if end, ok := resp.(*kmsg.EndTxnResponse); ok && len(g.seen) == 4 {
				end.ErrorCode = kerr.InvalidProducerEpoch.Code
			}
			return resp
		})
		c := g.connect("app-one")
		c.ask(endTxn("t", false))
		c.ask(heartbeat("g"))
		c.send(endTxn("t", true))
		c.wantCut()
		again := g.connect("app-one")
		again.ask(endTxn("t", true))
		late, err := f.Late(soon(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		if !errors.Is(ErrorOf(late[0].Response), kerr.InvalidProducerEpoch) || late[0].Err != nil || c.elapsed() != 5*time.Second {
			t.Errorf("late after %v: %+v", c.elapsed(), late[0])
		}
		if end, ok := late[0].Request.(*kmsg.EndTxnRequest); !ok || !end.Commit {
			t.Errorf("held %+v", late[0].Request)
		}
		if got := g.arrivals(); len(got) != 4 || got[3].at != 5*time.Second {
			t.Errorf("the node got %+v", got)
		}
	})
}

// TestHoldEnds: Release makes the proxy deliver a held request. Removing the rule, closing the proxy or killing the
// node drops the request; each of them records its own error.
func TestHoldEnds(t *testing.T) {
	for name, test := range map[string]struct {
		delay   time.Duration // 0 for a released hold
		end     func(g *rig, f *Fault)
		reached int
		wantErr bool
	}{
		"released":  {0, func(*rig, *Fault) {}, 1, false},
		"removed":   {time.Hour, func(_ *rig, f *Fault) { f.Remove() }, 0, true},
		"cut":       {time.Hour, func(g *rig, _ *Fault) { g.proxy.Cut(Match{ClientID: "app"}, false) }, 0, true},
		"node dead": {time.Hour, func(g *rig, _ *Fault) { g.killNode() }, 0, true},
		"connection cut before the response": {time.Second, func(g *rig, f *Fault) {
			g.answerWith(func(kmsg.Request) kmsg.Response { return nil })
			time.AfterFunc(2*time.Second, func() { g.proxy.Cut(f.Rule().Match, true) })
		}, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, g *rig) {
				rule := Rule{Action: HoldRequest, Delay: test.delay}
				if test.delay == 0 {
					release := make(chan struct{})
					close(release)
					rule.Release = release
				}
				f := g.add(rule)
				c := g.connect("app-one")
				c.send(endTxn("t", true))
				c.wantCut()
				test.end(g, f)
				late, err := f.Late(soon(t), 1)
				if err != nil || (late[0].Err != nil) != test.wantErr || (late[0].Response == nil) != test.wantErr {
					t.Errorf("late %+v, %v", late, err)
				}
				if got := g.arrivals(); len(got) != test.reached {
					t.Errorf("the node got %+v", got)
				}
			})
		})
	}
}

// TestDuplicate: a duplicated request reaches the node twice. The client gets one response to it, and the next
// request gets its own response.
func TestDuplicate(t *testing.T) {
	inBubble(t, func(t *testing.T, g *rig) {
		g.add(Rule{Match: Match{APIs: []int16{kmsg.Produce.Int16()}}, Action: DuplicateRequest, Skip: 1, Count: 1})
		c := g.connect("app-one")
		for range 3 {
			c.ask(produce(-1, 1000))
		}
		c.ask(heartbeat("g"))
		if got := g.arrivals(); len(got) != 5 {
			t.Errorf("the node got %d requests", len(got))
		}
	})
}

// TestRefuse: a refused request does not reach the node. Its response comes after the node's responses to earlier
// requests.
func TestRefuse(t *testing.T) {
	inBubble(t, func(t *testing.T, g *rig) {
		g.add(Rule{Match: Match{APIs: []int16{kmsg.EndTxn.Int16()}}, Action: Refuse, Error: kerr.ConcurrentTransactions, Count: 1})
		g.answerWith(func(req kmsg.Request) kmsg.Response {
			<-time.After(time.Second)
			return success(req)
		})
		c := g.connect("app-one")
		id1, id2 := c.send(heartbeat("g")), c.send(endTxn("t", true))
		c.receive(heartbeat("g"), id1)
		resp := c.receive(endTxn("t", true), id2)
		if !errors.Is(ErrorOf(resp), kerr.ConcurrentTransactions) {
			t.Errorf("response %+v", resp)
		}
		if got := g.arrivals(); len(got) != 1 || c.elapsed() != time.Second {
			t.Errorf("the node got %+v, the response came after %v", got, c.elapsed())
		}
		if resp := c.ask(endTxn("t", true)); ErrorOf(resp) != nil {
			t.Errorf("response %+v after the rule's only strike", resp)
		}
	})
}

// TestRefuseAtTheEnd: if the connection of a refused request ends before its response is due, the proxy can still be
// closed.
func TestRefuseAtTheEnd(t *testing.T) {
	inBubble(t, func(_ *testing.T, g *rig) {
		g.answerWith(func(kmsg.Request) kmsg.Response { return nil })
		g.add(Rule{Match: Match{APIs: []int16{kmsg.EndTxn.Int16()}}, Action: Refuse, Error: kerr.ConcurrentTransactions})
		c := g.connect("app-one")
		c.send(heartbeat("g"))
		c.send(endTxn("t", true))
		synctest.Wait()
	})
}

// TestPatch: a patch changes the response of a delivered request. A response that
// cannot be decoded is delivered unchanged, and the fault has the error.
func TestPatch(t *testing.T) {
	inBubble(t, func(t *testing.T, g *rig) {
		f := g.add(Rule{Match: Match{APIs: []int16{kmsg.Heartbeat.Int16()}}, Action: PatchResponse, Error: kerr.UnknownServerError, Count: 1})
		c := g.connect("app-one")
		if resp := c.ask(heartbeat("g")); !errors.Is(ErrorOf(resp), kerr.UnknownServerError) {
			t.Errorf("response %+v", resp)
		}
		if resp := c.ask(heartbeat("g")); ErrorOf(resp) != nil || len(g.arrivals()) != 2 {
			t.Errorf("response %+v", resp)
		}
		if f.Struck() != 1 || f.Err() != nil {
			t.Errorf("struck %d times, %v", f.Struck(), f.Err())
		}
		broken := g.add(Rule{Match: Match{APIs: []int16{kmsg.EndTxn.Int16()}}, Action: PatchResponse, Patch: func(kmsg.Response) { t.Error("patched") }})
		g.answerWith(func(req kmsg.Request) kmsg.Response { // a response with too few bytes for its version
			resp := req.ResponseKind()
			resp.SetVersion(0)
			return resp
		})
		id := c.send(endTxn("t", true))
		if frame, err := readFrame(c.conn); err != nil || correlationOf(frame) != id {
			t.Errorf("read %v, %v", frame, err)
		}
		if broken.Err() == nil {
			t.Error("a response that cannot be decoded is no error")
		}
	})
}

// TestBlackhole: neither frames nor the end of a connection pass a blackhole in its direction until it is removed.
// Other clients and the other direction keep working.
func TestBlackhole(t *testing.T) {
	for _, test := range []struct {
		way     Direction
		reached int // requests of the victim that the node gets during the blackhole
	}{{Both, 0}, {ToBroker, 0}, {ToClient, 1}} {
		t.Run(fmt.Sprint(test.way), func(t *testing.T) {
			inBubble(t, func(t *testing.T, g *rig) {
				victim, other := g.connect("app-one"), g.connect("app-two")
				victim.ask(heartbeat("warm"))
				f := g.add(Rule{Match: Match{ClientID: "app-one"}, Action: Blackhole, Direction: test.way})
				id := victim.send(heartbeat("g"))
				other.ask(heartbeat("other"))
				time.AfterFunc(time.Minute, f.Remove)
				if got := len(g.arrivals()) - 2; got != test.reached {
					t.Errorf("the node got %d requests of the victim, want %d", got, test.reached)
				}
				victim.receive(heartbeat("g"), id)
				if got := victim.elapsed(); got != time.Minute {
					t.Errorf("the response came after %v", got)
				}
				if f.Struck() == 0 {
					t.Error("the blackhole counts nothing")
				}
				victim.ask(heartbeat("healed"))
				if got := victim.elapsed(); got != time.Minute {
					t.Errorf("the healed connection took until %v", got)
				}
			})
		})
	}
}

// TestBlackholeHidesTheEnd: a client in a blackhole notices only after the blackhole that its node has ended.
func TestBlackholeHidesTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, g *rig) {
		c := g.connect("app-one")
		c.ask(heartbeat("warm"))
		f := g.add(Rule{Match: Match{ClientID: "app-one"}, Action: Blackhole, Direction: ToClient})
		g.killNode()
		time.AfterFunc(time.Minute, f.Remove)
		c.wantCut()
		if got := c.elapsed(); got != time.Minute {
			t.Errorf("the end was seen after %v", got)
		}
	})
}

// TestThrottle: the connections that match a throttle share its bytes per second. A throttle that is removed stops
// limiting.
func TestThrottle(t *testing.T) {
	inBubble(t, func(t *testing.T, g *rig) {
		const rate = 64 << 10
		size := rate - len(frameOf(produce(-1, rate), "app-one-0", 1)) + rate // so that the frame has rate bytes
		f := g.add(Rule{Match: Match{ClientID: "app-one"}, Action: Throttle, Direction: ToBroker, BytesPerSecond: rate})
		one, two := g.connect("app-one-0"), g.connect("app-one-1")
		id := one.send(produce(-1, size))
		one.receive(produce(-1, size), id)
		if got := one.elapsed(); got < 900*time.Millisecond || got > 1100*time.Millisecond {
			t.Errorf("%d bytes took %v", rate, got)
		}
		id1, id2 := one.send(produce(-1, size)), two.send(produce(-1, size))
		one.receive(produce(-1, size), id1)
		two.receive(produce(-1, size), id2)
		if got := one.elapsed(); got < 2800*time.Millisecond || got > 3200*time.Millisecond {
			t.Errorf("%d bytes took %v", 3*rate, got)
		}
		id = one.send(produce(-1, 10*rate))
		time.AfterFunc(time.Second, f.Remove)
		one.receive(produce(-1, 10*rate), id)
		if got := one.elapsed(); got < 3800*time.Millisecond || got > 4200*time.Millisecond {
			t.Errorf("a throttle removed after a second limited until %v", got)
		}
	})
}

// TestClientGone: if a client disconnects, its requests are still delivered.
func TestClientGone(t *testing.T) {
	inBubble(t, func(t *testing.T, g *rig) {
		g.add(Rule{Action: DelayRequest, Delay: time.Second})
		c := g.connect("app-one")
		c.send(endTxn("t", true))
		if err := c.conn.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := g.arrivals(); len(got) != 0 {
			t.Errorf("the node got %+v at once", got)
		}
		<-time.After(2 * time.Second)
		if got := g.arrivals(); len(got) != 1 || got[0].at != time.Second {
			t.Errorf("the node got %+v", got)
		}
	})
}

// TestNotKafka: if bytes are not Kafka's protocol, the proxy ends their connection, and Close reports them.
func TestNotKafka(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"an HTTP request":      []byte("GET / HTTP/1.1\r\n\r\n"),
		"an empty frame":       {0, 0, 0, 0},
		"a negative length":    {0xff, 0xff, 0xff, 0xff},
		"a client id too long": lengthPrefixed([]byte{0, 22, 0, 0, 0, 0, 0, 1, 0, 200, 'a'}),
		"no header":            lengthPrefixed([]byte{0, 22, 0, 0}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, err := Listen(t.Context(), 0)
				if err != nil {
					t.Fatal(err)
				}
				g := &rig{t: t, proxy: p, answer: func(kmsg.Request) kmsg.Response { return nil }}
				c := g.connect("app-one")
				if _, err := c.conn.Write(bytes); err != nil && !errors.Is(err, io.ErrClosedPipe) {
					t.Fatal(err)
				}
				c.wantCut()
				if err := p.Close(); err == nil {
					t.Error("the proxy reports no error")
				}
			})
		})
	}
}

// TestResponseAtTheEnd: a response that the proxy had read before its connection ended does not count as a protocol
// error of the node.
func TestResponseAtTheEnd(t *testing.T) {
	near, far := net.Pipe()
	upstream, node := net.Pipe()
	defer closeQuietly(near)
	defer closeQuietly(node)
	c := newConn(&Proxy{}, 1, far, upstream)
	c.pending = []*request{{correlation: 1}}
	c.cut(false)
	if _, err := c.match([]byte{0, 0, 0, 1}); !errors.Is(err, errStopped) {
		t.Errorf("match after the end: %v, want %v", err, errStopped)
	}
}
