package ingress

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// The codings of a body that an endpoint may decompress.
const (
	codingGzip    = "gzip"
	codingDeflate = "deflate"
)

// codingOf returns the content coding of a body, "" for none. For a coding that the endpoint does not
// decompress it returns the response instead.
func (b *bodyRules) codingOf(in http.Header) (string, *response) {
	var coding string
	for _, value := range in.Values("Content-Encoding") {
		for name := range strings.SplitSeq(value, ",") {
			switch name = strings.ToLower(strings.TrimSpace(name)); {
			case name == "" || name == "identity":
			case b.decompress.MaxBytes == 0 || coding != "":
				return "", b.encoded()
			case name == codingGzip || name == "x-gzip":
				coding = codingGzip
			case name == codingDeflate:
				coding = codingDeflate
			default:
				return "", b.encoded()
			}
		}
	}
	return coding, nil
}

// decompress returns the body without its coding. For a damaged or too large body it returns the response
// instead. It never holds more bytes than the endpoint's bound, whatever the body expands to.
func (s *Server) decompress(rq *request, rules *bodyRules, coding string, body []byte) ([]byte, *response) {
	if coding == "" {
		if rules.decompress.MaxBytes > 0 && isCompressed(body, int64(rules.decompress.MaxBytes)) {
			return nil, problemBrokenEncoding.respond("the body is compressed: name its coding in Content-Encoding")
		}
		return body, nil
	}
	sent := bytes.NewReader(body)
	in, err := newDecompressor(coding, body, sent)
	if err != nil {
		return nil, problemBrokenEncoding.respond("want a body in " + coding)
	}
	limit := int64(rules.decompress.MaxBytes)
	plain, err := readAll(io.LimitReader(in, limit+1), limit+1, rq.limits)
	switch {
	case isLimit(err):
		return nil, s.rejectBusy(rq, err)
	case int64(len(plain)) > limit: // comes before the case of the error, because the rest of a decompression bomb is not read
		return nil, problemTooLarge.respond(fmt.Sprintf("the limit of the decompressed body is %d bytes", limit))
	case err != nil || sent.Len() > 0: // bytes after the end are no part of the event
		return nil, problemBrokenEncoding.respond("want a body in " + coding)
	}
	return plain, nil
}

// isCompressed reports whether a body that names no coding is compressed. The signature does not cover
// Content-Encoding: without this check, an attacker could send a captured body without that header, and the
// compressed bytes would be accepted as another event.
func isCompressed(body []byte, limit int64) bool {
	for _, coding := range []string{codingGzip, codingDeflate} {
		sent := bytes.NewReader(body)
		in, err := newDecompressor(coding, body, sent)
		if err != nil {
			continue
		}
		n, err := io.Copy(io.Discard, io.LimitReader(in, limit+1))
		if n > limit || err == nil && sent.Len() == 0 {
			return true
		}
	}
	return false
}

func newDecompressor(coding string, body []byte, sent *bytes.Reader) (io.Reader, error) {
	switch {
	case coding == codingGzip:
		return gzip.NewReader(sent)
	case hasZlibHeader(body):
		return zlib.NewReader(sent)
	}
	return flate.NewReader(sent), nil
}

// hasZlibHeader reports whether a body begins with the header of zlib (RFC 1950, section 2.2). The coding
// deflate requires this header, but some senders leave it out (RFC 9110, section 8.4.1.2).
func hasZlibHeader(body []byte) bool {
	return len(body) >= 2 && body[0]&0x0f == 8 && (uint(body[0])<<8|uint(body[1]))%31 == 0
}
