package embedded

import (
	"os"
	"strings"
	"sync"
	"testing"
)

// Log collects the log of the code under test for one test. With ONCEBUS_TEST_VERBOSE set, it also writes to standard
// error.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

// NewLog returns a log that is printed if the test fails.
func NewLog(tb testing.TB) *Log {
	tb.Helper()
	releaseAtEnd(tb)
	l := &Log{}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Log(l.String())
		}
	})
	return l
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if os.Getenv("ONCEBUS_TEST_VERBOSE") != "" {
		_, _ = os.Stderr.Write(p)
	}
	return l.text.Write(p)
}

// String returns what was logged so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
