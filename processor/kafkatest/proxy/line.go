package proxy

import (
	"errors"
	"io"
	"time"
)

// lineFrames is how many frames may be on their way in one direction of a connection before the goroutine that reads
// them blocks.
const lineFrames = 64

// chunk is how many bytes of a throttled frame the proxy writes at once.
const chunk = 4 << 10

// errStopped ends a line whose end is not an error.
var errStopped = errors.New("stopped")

// line delivers the frames of one direction of a connection: in order, and each frame when it is due.
type line struct {
	items   chan item
	stopped chan struct{} // closed when run has returned: from then on the line accepts no items
}

// item is a frame, or an action between two frames.
type item struct {
	due   time.Time
	gates []*Fault     // blackholes that must be removed before the item is processed
	do    func() error // delivers the frame; an error ends the line
}

func newLine() *line {
	return &line{items: make(chan item, lineFrames), stopped: make(chan struct{})}
}

// push adds an item that becomes due after delay, but never before the previous item. It reports whether the line
// accepted the item.
func (l *line) push(it item, delay time.Duration) bool {
	it.due = time.Now().Add(delay)
	select {
	case l.items <- it:
		return true
	case <-l.stopped:
		return false
	}
}

// run processes the items until one fails or done is closed.
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

// passGates waits until every blackhole is removed, and reports false if done was closed first.
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

// waitUntil waits until due, and reports false if done was closed first.
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

// write writes a frame no faster than the throttles in limits allow. A throttle that is removed meanwhile stops
// limiting.
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

// waitOrRemoved waits until due or until the fault is removed, and reports false if done was closed first.
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
