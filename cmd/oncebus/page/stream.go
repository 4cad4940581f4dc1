package page

import (
	"bytes"
	"fmt"
	"net/http"
	"time"
)

const (
	// streamsMax is how many streams a process serves at most at the same time.
	streamsMax = 32
	// writeTimeout is how long a single write to a stream may take.
	writeTimeout = 10 * time.Second
	// framesMax is how many frames may wait for a slow reader. Further frames are dropped for this reader,
	// including samples of the history. When the reader connects again, it gets the whole history.
	framesMax = 16
)

// stream is one reader of server-sent events.
type stream struct{ frames chan []byte }

// frame returns a server-sent event. data must not contain a line break; JSON does not.
func frame(event string, data []byte) []byte {
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event, data)
}

// send passes frames to every stream that is not too slow. The caller holds p.mu.
func (p *Page) send(frames []byte) {
	for s := range p.streams {
		select {
		case s.frames <- frames:
		default:
		}
	}
}

// join adds a stream and sends the history as its first frame. It returns nil if there are too many streams.
func (p *Page) join() *stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.streams) >= streamsMax {
		return nil
	}
	text, err := p.history.encode()
	if err != nil {
		panic(err) // all numbers are finite
	}
	s := &stream{frames: make(chan []byte, framesMax)}
	s.frames <- frame("history", text)
	p.streams[s] = true
	select {
	case p.watched <- struct{}{}:
	default:
	}
	return s
}

func (p *Page) leave(s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.streams, s)
}

// serveStream sends the history, and after each reading the new samples and a snapshot, until the reader leaves
// or the process stops.
func (p *Page) serveStream(w http.ResponseWriter, r *http.Request) {
	s := p.join()
	if s == nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("%d readers watch already", streamsMax), http.StatusServiceUnavailable)
		return
	}
	defer p.leave(s)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // tells a proxy not to buffer the stream
	out := http.NewResponseController(w)
	if out.SetReadDeadline(time.Time{}) != nil { // the server's read timeout would end the stream
		return
	}
	for {
		select {
		case frames := <-s.frames:
			if out.SetWriteDeadline(time.Now().Add(writeTimeout)) != nil {
				return
			}
			if _, err := w.Write(frames); err != nil || out.Flush() != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-p.ended:
			return
		}
	}
}

// serveSnapshot responds with the current snapshot as JSON.
func (p *Page) serveSnapshot(w http.ResponseWriter, _ *http.Request) {
	text, err := p.Snapshot()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(bytes.Clone(text), '\n')) // fails only if the client disconnected
}
