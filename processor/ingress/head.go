package ingress

import "encoding/binary"

// headReader follows the bytes of a connection and finds whether a request's head has
// begun and is incomplete.
//
// The bytes of HTTP/1 are those of a head until net/http reports a request. Those of
// HTTP/2 are frames (RFC 9113, section 4.1): a head is incomplete in the middle of a
// frame, and from a frame with headers to the one that ends them. Other frames, such
// as PING, are no head.
type headReader struct {
	preface int  // bytes of http2Preface so far; -1: HTTP/1
	active  bool // a request is in progress
	begun   bool // HTTP/1: bytes arrived while none was

	header  [frameHeaderBytes]byte
	have    int  // bytes of header
	payload int  // bytes of the frame that are missing
	headers bool // the headers of a stream have not ended
}

const (
	http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	frameHeaderBytes = 9 // length (3 bytes), type, flags, stream
	frameHeaders     = 1
	frameContinued   = 9
	flagEndHeaders   = 4
)

// read takes the next bytes.
func (h *headReader) read(p []byte) {
	h.begun = h.begun || !h.active
	for h.preface >= 0 && h.preface < len(http2Preface) && len(p) > 0 {
		if p[0] != http2Preface[h.preface] {
			h.preface = -1
			break
		}
		h.preface++
		p = p[1:]
	}
	if h.preface < 0 {
		return
	}
	for len(p) > 0 {
		if h.payload > 0 {
			n := min(h.payload, len(p))
			h.payload -= n
			p = p[n:]
			continue
		}
		n := copy(h.header[h.have:], p)
		h.have += n
		p = p[n:]
		if h.have == frameHeaderBytes {
			h.readFrame()
		}
	}
}

// readFrame takes a complete frame header.
func (h *headReader) readFrame() {
	h.have = 0
	h.payload = int(binary.BigEndian.Uint32(h.header[:4]) >> 8)
	if kind := h.header[3]; kind == frameHeaders || kind == frameContinued {
		h.headers = h.header[4]&flagEndHeaders == 0
	}
}

// setActive takes whether a request is in progress.
func (h *headReader) setActive(active bool) { h.active, h.begun = active, false }

// incomplete reports whether a head has begun and is incomplete.
func (h *headReader) incomplete() bool {
	if h.preface < len(http2Preface) {
		return h.begun && !h.active
	}
	return h.have > 0 || h.payload > 0 || h.headers
}
