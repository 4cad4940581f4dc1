//go:build synctests

package processor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/front"
	"oncebus/processor/ingress"
	"oncebus/processor/kafka"
	"oncebus/processor/oracle"
)

const (
	simPath     = "/signals"
	simVerdicts = "app-verdicts"
	// simAnswerMax is the timeout of the route. It is shorter than a takeover, so that some requests get 504.
	simAnswerMax = 4 * time.Second
	// attemptsMax is how often a sender sends one event.
	attemptsMax = 6
)

// simIngress is one process life of an ingress. The senders call its handler without a listener, so that no request
// waits for a socket.
type simIngress struct {
	server *ingress.Server
	net    *simNet
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	killed atomic.Bool // set when the ingress was killed: its responses do not arrive
}

// simHTTP are the ingress lives of a seed, and its senders.
type simHTTP struct {
	rng     *rand.Rand
	all     []*simIngress
	current atomic.Pointer[simIngress]
	senders sync.WaitGroup

	mu   sync.Mutex // never held while anybody waits
	sent []oracle.Request
}

func (s *sim) launchIngress() {
	if s.http.rng == nil {
		s.http.rng = rand.New(rand.NewPCG(s.seed, 5))
	}
	cfg := s.config(fmt.Sprint("ingress", len(s.http.all)))
	cfg.Partitions, cfg.TransactionTimeout = s.set.partitions, s.set.txn
	n := newSimNet(s.vn.DialContext, s.set.latency)
	log := slog.New(slog.NewTextHandler(s.logs, nil)).With("instance", cfg.InstanceID)
	client, err := front.NewIngressClient(cfg.Config, s.routes, prometheus.NewRegistry(), log, kgo.Dialer(n.dial), kgo.DisableClientMetrics())
	if err != nil {
		s.t.Fatal(err)
	}
	settings := ingress.DefaultConfig()
	settings.Addr = "127.0.0.1:0"
	server, err := ingress.New(settings, s.routes, client, prometheus.NewRegistry(), log)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	i := &simIngress{server: server, net: n, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(i.done)
		i.err = client.Run(ctx)
	}()
	s.http.all = append(s.http.all, i)
	s.http.current.Store(i)
}

// killIngress ends an ingress in whatever it is doing. Requests in flight get no response, even if Kafka has their
// events.
func (s *sim) killIngress() string {
	i := s.http.current.Load()
	if i == nil {
		return ""
	}
	i.killed.Store(true)
	i.net.cut(true)
	i.cancel()
	s.http.current.Store(nil)
	s.in(time.Duration(s.plan.Int64N(int64(5*time.Second))), s.launchIngress)
	return "ingress killed"
}

// freezeIngress stops the network of an ingress for a while. Its senders give up, and what they sent may arrive
// later.
func (s *sim) freezeIngress() string {
	i := s.http.current.Load()
	if i == nil {
		return ""
	}
	i.net.freeze()
	s.in(time.Duration(s.plan.Int64N(int64(20*time.Second))), i.net.mend)
	return "ingress frozen"
}

// troubleIngress loses, delays or alters the next requests of an ingress to the brokers.
func (s *sim) troubleIngress() string {
	if i := s.http.current.Load(); i != nil {
		s.trouble(i.net, pick(s.plan, kmsg.Produce, kmsg.Produce, kmsg.Produce, kmsg.Fetch, kmsg.Metadata, kmsg.InitProducerID), "ingress: ")
	}
	return ""
}

// post sends an event as an impatient sender does: the sender repeats the request, byte for byte, until a response
// says that a repetition is of no use, and sometimes after that.
func (s *sim) post(value []byte, id string) {
	h := &s.http
	var patience [attemptsMax]time.Duration // until the sender closes the connection; 0: it waits
	for n := range patience {
		if h.rng.IntN(4) == 0 {
			patience[n] = time.Duration(h.rng.Int64N(int64(500 * time.Millisecond)))
		}
	}
	again := h.rng.IntN(8) == 0
	pause := time.Duration(100+h.rng.IntN(1500)) * time.Millisecond
	h.senders.Go(func() {
		for n := range attemptsMax {
			q := oracle.Request{Route: s.set.routes[0].Name, ID: id, Value: value, Headers: []oracle.Header{{Key: "traceparent", Value: []byte(id)}}}
			i := h.current.Load()
			if i != nil {
				i.serve(&q, patience[n])
				h.note(&q)
			}
			if i != nil && q.Status != 0 && q.Status != http.StatusServiceUnavailable && q.Status != http.StatusGatewayTimeout {
				if !again {
					return
				}
				again = false
			}
			_ = kafka.Pause(context.Background(), pause)
		}
	})
}

func (h *simHTTP) note(q *oracle.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent = append(h.sent, *q)
}

// serve sends a request, and stores its response if one arrives.
func (i *simIngress) serve(q *oracle.Request, patience time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if patience > 0 {
		defer time.AfterFunc(patience, cancel).Stop()
	}
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, simPath, bytes.NewReader(q.Value))
	r.Header.Set("Traceparent", q.ID)
	w := httptest.NewRecorder()
	if !respond(i.server, w, r) || i.killed.Load() || ctx.Err() != nil {
		return
	}
	q.Status, q.Verdict, q.Key = w.Code, w.Header().Get("Oncebus-Verdict"), w.Header().Get("Oncebus-Key")
	if q.Verdict == "" {
		q.Key = ""
	}
}

// respond calls a handler and reports whether the handler responded. If the sender has closed the connection, the
// handler panics instead.
func respond(handler http.Handler, w http.ResponseWriter, r *http.Request) (responded bool) {
	defer func() {
		switch err := recover(); {
		case err == nil:
		case errors.Is(asError(err), http.ErrAbortHandler):
			responded = false
		default:
			panic(err)
		}
	}()
	handler.ServeHTTP(w, r)
	return true
}

func asError(v any) error {
	err, _ := v.(error)
	return err
}

// mend ends the faults of all ingress lives.
func (h *simHTTP) mend() {
	for _, i := range h.all {
		i.net.mend()
	}
}

// posted waits until every sender is done and returns the requests.
func (s *sim) posted() []oracle.Request {
	if s.set.http > 0 && s.http.current.Load() == nil {
		s.launchIngress()
	}
	s.http.senders.Wait()
	statuses := map[string]int{}
	for _, q := range s.http.sent {
		statuses[fmt.Sprint(q.Status, " ", q.Verdict)]++
	}
	if len(s.http.sent) > 0 {
		s.t.Logf("seed %d: %d requests by HTTP: %v", s.seed, len(s.http.sent), statuses)
	}
	return slices.Clone(s.http.sent)
}

// end stops all ingress lives.
func (h *simHTTP) end() {
	for _, i := range h.all {
		i.net.mend()
		i.cancel()
	}
	h.senders.Wait()
	for _, i := range h.all {
		<-i.done
	}
}
