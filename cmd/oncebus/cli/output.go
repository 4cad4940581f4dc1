package cli

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// output is standard output or standard error. It keeps the error of the first
// write that failed, so that callers need not check every line.
type output struct {
	w        io.Writer
	terminal bool

	mu  sync.Mutex // guards err: goroutines of a command print concurrently
	err error
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.w.Write(p)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// failed returns the error of the first write that failed.
func (o *output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Printf prints to an output of a Process, which keeps the error of a failed write, or to a writer that returns
// its errors when it is flushed, such as a tabwriter.
func Printf(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format, args...)
}

func newOutput(w io.Writer) *output { return &output{w: w, terminal: isTerminal(w)} }

// OnTerminal reports whether w, an output of a Process, is a terminal.
func OnTerminal(w io.Writer) bool {
	o, ok := w.(*output)
	return ok && o.terminal
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Terminal returns the terminal to which w, an output of a Process, writes; nil if w is a file or a pipe.
func Terminal(w io.Writer) *os.File {
	o, ok := w.(*output)
	if !ok || !o.terminal {
		return nil
	}
	f, _ := o.w.(*os.File)
	return f
}
