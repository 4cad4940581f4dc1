package conformance

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"oncebus/processor/kafka"
)

// station is a gateway in a run, and what it noted.
type station struct {
	*Gateway

	mu     sync.Mutex
	booked []string
}

func newStation(t *testing.T, kind GatewayKind) *station {
	t.Helper()
	gateway, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &station{Gateway: gateway}
	t.Cleanup(func() {
		if err := gateway.Close(); err != nil {
			t.Error(err)
		}
	})
	gateway.begin(kind, func(e Entry) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.What != Booked {
			t.Errorf("noted %+v", e)
		}
		s.booked = append(s.booked, e.Reference)
	})
	return s
}

// expect compares what the gateway has noted.
func (s *station) expect(t *testing.T, references ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.booked, references) {
		t.Errorf("booked are %v, want %v", s.booked, references)
	}
}

// send sends a request; status is 0 without an answer.
func (s *station) send(ctx context.Context, method, path, key, body string) (status int, text string) {
	request, err := http.NewRequestWithContext(ctx, method, s.URL()+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, err.Error()
	}
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	// A client of its own, as an executor that starts again has one.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	read, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, strings.TrimSpace(string(read))
}

func (s *station) post(ctx context.Context, reference, key string) (status int, text string) {
	return s.send(ctx, http.MethodPost, "/charges", key, `{"reference":"`+reference+`","account":"a","amount":5}`)
}

// TestGateway: a gateway with idempotency keys books one charge for each, and the other one books each.
func TestGateway(t *testing.T) {
	t.Parallel()
	const first, second = `{"charge":"ch_1","reference":"r","account":"a","amount":5}`, `{"charge":"ch_2","reference":"r","account":"a","amount":5}`
	for kind, test := range map[GatewayKind]struct {
		again  string // the answer to the same request
		booked []string
	}{GatewayKeys: {first, []string{"r", "r", "other"}}, GatewayAsk: {second, []string{"r", "r", "r", "other"}}} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := newStation(t, kind)
			for i, want := range []string{first, test.again} {
				if status, text := s.post(t.Context(), "r", "r"); status != http.StatusOK || text != want {
					t.Errorf("request %d: %d %s, want %s", i, status, text, want)
				}
			}
			if status, _ := s.post(t.Context(), "r", ""); status != http.StatusOK {
				t.Errorf("without a key: %d", status)
			}
			if status, _ := s.post(t.Context(), "other", "other"); status != http.StatusOK {
				t.Errorf("another key: %d", status)
			}
			if status, text := s.send(t.Context(), http.MethodGet, "/charges?reference=r", "", ""); status != http.StatusOK || text != first {
				t.Errorf("the question is answered with %d %s", status, text)
			}
			if status, _ := s.send(t.Context(), http.MethodGet, "/charges?reference=x", "", ""); status != http.StatusNotFound {
				t.Errorf("the question for another reference is answered with %d", status)
			}
			s.expect(t, test.booked...)
		})
	}
}

// TestGatewayHolds: a charge that is held gets no answer. It is booked if it was held after that,
// and the next one passes.
func TestGatewayHolds(t *testing.T) {
	t.Parallel()
	for name, booked := range map[string]bool{"before it is booked": false, "after it is booked": true} {
		for gone, clientGoes := range map[string]bool{"and the client goes": true, "and released": false} {
			t.Run(name+" "+gone, func(t *testing.T) {
				t.Parallel()
				s := newStation(t, GatewayKeys)
				if status, _ := s.post(t.Context(), "earlier", "earlier"); status != http.StatusOK {
					t.Fatalf("before the hold: %d", status)
				}
				want := []string{"earlier"}
				held := s.hold(booked)
				if held.isReached() {
					t.Error("a charge is held that no client sent")
				}
				ctx, goes := context.WithCancel(t.Context())
				defer goes()
				answered := make(chan int)
				go func() {
					status, _ := s.post(ctx, "r", "r")
					answered <- status
				}()
				<-held.reached
				if booked {
					want = append(want, "r")
				}
				s.expect(t, want...)
				if clientGoes {
					goes()
				} else {
					s.release()
				}
				if status := <-answered; status != 0 {
					t.Errorf("the charge that was held is answered with %d", status)
				}
				s.release()
				if status, _ := s.post(t.Context(), "r", "r"); status != http.StatusOK {
					t.Errorf("after the hold: %d", status)
				}
				s.expect(t, "earlier", "r")
			})
		}
	}
}

// TestGatewayRefuses: a wrong request is named, and books nothing.
func TestGatewayRefuses(t *testing.T) {
	t.Parallel()
	s := newStation(t, GatewayKeys)
	for body, want := range map[string]string{
		"":                                "the body",
		"no JSON":                         "the body",
		`{"account":"a","amount":5}`:      "reference",
		`{"reference":"r","amount":5}`:    "account",
		`{"reference":"r","account":"a"}`: "amount: 0",
		`{"reference":"r","account":"a","amount":-1}`:   "amount: -1",
		`{"reference":"r","account":"a","amount":"5"}`:  "amount",
		`"` + strings.Repeat("x", chargeBytesMax) + `"`: "too large",
	} {
		if status, text := s.send(t.Context(), http.MethodPost, "/charges", "r", body); status != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%.80s: %d %s, want %s", body, status, text, want)
		}
	}
	if status, _ := s.send(t.Context(), http.MethodGet, "/charges", "", ""); status != http.StatusBadRequest {
		t.Errorf("a question without a reference: %d", status)
	}
	if status, _ := s.send(t.Context(), http.MethodPut, "/charges", "", ""); status != http.StatusMethodNotAllowed {
		t.Errorf("PUT: %d", status)
	}
	s.end()
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		if status, text := s.send(t.Context(), method, "/charges?reference=r", "r", `{"reference":"r","account":"a","amount":5}`); status != http.StatusServiceUnavailable || text != errNoRun.Error() {
			t.Errorf("%s after the run: %d %s", method, status, text)
		}
	}
	s.expect(t)
}

// TestGatewayAddress: the URL is one that an executor can use.
func TestGatewayAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{"127.0.0.1:0": "http://127.0.0.1:", ":0": "http://127.0.0.1:", "0.0.0.0:0": "http://127.0.0.1:", "localhost:0": "http://localhost:"} {
		gateway, err := Listen(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		if url := gateway.URL(); !strings.HasPrefix(url, want) || strings.HasSuffix(url, ":0") {
			t.Errorf("%s: %s, want %s and a port", address, url, want)
		}
		if err := gateway.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := Listen(t.Context(), "127.0.0.1:x"); err == nil {
		t.Error("a wrong port is accepted")
	}
}

// TestRunNeedsAGateway: a scenario that kills in the work is refused without one.
func TestRunNeedsAGateway(t *testing.T) {
	t.Parallel()
	s := &Scenario{Steps: []Step{{Kind: StepInWork, Event: work}}}
	if _, err := Run(t.Context(), Config{}, s, slog.New(slog.DiscardHandler)); !kafka.IsOperatorError(err) || !strings.Contains(err.Error(), "crash-in-work") {
		t.Errorf("error %v", err)
	}
}
