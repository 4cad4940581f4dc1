package proxy

import (
	"errors"
	"io"
	"time"
)

// lineFrames is how many frames may be in flight in one direction of a connection before its sender blocks.
const lineFrames = 64

// chunk is how many bytes of a throttled frame are written at a time.
const chunk = 4 << 10

// errStopped ends a line on purpose.
var errStopped = errors.New("stopped")

// line carries frames in one direction of a connection, in order, each at its time.
type line struct {
	items   chan item
	stopped chan struct{} // closed when run has returned: it takes no more items
}

// item is a frame in flight, or an action in its place.
type item struct {
	due   time.Time
	gates []*Fault     // blackholes to be waited for
	do    func() error // an error ends the line
}

func newLine() *line {
	return &line{items: make(chan item, lineFrames), stopped: make(chan struct{})}
}

// push adds an item that is due a delay from now, or after the one before it if that is due later. It reports whether the line
// took it.
func (l *line) push(it item, delay time.Duration) bool {
	it.due = time.Now().Add(delay)
	select {
	case l.items <- it:
		return true
	case <-l.stopped:
		return false
	}
}

// run works on the items until one fails or done is closed.
func (l *line) run(done <-chan struct{}) {
	defer close(l.stopped)
	for {
		select {
		case it := <-l.items:
			if !waitUntil(it.due, done) || !passGates(it.gates, done) || it.do() != nil {
				return
			}
		case <-done:
			return
		}
	}
}

// passGates waits until every one of the blackholes has been removed.
func passGates(gates []*Fault, done <-chan struct{}) bool {
	for _, gate := range gates {
		select {
		case <-gate.removed:
		case <-done:
			return false
		}
	}
	return true
}

// waitUntil reports whether the time came before done.
func waitUntil(due time.Time, done <-chan struct{}) bool {
	d := time.Until(due)
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-done:
		return false
	}
}

// write writes a frame, no faster than the limits allow. A removed throttle no longer limits.
func write(w io.Writer, frame []byte, limits []*Fault, done <-chan struct{}) error {
	for len(limits) > 0 && len(frame) > 0 {
		n := min(chunk, len(frame))
		if _, err := w.Write(frame[:n]); err != nil {
			return err
		}
		frame = frame[n:]
		for _, limit := range limits {
			free := limit.reserve(n, time.Now())
			if !waitOrRemoved(free, limit, done) {
				return errStopped
			}
		}
	}
	if len(frame) == 0 {
		return nil
	}
	_, err := w.Write(frame)
	return err
}

// waitOrRemoved waits until due or until the fault is removed, and reports false if done came first.
func waitOrRemoved(due time.Time, f *Fault, done <-chan struct{}) bool {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-f.removed:
		return true
	case <-done:
		return false
	}
}
