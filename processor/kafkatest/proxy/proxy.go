package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// dialMax limits one attempt to connect to a node. A node that has stopped refuses at once.
const dialMax = 10 * time.Second

// errorsMax is how many protocol errors Close returns at most.
const errorsMax = 20

// Option changes the behaviour of a proxy.
type Option func(*Proxy)

// WithSeed sets the seed of the random numbers for [Rule.Probability] and [Rule.Jitter]. A run is still not fully
// repeatable, because the order of frames depends on timing.
func WithSeed(seed uint64) Option {
	return func(p *Proxy) { p.random = rand.New(rand.NewPCG(seed, seed)) }
}

// WithLogger makes the proxy log each strike at level Debug, and protocol errors at
// level Warn.
func WithLogger(log *slog.Logger) Option {
	return func(p *Proxy) { p.log = log }
}

// Proxy is a set of listeners on the loopback address, one for each node of a cluster, and the rules that apply to
// all of them. Its methods may be called from any goroutine.
type Proxy struct {
	log       *slog.Logger
	listeners []net.Listener
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	running   sync.WaitGroup

	mu        sync.Mutex
	random    *rand.Rand
	upstreams []string // nil until Forward is called
	faults    []*Fault // in the order in which Add added them
	conns     map[*conn]struct{}
	accepted  int
	requests  map[int16]int
	errs      []error
}

// Listen opens a proxy for a cluster of n nodes. Connections wait until [Proxy.Forward] sets the addresses of the
// nodes. The caller calls [Proxy.Close].
func Listen(ctx context.Context, n int, opts ...Option) (*Proxy, error) {
	p := &Proxy{
		log: slog.New(slog.DiscardHandler), random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		conns: map[*conn]struct{}{}, requests: map[int16]int{},
	}
	for _, opt := range opts {
		opt(p)
	}
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for range n {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen for node %d of %d: %w", len(p.listeners)+1, n, err), p.Close())
		}
		p.listeners = append(p.listeners, l)
	}
	return p, nil
}

// Addrs returns the addresses of the proxy's listeners, in the order of the nodes. The nodes advertise these
// addresses, and clients use them as seeds.
func (p *Proxy) Addrs() []string {
	addrs := make([]string, len(p.listeners))
	for i, l := range p.listeners {
		addrs[i] = l.Addr().String()
	}
	return addrs
}

// Forward sets the addresses of the nodes, in the order of [Proxy.Addrs]. Another call changes the addresses for
// connections that are made later.
func (p *Proxy) Forward(upstreams []string) error {
	if len(upstreams) != len(p.listeners) {
		return fmt.Errorf("forward to %d nodes %v: the proxy was opened for %d", len(upstreams), upstreams, len(p.listeners))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.upstreams == nil
	p.upstreams = slices.Clone(upstreams)
	if first {
		for i, l := range p.listeners {
			p.running.Go(func() { p.accept(int32(i+1), l) })
		}
	}
	return nil
}

// Add adds a rule after the existing rules. The rule applies to frames that the proxy reads after the call.
func (p *Proxy) Add(rule Rule) (*Fault, error) {
	if err := rule.validate(); err != nil {
		return nil, err
	}
	if int(rule.Node) > len(p.listeners) {
		return nil, fmt.Errorf("rule %s: Node %d: the proxy has %d", rule.name(), rule.Node, len(p.listeners))
	}
	f := &Fault{rule: rule, proxy: p, removed: make(chan struct{}), changed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f, nil
}

// Clear removes every rule.
func (p *Proxy) Clear() {
	p.mu.Lock()
	faults := slices.Clone(p.faults)
	p.mu.Unlock()
	for _, f := range faults {
		f.Remove()
	}
}

// removeFault removes a fault from the list.
func (p *Proxy) removeFault(f *Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = slices.DeleteFunc(p.faults, func(g *Fault) bool { return g == f })
}

// Cut closes the connections that match the client and the node of m, by RST if reset is set, and returns their
// number. It ignores the other fields of m. A held request on a closed connection is lost.
func (p *Proxy) Cut(m Match, reset bool) int {
	p.mu.Lock()
	var cut []*conn
	for c := range p.conns {
		if !c.closed() && m.matchesClient(c.node, c.id()) {
			cut = append(cut, c)
		}
	}
	p.mu.Unlock()
	for _, c := range cut {
		c.cut(reset)
	}
	return len(cut)
}

// Connections returns how many connections clients have made to the proxy.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Requests returns how many requests of an API the proxy has delivered to the nodes.
func (p *Proxy) Requests(api kmsg.Key) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[api.Int16()]
}

// Close ends the proxy and its connections, and returns the protocol errors that it has seen.
func (p *Proxy) Close() error {
	p.cancel()
	var errs []error
	for _, l := range p.listeners {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, fmt.Errorf("close the proxy: %w", err))
		}
	}
	p.Clear()
	p.Cut(Match{}, false)
	p.running.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(append(errs, p.errs...)...)
}

// accept serves one node's listener until it is closed.
func (p *Proxy) accept(node int32, l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			if p.ctx.Err() == nil {
				p.report(fmt.Errorf("accept for node %d: %w", node, err))
			}
			return
		}
		p.running.Go(func() { p.serve(node, client) })
	}
}

// serve connects a client to its node.
func (p *Proxy) serve(node int32, client net.Conn) {
	p.mu.Lock()
	p.accepted++
	upstream := p.upstreams[node-1]
	p.mu.Unlock()
	broker, err := (&net.Dialer{Timeout: dialMax}).DialContext(p.ctx, "tcp", upstream)
	if err != nil {
		closeConn(client, true) // for the client, the closest to a stopped node, which refuses the connection
		return
	}
	p.carry(newConn(p, node, client, broker))
}

// carry serves a connection until its end.
func (p *Proxy) carry(c *conn) {
	p.mu.Lock()
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	if p.ctx.Err() != nil { // Close may have run before c was in the list of connections
		c.cut(false)
	}
	c.serve()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

// verdict is the combined effect of all rules on one frame.
type verdict struct {
	delay   time.Duration
	gates   []*Fault // blackholes
	limits  []*Fault // throttles
	patches []*Fault
	fate    *Fault // the rule that changes how the frame is delivered; nil if none does
}

// judge applies the rules to a request in direction ToBroker, or to its response in direction ToClient.
func (p *Proxy) judge(node int32, r *request, way Direction) verdict {
	p.mu.Lock()
	faults := slices.Clone(p.faults)
	p.mu.Unlock()
	var v verdict
	for _, f := range faults {
		if !f.rule.concerns(way) || !f.matches(node, r) || !f.take(p.draw) {
			continue
		}
		p.log.Debug("rule struck", "rule", f.Name(), "node", node, "api", kmsg.NameForKey(r.key), "client_id", r.clientID, "correlation_id", r.correlation)
		switch f.rule.Action {
		case DelayRequest, DelayResponse:
			v.delay += f.rule.Delay + time.Duration(p.draw()*float64(f.rule.Jitter))
		case Blackhole:
			v.gates = append(v.gates, f)
		case Throttle:
			v.limits = append(v.limits, f)
		case PatchResponse:
			v.patches = append(v.patches, f)
		default:
			v.fate = f
			return v
		}
	}
	return v
}

// blackholes returns the blackholes that stop every frame between a client and a node in one direction.
func (p *Proxy) blackholes(node int32, clientID string, way Direction) []*Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	var gates []*Fault
	for _, f := range p.faults {
		if f.rule.Action == Blackhole && f.rule.concerns(way) && len(f.rule.APIs) == 0 && f.rule.matchesClient(node, clientID) {
			gates = append(gates, f)
		}
	}
	return gates
}

// draw returns a random number in [0, 1).
func (p *Proxy) draw() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.random.Float64()
}

func (p *Proxy) passed(api int16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests[api]++
}

// reportFrame records an error in reading from one side, unless the error only says that the connection ended.
func (p *Proxy) reportFrame(c *conn, side string, err error) {
	var bad *frameError
	if errors.As(err, &bad) {
		p.report(fmt.Errorf("connection of client %q to node %d: from the %s: %w", c.id(), c.node, side, err))
	} else if !errors.Is(err, io.EOF) {
		p.log.Debug("connection ended", "client_id", c.id(), "node", c.node, "side", side, "error", err)
	}
}

func (p *Proxy) report(err error) {
	p.log.Warn("not Kafka's protocol", "error", err)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.errs) < errorsMax {
		p.errs = append(p.errs, err)
	}
}
