//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/processor/oracle"
)

// Some of the events are sent by HTTP, to a process of 'oncebus ingress'. Their senders repeat a request, byte for
// byte, until a response says that Kafka has the event.

const (
	// senderCount is the number of senders. A sender sends one event at a time, and pauses between two events.
	senderCount    = 8
	senderPauseMax = 400 * time.Millisecond
	// senderIDs is how many ids of events the senders share with the raw topics' ids, which follow Zipf's law.
	senderIDs = 2_000
	// requestMax is how long a sender waits for a response. It is shorter than the limit of the route.
	requestMax = 8 * time.Second

	signatureHeader, signatureSecret = "X-Signature", "secret-of-the-senders"
)

// httpPart returns the http section of a route, with or without signatures.
func httpPart(path string, signed bool, headers ...string) string {
	signature := "{scheme: none}"
	if signed {
		signature = "{scheme: hmac, secret: SENDERS, header: " + signatureHeader + "}"
	}
	if len(headers) == 0 {
		return fmt.Sprintf("\n    http: {path: %s, signature: %s}", path, signature)
	}
	return fmt.Sprintf("\n    http: {path: %s, signature: %s, headers: [%s]}", path, signature, strings.Join(headers, ", "))
}

// newGate returns the slot of an app's ingress. All processes of the slot use the same port.
func newGate(a *app) (*slot, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it listens for a moment only, to draw a port
	if err != nil {
		return nil, fmt.Errorf("draw a port for the ingress: %w", err)
	}
	gate := newSlot(a, "in")
	gate.command, gate.address = "ingress", listener.Addr().String()
	gate.more = []string{"INGRESS_ADDR=" + gate.address, "INGRESS_SECRET_SENDERS=" + signatureSecret}
	return gate, listener.Close()
}

// senders send events to the ingress of an app.
type senders struct {
	app    *app
	client *http.Client
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu   sync.Mutex
	sent []oracle.Request
}

func startSenders(a *app, rng *rand.Rand) *senders {
	ctx, cancel := context.WithCancel(a.h.ctx)
	// Without keep-alives the HTTP client repeats no request on its own, so the harness knows how many requests there
	// were.
	s := &senders{app: a, stop: cancel, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for n := range senderCount {
		own := rand.New(rand.NewPCG(rng.Uint64(), uint64(n)))
		s.done.Go(func() { s.run(ctx, n, own) })
	}
	return s
}

// end stops the senders and returns the requests that they have sent.
func (s *senders) end() []oracle.Request {
	s.stop()
	s.done.Wait()
	s.client.CloseIdleConnections()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

func (s *senders) run(ctx context.Context, sender int, rng *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		s.deliver(ctx, s.draw(fmt.Sprint(sender, "-", n), rng), rng)
		if rng.IntN(50) == 0 {
			s.forge(ctx, fmt.Sprint("forged-", sender, "-", n))
		}
		if kafkatest.Pause(ctx, time.Duration(rng.Int64N(int64(senderPauseMax)))) != nil {
			return
		}
	}
}

// draw makes an event with its own value. Its key is new, or is a key that the raw topics or other senders also use.
func (s *senders) draw(number string, rng *rand.Rand) oracle.Request {
	id := "http-" + number
	switch rng.IntN(4) {
	case 0:
		id = fmt.Sprintf("zipf-%d", rng.IntN(senderIDs))
	case 1:
		id = fmt.Sprintf("hot-http-%d", rng.IntN(20))
	}
	if rng.IntN(2) == 0 {
		return oracle.Request{Route: "signals", ID: id, Value: fmt.Appendf(nil, `{"id":%q,"http":%q}`, id, number)}
	}
	return oracle.Request{Route: "hooks", ID: id, Value: fmt.Appendf(nil, `{"http":%q}`, number), Headers: []oracle.Header{{Key: "id", Value: []byte(id)}}}
}

// deliver sends an event until a response ends the attempts. Some senders are impatient, and some repeat a request
// that already had a response.
func (s *senders) deliver(ctx context.Context, event oracle.Request, rng *rand.Rand) {
	again := rng.IntN(8) == 0
	for ctx.Err() == nil {
		patience := requestMax
		if rng.IntN(8) == 0 {
			patience = time.Duration(20+rng.IntN(300)) * time.Millisecond
		}
		q := event
		status, header, err := s.send(&q, patience, signature(q.Value))
		if err == nil {
			q.Status, q.Verdict = status, header.Get("Oncebus-Verdict")
			if q.Verdict != "" {
				q.Key = header.Get("Oncebus-Key")
			}
		}
		s.mu.Lock()
		s.sent = append(s.sent, q)
		s.mu.Unlock()
		switch {
		case q.Status == 0, q.Status == http.StatusServiceUnavailable, q.Status == http.StatusGatewayTimeout:
		case q.Verdict == "":
			s.app.h.violate("http", "the ingress responded with %d to an event of route %s, which is no verdict", q.Status, q.Route)
			return
		case !again:
			return
		default:
			again = false
		}
		if kafkatest.Pause(ctx, time.Duration(100+rng.IntN(400))*time.Millisecond) != nil {
			return
		}
	}
}

// forge sends an event with a wrong signature. The event must not reach Kafka.
func (s *senders) forge(_ context.Context, id string) {
	q := oracle.Request{Route: "signals", Value: fmt.Appendf(nil, `{"id":%q}`, id)}
	if status, _, err := s.send(&q, requestMax, signature([]byte("another body"))); err == nil && status != http.StatusUnauthorized && status != http.StatusServiceUnavailable {
		s.app.h.violate("http", "the ingress responded with %d to a wrong signature", status)
	}
}

func signature(body []byte) string {
	mac := hmac.New(sha256.New, []byte(signatureSecret))
	mac.Write(body)
	return hex.EncodeToString(mac.Sum(nil))
}

// send sends one request. The request ends only by its own deadline and not when the sender is stopped, because
// a stopped sender must still learn the result of its last request.
func (s *senders) send(q *oracle.Request, patience time.Duration, signature string) (status int, header http.Header, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.app.gate.address+"/"+q.Route, bytes.NewReader(q.Value))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set(signatureHeader, signature)
	for _, h := range q.Headers {
		r.Header.Set(h.Key, string(h.Value))
	}
	response, err := s.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0, nil, err // the response did not arrive completely
	}
	return response.StatusCode, response.Header, nil
}
