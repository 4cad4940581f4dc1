//go:build unix

package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"strconv"
)

// An event is a signal of about 240 bytes, whose traceId is its dedup key and
// contains the event's number. A duplicate is the same request, like a sender's
// retry.
const (
	traceHead = `{"traceId":"trace-`
	digits    = 12
	bodyTail  = `","symbol":"BTCUSDT","exchange":"BINANCE","action":"buy","price":"40000.25","quantity":"0.50","strategy":"breakout-v3","interval":"15m","timestamp":"2026-11-20T10:00:00Z","comment":"long entry on close above band"}`
	bodyLen   = len(traceHead) + digits + len(bodyTail)
)

// The signature of requests, in the route and here.
const (
	requestPath     = "/signals"
	signatureHeader = "X-Signature"
	signaturePrefix = "sha256="
	secretName      = "BENCH"
	secretValue     = "a secret of the benchmark"
)

// request is a request in one buffer, for one connection: only the event's number and
// the signature change.
type request struct {
	text      []byte
	signature []byte // part of text
	number    []byte // part of text
	body      []byte // part of text
	mac       hash.Hash
	sum       []byte
}

func newRequest() *request {
	text := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: ingress\r\nContent-Type: application/json\r\n%s: %s%0*d\r\nContent-Length: %d\r\n\r\n%s%0*d%s",
		requestPath, signatureHeader, signaturePrefix, hex.EncodedLen(sha256.Size), 0, bodyLen, traceHead, digits, 0, bodyTail)
	r := &request{text: text, body: text[len(text)-bodyLen:], mac: hmac.New(sha256.New, []byte(secretValue))}
	r.number = r.body[len(traceHead) : len(traceHead)+digits]
	at := bytes.Index(text, []byte(signaturePrefix)) + len(signaturePrefix)
	r.signature = text[at : at+hex.EncodedLen(sha256.Size)]
	return r
}

// of returns the request of an event, which is valid until the next call.
func (r *request) of(event int) []byte {
	for i := len(r.number) - 1; i >= 0; i-- {
		r.number[i] = byte('0' + event%10)
		event /= 10
	}
	r.mac.Reset()
	_, _ = r.mac.Write(r.body) // a hash returns no errors
	r.sum = r.mac.Sum(r.sum[:0])
	hex.Encode(r.signature, r.sum)
	return r.text
}

// eventOf returns the number in an event's body, -1 if the event is foreign.
func eventOf(body []byte) int {
	if len(body) != bodyLen || !bytes.HasPrefix(body, []byte(traceHead)) {
		return -1
	}
	n, err := strconv.Atoi(string(body[len(traceHead) : len(traceHead)+digits]))
	if err != nil {
		return -1
	}
	return n
}
