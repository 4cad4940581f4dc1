package ingress

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"oncebus/processor/ingress/signature"
)

// firstReadBytes is the size of the buffer with which the server begins to read a body.
const firstReadBytes = 16 << 10

// refuseHead returns the response to a request that the server refuses whatever its body is, and nil for every
// other request. Therefore a client that does not know the secret, or replays a request that was captured long
// ago, occupies no place among the in-flight requests, and the server does not read its body.
func (s *Server) refuseHead(w http.ResponseWriter, r *http.Request, rq *request, rules *bodyRules) *response {
	_, rejected := rules.codingOf(r.Header)
	if rejected == nil {
		if err := rules.auth.verifyHead(signature.Request{Header: r.Header, Query: r.URL.RawQuery}, s.now()); err != nil {
			rejected = s.unauthorised(rq, rules, err)
		} else if r.ContentLength > int64(rules.maxBytes) {
			rejected = tooLarge(rules)
		}
	}
	if rejected != nil {
		s.leaveBody(w)
	}
	return rejected
}

// receive reads the body, verifies its signature and decompresses it. If a step fails, receive returns the
// response. Tokens are not verified here: refuseHead has verified them.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, rq *request, rules *bodyRules) ([]byte, *response) {
	coding, rejected := rules.codingOf(r.Header)
	if rejected != nil {
		return nil, rejected
	}
	body, err := readBody(w, r, rules.maxBytes, rq.limits)
	if err != nil {
		return nil, s.respondToBodyError(r, rq, rules, err)
	}
	rq.bytes = len(body)
	// The route's own timeout bounds the wait for the verdict. net/http treats
	// a read that times out during that wait as a client that disconnected.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // works on every connection of http.Server
	rq.received = s.now()
	if rules.decompress.Decompressed {
		if body, rejected = s.decompress(rq, rules, coding, body); rejected != nil {
			return nil, rejected
		}
	}
	if rules.auth.signs {
		if err := rules.auth.verifyBody(signature.Request{Header: r.Header, Query: r.URL.RawQuery, Body: body}, rq.received); err != nil {
			return nil, s.unauthorised(rq, rules, err)
		}
	}
	// The endpoint counts the request only now that the whole body is here: while a slow body is arriving, the
	// request counts only for its source.
	if err := rq.limits.verify(); err != nil {
		return nil, s.rejectBusy(rq, err)
	}
	if rules.decompress.Decompressed {
		return body, nil
	}
	return s.decompress(rq, rules, coding, body)
}

// unauthorised rejects a request whose signature or token is not right.
func (s *Server) unauthorised(rq *request, rules *bodyRules, err error) *response {
	return s.reject(rq, signatureReason(err), unauthorized(rules.auth.challenge))
}

// respondToBodyError returns the response to a request whose body was not read.
func (s *Server) respondToBodyError(r *http.Request, rq *request, rules *bodyRules, err error) *response {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge(rules)
	case isLimit(err):
		return s.rejectBusy(rq, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return tooSlow()
	case r.Context().Err() != nil && !errors.Is(err, io.ErrUnexpectedEOF): // after that error the client may still read
		return disconnected()
	}
	return incomplete()
}

// readBody reads a body of at most limit bytes. It reserves memory for the bytes that arrive, not for the bytes
// that Content-Length announces: a client could announce many and send none.
func readBody(w http.ResponseWriter, r *http.Request, limit int, memory *reservation) ([]byte, error) {
	boundChunks(r, limit)
	maxBytes := int64(limit) + 1 // one more, to see the end
	if r.ContentLength >= 0 {
		maxBytes = r.ContentLength + 1
	}
	return readAll(http.MaxBytesReader(w, r.Body, int64(limit)), maxBytes, memory)
}

// readAll reads in to its end, in buffers of at most maxBytes.
func readAll(in io.Reader, maxBytes int64, memory *reservation) ([]byte, error) {
	var body []byte
	for {
		if len(body) == cap(body) {
			size := min(maxBytes, max(firstReadBytes, 2*int64(cap(body))))
			if err := memory.grow(size - int64(cap(body))); err != nil {
				return nil, err
			}
			body = append(make([]byte, 0, size), body...)
		}
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			return nil, err
		}
	}
}
