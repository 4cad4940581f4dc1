//go:build unix

package main

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"testing"
)

// TestRequestIsWholeAndSigned reads requests as a server does; the second must
// contain nothing of the first.
func TestRequestIsWholeAndSigned(t *testing.T) {
	r := newRequest()
	for _, event := range []int{987_654_321, 42} {
		in, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(r.of(event))))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(in.Body)
		if err != nil {
			t.Fatal(err)
		}
		if in.Method != http.MethodPost || in.URL.Path != requestPath || len(body) != bodyLen || eventOf(body) != event {
			t.Errorf("%s %s with %d bytes of event %d, want event %d", in.Method, in.URL.Path, len(body), eventOf(body), event)
		}
		mac := hmac.New(sha256.New, []byte(secretValue))
		mac.Write(body)
		if got, want := in.Header.Get(signatureHeader), signaturePrefix+hex.EncodeToString(mac.Sum(nil)); got != want {
			t.Errorf("signature %s, want %s", got, want)
		}
	}
}

func TestEventOfOthers(t *testing.T) {
	ours := newRequest()
	ours.of(7)
	damaged := bytes.Clone(ours.body)
	damaged[len(traceHead)] = 'x'
	for _, body := range [][]byte{nil, []byte("{}"), ours.body[1:], damaged} {
		if n := eventOf(body); n != -1 {
			t.Errorf("%q is event %d", body, n)
		}
	}
}
