package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// frameMax is the longest frame that the proxy accepts, in bytes without the length field. Kafka's brokers accept
// requests of at most 100 MiB by default.
const frameMax = 256 << 20

// lengthSize is the number of bytes of a frame's length field.
const lengthSize = 4

// readFrame reads one frame, including its length field. If the stream ends between two frames the error is io.EOF;
// if it ends within a frame, io.ErrUnexpectedEOF.
func readFrame(r io.Reader) ([]byte, error) {
	var length [lengthSize]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := int64(int32(binary.BigEndian.Uint32(length[:])))
	if n < 4 || n > frameMax {
		return nil, &frameError{fmt.Errorf("a frame of %d bytes: Kafka's have 4 to %d", n, frameMax)}
	}
	// The buffer grows with the bytes that arrive, so that a wrong length field alone cannot make the proxy allocate
	// 256 MiB.
	frame := bytes.NewBuffer(make([]byte, 0, lengthSize+min(n, 64<<10)))
	frame.Write(length[:])
	if _, err := io.CopyN(frame, r, n); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return frame.Bytes(), nil
}

// frameError says that the bytes of a connection are not Kafka's protocol.
type frameError struct{ err error }

func (e *frameError) Error() string { return e.err.Error() }
func (e *frameError) Unwrap() error { return e.err }

// request is the frame of a request together with the fields of its header.
type request struct {
	frame       []byte
	key         int16
	version     int16
	correlation int32
	clientID    string
	body        int // offset of the body in frame; 0 for an API that this package cannot decode

	// duplicate and held mark a request whose response the proxy does not forward to the client.
	duplicate bool
	held      *held
}

// held belongs to a request that HoldRequest delivers later.
type held struct {
	fault *Fault
	once  sync.Once // so that the end of the request is recorded only once
}

// parseRequest reads the header of a request's frame.
func parseRequest(frame []byte) (*request, error) {
	const fixed = lengthSize + 2 + 2 + 4
	if len(frame) < fixed+2 {
		return nil, &frameError{fmt.Errorf("a request of %d bytes is shorter than its header", len(frame)-lengthSize)}
	}
	r := &request{
		frame:       frame,
		key:         int16(binary.BigEndian.Uint16(frame[4:])),
		version:     int16(binary.BigEndian.Uint16(frame[6:])),
		correlation: int32(binary.BigEndian.Uint32(frame[8:])),
	}
	at := fixed + 2
	if n := int(int16(binary.BigEndian.Uint16(frame[fixed:]))); n > 0 {
		if n > len(frame)-at {
			return nil, &frameError{fmt.Errorf("a client id of %d bytes in a request (api key %d) of %d", n, r.key, len(frame)-lengthSize)}
		}
		r.clientID = string(frame[at : at+n])
		at += n
	}
	kind := kmsg.RequestForKey(r.key)
	if kind == nil || r.version < 0 || r.version > kind.MaxVersion() {
		return r, nil
	}
	kind.SetVersion(r.version)
	if kind.IsFlexible() {
		n, err := skipTags(frame[at:])
		if err != nil {
			return nil, &frameError{fmt.Errorf("header of a request (api key %d): %w", r.key, err)}
		}
		at += n
	}
	r.body = at
	return r, nil
}

// skipTags returns the length of the tagged fields at the start of b.
func skipTags(b []byte) (int, error) {
	at := 0
	number := func() (uint64, error) {
		v, n := binary.Uvarint(b[at:])
		if n <= 0 {
			return 0, errors.New("tagged fields end early")
		}
		at += n
		return v, nil
	}
	count, err := number()
	if err != nil {
		return 0, err
	}
	for range count {
		if _, err := number(); err != nil { // the tag
			return 0, err
		}
		size, err := number()
		if err != nil {
			return 0, err
		}
		if size > uint64(len(b)-at) {
			return 0, fmt.Errorf("a tagged field of %d bytes in %d", size, len(b)-at)
		}
		at += int(size)
	}
	return at, nil
}

// decode returns the request as kmsg decodes it. The result shares no memory with the frame.
func (r *request) decode() (kmsg.Request, error) {
	if r.body == 0 {
		return nil, fmt.Errorf("api key %d version %d: not known here", r.key, r.version)
	}
	req := kmsg.RequestForKey(r.key)
	req.SetVersion(r.version)
	if err := req.ReadFrom(r.frame[r.body:]); err != nil {
		return nil, fmt.Errorf("decode %s request version %d: %w", kmsg.NameForKey(r.key), r.version, err)
	}
	return req, nil
}

// answered reports whether the node responds to the request. The node responds to every request except a Produce with
// acks=0.
func (r *request) answered() bool {
	if r.key != kmsg.Produce.Int16() || r.body == 0 {
		return true
	}
	var produce kmsg.ProduceRequest
	produce.SetVersion(r.version)
	// UnsafeReadFrom does not copy the records; only acks is needed. A malformed request counts as answered, because
	// the node responds to it with an error.
	return produce.UnsafeReadFrom(r.frame[r.body:]) != nil || produce.Acks != 0
}

// responseBody returns the offset of the body in the frame of the response to r.
func (r *request) responseBody(frame []byte) (int, error) {
	const header = lengthSize + 4
	kind := kmsg.ResponseForKey(r.key)
	if kind == nil || r.body == 0 {
		return 0, fmt.Errorf("api key %d version %d: not known here", r.key, r.version)
	}
	kind.SetVersion(r.version)
	// The response to ApiVersions has the old header in every version, so that clients of every age can read it.
	if !kind.IsFlexible() || r.key == kmsg.ApiVersions.Int16() {
		return header, nil
	}
	n, err := skipTags(frame[header:])
	return header + n, err
}

// decodeResponse decodes the frame of the response to r. It returns the response and the offset of its body in the
// frame.
func (r *request) decodeResponse(frame []byte) (kmsg.Response, int, error) {
	body, err := r.responseBody(frame)
	if err != nil {
		return nil, 0, err
	}
	resp := kmsg.ResponseForKey(r.key)
	resp.SetVersion(r.version)
	if err := resp.ReadFrom(frame[body:]); err != nil {
		return nil, 0, fmt.Errorf("decode %s response version %d: %w", kmsg.NameForKey(r.key), r.version, err)
	}
	return resp, body, nil
}

// correlationOf returns the correlation id in the frame of a response.
func correlationOf(frame []byte) int32 { return int32(binary.BigEndian.Uint32(frame[lengthSize:])) }

// encodeResponse returns a frame with the given header bytes and resp as its body.
func encodeResponse(header []byte, resp kmsg.Response) []byte {
	frame := resp.AppendTo(append([]byte(nil), header...))
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-lengthSize))
	return frame
}

// responseHeader returns the header for a response to r that the proxy makes itself.
func (r *request) responseHeader(resp kmsg.Response) []byte {
	header := make([]byte, lengthSize, lengthSize+5)
	header = binary.BigEndian.AppendUint32(header, uint32(r.correlation))
	if resp.IsFlexible() && r.key != kmsg.ApiVersions.Int16() {
		header = append(header, 0)
	}
	return header
}
