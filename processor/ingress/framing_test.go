package ingress

import (
	"fmt"
	"strings"
	"testing"
)

// TestFraming: however the bytes arrive, it is known where a request ends, and how long the first chunk will be.
func TestFraming(t *testing.T) {
	long := strings.Repeat("x", 1000)
	plain := "POST /" + long + " HTTP/1.1\r\nHost: a\r\nX-Long: " + long + "\r\nContent-Length: 47\r\n\r\n" + "\r\n\r\nTransfer-Encoding: x\r\nContent-Length: 1\r\n\r\n"
	none := "GET / HTTP/1.1\r\nX: y\r\n\r\n"
	last := "POST / HTTP/1.1\ntransfer-ENCODING:chunked\ncontent-length:\t9 \n\n5;a=b\r\n\n\n\nab\r\n1F \r\n"
	text := plain + none + last
	for size := 1; size <= len(text); size++ {
		var f framing
		for at := 0; at < len(text); {
			n := min(size, len(text)-at)
			f.scan([]byte(text[at : at+n]))
			at += n
			if want := at == len(plain) || at == len(plain+none); f.between() != want {
				t.Fatalf("in pieces of %d: after %d bytes, between is %v", size, at, f.between())
			}
		}
		if f.chunk() != 0x1f || cap(f.line) > 2*lineMax {
			t.Fatalf("in pieces of %d: a chunk of %d, and %d bytes are kept", size, f.chunk(), cap(f.line))
		}
		if f.scan([]byte(strings.Repeat("x", 0x1f) + "\r\n0\r\n\r\n" + none)); f.state != lost {
			t.Fatalf("in pieces of %d: something is found behind a chunked body", size)
		}
	}
}

// TestLostFraming: where the bytes cannot be followed, nothing is found.
func TestLostFraming(t *testing.T) {
	const chunks = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, text := range []string{
		"POST / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		chunks + "x\r\n", chunks + "1\r\nab\r\n", chunks + strings.Repeat("0", lineMax) + "5\r\n", chunks + "10000000000000000\r\n",
		"POST / HTTP/1.1\r\nContent-Length: " + strings.Repeat("0", lineMax) + "5\r\n\r\n", fmt.Sprintf("POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n", uint64(1<<63)),
	} {
		var f framing
		if f.scan([]byte(text)); f.between() || f.chunk() != 0 || f.state != lost {
			t.Errorf("%.60q: not lost, %+v", text, f)
		}
	}
}
