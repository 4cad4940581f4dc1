package ingress

import (
	"bytes"
	"math"
	"strconv"
)

// framing parses the requests on an HTTP/1 connection in parallel to net/http, up to the first chunked body,
// after which the connection closes. It finds out two things that net/http hides from a handler: how long the
// next chunk will be, and whether any byte of the next request has arrived. If framing cannot parse the bytes,
// its state becomes lost, and from then on it reports neither.
type framing struct {
	state framingState
	line  []byte // the begin of the current line, at most lineMax bytes
	cut   bool   // the current line is longer than lineMax

	// About the head of the current request.
	lines   int
	encoded bool // the head has Transfer-Encoding
	length  uint64

	left uint64 // bytes of the body or chunk that are still to come
}

// framingState is what the next byte of the connection belongs to.
type framingState uint8

const (
	inHead framingState = iota
	inBody
	inChunkSize
	inChunk
	afterChunk
	lost // the parser cannot follow, or is behind a chunked body
)

// lineMax is how many bytes of a line framing keeps. Everything that framing needs is at the beginning of a
// line.
const lineMax = 128

// http2Begin is the first line of an HTTP/2 connection. The bytes after it are HTTP/2 frames and not lines.
const http2Begin = "PRI * HTTP/2.0"

// between reports whether no byte of the next message has arrived yet.
func (f *framing) between() bool { return f.state == inHead && f.lines == 0 && len(f.line) == 0 }

// chunk returns how many bytes of the current chunk have not arrived yet.
func (f *framing) chunk() uint64 {
	if f.state != inChunk {
		return 0
	}
	return f.left
}

// scan parses the next bytes that the connection has received.
func (f *framing) scan(p []byte) {
	for len(p) > 0 && f.state != lost {
		if f.state == inBody || f.state == inChunk {
			n := min(uint64(len(p)), f.left)
			p, f.left = p[n:], f.left-n
			switch {
			case f.left > 0:
			case f.state == inChunk:
				f.state = afterChunk
			default:
				*f = framing{line: f.line}
			}
			continue
		}
		part, rest, whole := bytes.Cut(p, []byte{'\n'})
		kept := part[:min(len(part), lineMax-len(f.line))]
		f.line, f.cut = append(f.line, kept...), f.cut || len(kept) < len(part)
		if !whole {
			return
		}
		f.endLine(bytes.TrimSuffix(f.line, []byte{'\r'}))
		f.line, f.cut, p = f.line[:0], false, rest
	}
}

func (f *framing) endLine(line []byte) {
	switch f.state {
	case inHead:
		f.endHeadLine(line)
	case inChunkSize:
		size, _, _ := bytes.Cut(line, []byte{';'})
		n, err := strconv.ParseUint(string(bytes.TrimRight(size, " \t")), 16, 64)
		if f.state, f.left = inChunk, n; err != nil || n == 0 || f.cut {
			f.state = lost
		}
	case afterChunk:
		if f.state = inChunkSize; len(line) > 0 {
			f.state = lost
		}
	case inBody, inChunk, lost: // these states have no lines
	}
}

// endHeadLine processes a complete line of a request's head: it looks for the headers that determine where the
// body ends.
func (f *framing) endHeadLine(line []byte) {
	name, value, _ := bytes.Cut(line, []byte{':'})
	f.lines++
	switch {
	case len(line) == 0 && f.lines == 1: // net/http skips empty lines before a request
		f.lines = 0
	case f.lines == 1 && string(line) == http2Begin, len(line) > 0 && (line[0] == ' ' || line[0] == '\t'): // a value goes on in the next line
		f.state = lost
	case len(line) == 0 && f.encoded:
		f.state = inChunkSize
	case len(line) == 0 && f.length > 0:
		f.state, f.left = inBody, f.length
	case len(line) == 0:
		*f = framing{line: f.line}
	case bytes.EqualFold(name, []byte("transfer-encoding")):
		f.encoded = true
	case bytes.EqualFold(name, []byte("content-length")):
		n, err := strconv.ParseUint(string(bytes.Trim(value, " \t")), 10, 64)
		if f.length = n; err != nil || n > math.MaxInt64 || f.cut {
			f.state = lost
		}
	}
}
