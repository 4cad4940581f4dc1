//go:build unix

package main

import (
	"bytes"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"oncebus/processor/oracle"
)

// TestSendersRepeat: a sender repeats a request, byte for byte, until it has a verdict. It stores each of its
// requests with the response.
func TestSendersRepeat(t *testing.T) {
	var bodies [][]byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get(signatureHeader) != signature(body) || r.Header.Get("id") != "x" || r.URL.Path != "/hooks" {
			t.Errorf("request %s with headers %v, body error %v", r.URL.Path, r.Header, err)
		}
		bodies = append(bodies, body)
		switch len(bodies) {
		case 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 2:
			panic(http.ErrAbortHandler) // closes the connection without a response
		default:
			w.Header().Set("Oncebus-Verdict", "duplicate")
			w.Header().Set("Oncebus-Key", "k")
			w.WriteHeader(http.StatusConflict)
		}
	}))
	defer server.Close()
	s := &senders{app: &app{gate: &slot{address: strings.TrimPrefix(server.URL, "http://")}}, client: server.Client()}
	event := s.draw("1-1", rand.New(rand.NewPCG(1, 1)))
	event.Route, event.Headers = "hooks", []oracle.Header{{Key: "id", Value: []byte("x")}}
	for seed := uint64(1); len(bodies) < 3; seed++ {
		s.deliver(t.Context(), event, rand.New(rand.NewPCG(seed, 3)))
	}
	if len(s.sent) < 3 || s.sent[0].Status != http.StatusServiceUnavailable || s.sent[1].Status != 0 || s.sent[2].Status != http.StatusConflict ||
		s.sent[2].Verdict != "duplicate" || s.sent[2].Key != "k" {
		t.Errorf("requests %+v", s.sent)
	}
	for _, body := range bodies {
		if !bytes.Equal(body, event.Value) {
			t.Errorf("body %s, want %s", body, event.Value)
		}
	}
}

// TestSignature compares the signature with an HMAC-SHA-256 that OpenSSL computed, which is what the ingress expects.
func TestSignature(t *testing.T) {
	if got := signature([]byte(`{"id":"a"}`)); len(got) != hex.EncodedLen(32) || got != knownSignature {
		t.Errorf("signature %s, want %s", got, knownSignature)
	}
}

const knownSignature = "89ec697f7bc6663adeb141833fe6b0c38779a042970c440ad130be8b0095feb0"
