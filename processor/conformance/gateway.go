package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// GatewayKind is what the kit's gateway does with a charge that is sent again.
type GatewayKind string

// The kinds. GatewayKeys recognises an Idempotency-Key that it has seen, gives the same answer again, and books
// nothing. GatewayAsk ignores that header: before an executor charges, it has to ask the gateway whether there
// already is a charge with the reference.
const (
	GatewayKeys GatewayKind = "keys"
	GatewayAsk  GatewayKind = "ask"
)

var gatewayKinds = []GatewayKind{GatewayKeys, GatewayAsk}

// Gateway is the other system in which the work of the executor under test takes effect: a server that charges
// cards. It records each booking. It can also hold a charge without an answer while the executor is killed.
type Gateway struct {
	url     string
	server  *http.Server
	serving sync.WaitGroup

	mu          sync.Mutex
	kind        GatewayKind
	note        func(Entry) // records the bookings of a run in the timeline; nil while there is no run
	held        *hold       // nil: charges are booked and answered
	booked      int
	byKey       map[string]*booking
	byReference map[string]*booking // the first booking of each reference
}

// charge is the body of a request to the gateway.
type charge struct {
	Reference string `json:"reference"`
	Account   string `json:"account"`
	Amount    int64  `json:"amount"`
}

// booking is the body of a response of the gateway.
type booking struct {
	Charge string `json:"charge"`
	charge
}

// hold tells the gateway to leave every charge without an answer.
type hold struct {
	booked  bool // hold a charge after it was booked, not before
	reached chan struct{}
	reach   func() // closes reached
	over    chan struct{}
}

// Limits of a request to the gateway.
const (
	chargeBytesMax    = 1 << 16
	gatewayTimeout    = 5 * time.Second // to receive a request's headers
	gatewayIdle       = time.Minute
	gatewayHeaderSize = 1 << 16
)

// Listen starts a gateway at an address such as 127.0.0.1:0. The gateway refuses charges until a run has it in
// its Config.
func Listen(ctx context.Context, address string) (*Gateway, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	g := &Gateway{url: urlOf(address, listener.Addr())}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", g.serveCharge)
	mux.HandleFunc("GET /charges", g.serveQuestion)
	// There is no timeout for reading a whole request, because it would end the charges that are held.
	g.server = &http.Server{Handler: mux, ReadHeaderTimeout: gatewayTimeout, IdleTimeout: gatewayIdle, MaxHeaderBytes: gatewayHeaderSize}
	g.serving.Go(func() { _ = g.server.Serve(listener) }) // Serve ends only after Close
	return g, nil
}

// urlOf returns the URL of a listener. If it listens at all addresses, an executor reaches it at the loopback
// address.
func urlOf(address string, at net.Addr) string {
	host, _, err := net.SplitHostPort(address)
	_, port, portErr := net.SplitHostPort(at.String())
	if err != nil || portErr != nil {
		return "http://" + at.String()
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// URL is where an executor charges with POST /charges, and asks with GET /charges?reference=.
func (g *Gateway) URL() string { return g.url }

// Close ends the gateway and the charges that it holds.
func (g *Gateway) Close() error {
	g.end()
	err := g.server.Close()
	g.serving.Wait()
	return err
}

// begin forgets earlier bookings, and starts to record the bookings of a run.
func (g *Gateway) begin(kind GatewayKind, note func(Entry)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kind, g.note, g.booked, g.byKey, g.byReference = kind, note, 0, map[string]*booking{}, map[string]*booking{}
}

// end ends a run.
func (g *Gateway) end() {
	g.release()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.note = nil
}

// hold makes the gateway hold all further charges until release: if booked is true it holds a charge after
// booking it, otherwise before booking it.
func (g *Gateway) hold(booked bool) *hold {
	h := &hold{booked: booked, reached: make(chan struct{}), over: make(chan struct{})}
	h.reach = sync.OnceFunc(func() { close(h.reached) })
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = h
	return h
}

// release lets charges pass again. The charges that were held get no answer, and the gateway does not book them
// later.
func (g *Gateway) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held != nil {
		close(g.held.over)
		g.held = nil
	}
}

// isReached reports whether the gateway holds a charge by now.
func (h *hold) isReached() bool {
	select {
	case <-h.reached:
		return true
	default:
		return false
	}
}

// errNoRun is the error for a charge that arrives before a run has begun or after it has ended.
var errNoRun = errors.New("there is no run")

func (g *Gateway) serveCharge(w http.ResponseWriter, r *http.Request) {
	c, err := readCharge(w, r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	b, held, err := g.charge(c, r.Header.Get("Idempotency-Key"))
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case held != nil:
		select {
		case <-held.over:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler) // no answer
	default:
		respond(w, b)
	}
}

// charge books a charge, unless the gateway now holds charges before booking them. If held is not nil, the
// charge gets no answer.
func (g *Gateway) charge(c charge, key string) (b *booking, held *hold, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.note == nil {
		return nil, nil, errNoRun
	}
	if g.held != nil {
		defer g.held.reach()
		if !g.held.booked {
			return nil, g.held, nil
		}
	}
	if g.kind == GatewayKeys && key != "" {
		if first := g.byKey[key]; first != nil {
			return first, g.held, nil
		}
	}
	g.booked++
	b = &booking{"ch_" + strconv.Itoa(g.booked), c}
	if key != "" {
		g.byKey[key] = b
	}
	if g.byReference[c.Reference] == nil {
		g.byReference[c.Reference] = b
	}
	g.note(Entry{What: Booked, Reference: c.Reference})
	return b, g.held, nil
}

func (g *Gateway) serveQuestion(w http.ResponseWriter, r *http.Request) {
	reference := r.URL.Query().Get("reference")
	if reference == "" {
		http.Error(w, "want the query ?reference=", http.StatusBadRequest)
		return
	}
	g.mu.Lock()
	b, running := g.byReference[reference], g.note != nil
	g.mu.Unlock()
	switch {
	case !running:
		http.Error(w, errNoRun.Error(), http.StatusServiceUnavailable)
	case b == nil:
		http.Error(w, "no charge has this reference", http.StatusNotFound)
	default:
		respond(w, b)
	}
}

// readCharge reads the whole body, because net/http notices that a client disconnects only after the body was
// read.
func readCharge(w http.ResponseWriter, r *http.Request) (c charge, err error) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, chargeBytesMax))
	if err != nil {
		return c, fmt.Errorf("the body: %w", err)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("the body: %w", err)
	}
	switch {
	case c.Reference == "":
		return c, errors.New("reference: want one")
	case c.Account == "":
		return c, errors.New("account: want one")
	case c.Amount <= 0:
		return c, fmt.Errorf("amount: %d, want more than 0", c.Amount)
	}
	return c, nil
}

func respond(w http.ResponseWriter, b *booking) {
	w.Header().Set("Content-Type", "application/json")
	text, err := json.Marshal(b)
	if err != nil {
		panic(err) // strings and a number always marshal
	}
	_, _ = w.Write(text) // a client that has disconnected needs no answer
}
