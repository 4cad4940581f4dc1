package ingress

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"oncebus/processor/ingress/signature"
)

// firstReadBytes is the buffer that every body begins with.
const firstReadBytes = 16 << 10

// receive reads the body, verifies the signature and decompresses the body. If one of them
// fails it returns the response. A token is verified before the body, so that a request without it
// waits for nothing, and occupies nothing.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, rq *request, rules *bodyRules) ([]byte, *response) {
	coding, rejected := rules.codingOf(r.Header)
	if rejected != nil {
		return nil, rejected
	}
	if !rules.auth.signs {
		if rejected := s.authorise(rq, rules, signature.Request{Header: r.Header, Query: r.URL.RawQuery}, s.now()); rejected != nil {
			s.leaveBody(w)
			return nil, rejected
		}
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
		if rejected := s.authorise(rq, rules, signature.Request{Header: r.Header, Query: r.URL.RawQuery, Body: body}, rq.received); rejected != nil {
			return nil, rejected
		}
	}
	// It counts for its endpoint when its body is here: a slow one counts for its source alone.
	if err := rq.limits.verify(); err != nil {
		return nil, s.rejectBusy(rq, err)
	}
	if rules.decompress.Decompressed {
		return body, nil
	}
	return s.decompress(rq, rules, coding, body)
}

// authorise verifies a request. If it may not go on it returns the response.
func (s *Server) authorise(rq *request, rules *bodyRules, r signature.Request, now time.Time) *response {
	if err := rules.auth.verifyBody(r, now); err != nil {
		return s.reject(rq, signatureReason(err), unauthorized(rules.auth.challenge))
	}
	return nil
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

// readBody reads a body of at most limit bytes. Memory is reserved for bytes
// that arrived, not for those that Content-Length announces.
func readBody(w http.ResponseWriter, r *http.Request, limit int, memory *reservation) ([]byte, error) {
	if r.ContentLength > int64(limit) {
		return nil, &http.MaxBytesError{Limit: int64(limit)}
	}
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
