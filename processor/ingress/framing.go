package ingress

import (
	"bytes"
	"net/http"
	"strconv"
)

// framing finds the heads of the requests on an HTTP/1 connection, and those whose
// framing is ambiguous: with Content-Length and Transfer-Encoding, or with
// Transfer-Encoding in HTTP/1.0. Another reader of the bytes could find another end of
// such a message. net/http removes one of the headers before a handler sees it.
//
// It accepts what net/http accepts, so that both find the same heads. Where it cannot
// follow it is lost, and every request that could be ambiguous counts as such.
type framing struct {
	state framingState
	lost  bool
	line  []byte // of the current line, at most lineMax bytes
	cut   bool   // the line is longer
	heads []bool // complete ones that no handler had: true for ambiguous

	// Of the current head.
	lines                   int
	old, encoded, hasLength bool // HTTP/1.0; Transfer-Encoding; Content-Length
	length                  int64

	left    int64 // bytes of the body or chunk
	chunked bool
}

type framingState uint8

const (
	inHead framingState = iota
	inBody              // or in a chunk
	inChunkSize
	afterChunk
	inTrailer
)

// Bounds of a line: of a request line, whose end is read, and of others, which begin
// with all that is read. Idle connections hold no more than the second.
const requestLineMax, otherLineMax = 4096, 128

func (f *framing) lineMax() int {
	if f.state == inHead && f.lines == 0 {
		return requestLineMax
	}
	return otherLineMax
}

// begin returns whether the next request is ambiguous.
func (f *framing) begin(r *http.Request) bool {
	if len(f.heads) == 0 {
		return len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1)
	}
	ambiguous := f.heads[0]
	f.heads = f.heads[1:]
	return ambiguous
}

// between reports whether no byte of the next message has come.
func (f *framing) between() bool {
	return !f.lost && f.state == inHead && f.lines == 0 && len(f.line) == 0
}

// scan reads the next bytes of the connection.
func (f *framing) scan(p []byte) {
	for len(p) > 0 && !f.lost {
		if f.state == inBody {
			n := min(int64(len(p)), f.left)
			p, f.left = p[n:], f.left-n
			switch {
			case f.left > 0:
			case f.chunked:
				f.state = afterChunk
			default:
				f.next()
			}
			continue
		}
		part, rest, whole := bytes.Cut(p, []byte{'\n'})
		kept := part[:min(len(part), f.lineMax()-len(f.line))]
		f.line, f.cut = append(f.line, kept...), f.cut || len(kept) < len(part)
		if !whole {
			return
		}
		f.endLine(bytes.TrimSuffix(f.line, []byte{'\r'}))
		if cap(f.line) > 2*otherLineMax {
			f.line = nil
		}
		f.line, f.cut, p = f.line[:0], false, rest
	}
}

// next expects another head.
func (f *framing) next() {
	*f = framing{line: f.line, heads: f.heads, lost: f.lost}
}

func (f *framing) endLine(line []byte) {
	switch f.state {
	case inHead:
		f.endHeadLine(line)
	case inChunkSize:
		size, _, _ := bytes.Cut(line, []byte{';'})
		n, err := strconv.ParseInt(string(bytes.TrimRight(size, " \t")), 16, 64)
		switch {
		case err != nil || n < 0 || f.cut:
			f.lost = true
		case n == 0:
			f.state = inTrailer
		default:
			f.state, f.left = inBody, n
		}
	case afterChunk:
		f.state = inChunkSize
		f.lost = len(line) > 0
	case inTrailer:
		if len(line) == 0 {
			f.next()
		}
	case inBody: // has no lines
	}
}

func (f *framing) endHeadLine(line []byte) {
	switch {
	case len(line) == 0 && f.lines == 0: // net/http skips empty lines before a request
		return
	case len(line) == 0:
		f.endHead()
		return
	case f.lines == 0:
		f.old = bytes.HasSuffix(line, []byte("HTTP/1.0"))
		f.lost = !f.old && !bytes.HasSuffix(line, []byte("HTTP/1.1")) // HTTP/2, or a cut line
	case line[0] == ' ' || line[0] == '\t':
		f.lost = true // the line continues the value before
	default:
		name, value, _ := bytes.Cut(line, []byte{':'})
		switch {
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			f.encoded = true
		case bytes.EqualFold(name, []byte("content-length")):
			n, err := strconv.ParseInt(string(bytes.Trim(value, " \t")), 10, 64)
			f.hasLength, f.length, f.lost = true, n, err != nil || n < 0 || f.cut
		}
	}
	f.lines++
}

func (f *framing) endHead() {
	f.heads = append(f.heads, f.encoded && (f.hasLength || f.old))
	switch {
	case f.encoded && !f.old:
		f.state, f.chunked = inChunkSize, true
	case f.length > 0:
		f.state, f.left = inBody, f.length
	default:
		f.next()
	}
}
