package ingress

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestFraming: heads are found however the bytes arrive, and only those of requests.
func TestFraming(t *testing.T) {
	long := strings.Repeat("x", 1000)
	var (
		plain  = "POST /" + long + " HTTP/1.1\r\nHost: a\r\nX-Long: " + long + "\r\nContent-Length: 45\r\n\r\n" + "\r\n\r\nTransfer-Encoding: x\r\nContent-Length: 1\r\n\r\n"
		none   = "GET / HTTP/1.1\r\nX: y\r\n\r\n"
		pieces = "POST / HTTP/1.1\ntransfer-ENCODING:chunked\n\n5;a=b\r\n\n\n\nab\r\n1 \r\nx\r\n0\r\nContent-Length: 3\r\n\r\n"
		both   = "POST / HTTP/1.1\r\ncontent-length:\t9 \r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
		old    = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}"
	)
	text := plain + none + pieces + "\r\n" + both + plain + old + none + both
	want := []bool{false, false, false, true, false, true, false, true}
	for size := 1; size <= len(text); size++ {
		var f framing
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			f.scan([]byte(rest[:n]))
			rest = rest[n:]
		}
		if f.lost || !slices.Equal(f.heads, want) {
			t.Fatalf("in pieces of %d: lost %v, %v, want %v", size, f.lost, f.heads, want)
		}
	}
}

// TestLostFraming: where the bytes cannot be followed, a request that could be
// ambiguous counts as such.
func TestLostFraming(t *testing.T) {
	for _, text := range []string{
		"POST / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"POST /" + strings.Repeat("x", requestLineMax) + " HTTP/1.1\r\n\r\n", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
		"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "\x16\x03\x01\n",
		"POST / HTTP/1.1\r\nContent-Length: " + strings.Repeat("0", otherLineMax) + "5\r\n\r\n",
		"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("0", otherLineMax) + "5\r\n",
	} {
		var f framing
		f.scan([]byte(text))
		if !f.lost || cap(f.line) > 2*requestLineMax {
			t.Errorf("%.40q: not lost, %v", text, f.heads)
		}
		f.heads = nil
		if f.begin(&http.Request{ProtoMajor: 1, ProtoMinor: 1}) {
			t.Errorf("%.40q: a request without Transfer-Encoding is ambiguous", text)
		}
		if !f.begin(&http.Request{ProtoMajor: 1, ProtoMinor: 1, TransferEncoding: []string{"chunked"}}) || !f.begin(&http.Request{ProtoMajor: 1}) {
			t.Errorf("%.40q: not ambiguous", text)
		}
	}
}
