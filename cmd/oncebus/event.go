package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"oncebus/dedup/rules"
)

// eventFlags are the flags of the commands that take an event: what its record
// has beside the payload.
type eventFlags struct {
	recordKey *string // nil: null
	headers   headerList
	timestamp int64
}

func (e *eventFlags) register(fs *flag.FlagSet) {
	fs.Func("key", "the record `key`; default: null", func(s string) error { e.recordKey = &s; return nil })
	fs.Var(&e.headers, "header", "a `'NAME: VALUE'` of the record; may be repeated")
	fs.Int64Var(&e.timestamp, "timestamp", time.Now().UnixMilli(), "the record's time, in Unix `milliseconds`; default: now")
}

// input is the event of a payload, as it comes from a topic.
func (e *eventFlags) input(topic string, payload []byte) *rules.Input {
	in := &rules.Input{Topic: topic, Value: payload, Headers: e.headers, Timestamp: e.timestamp}
	if e.recordKey != nil {
		in.Key = []byte(*e.recordKey)
	}
	return in
}

// headerList is a repeatable flag 'NAME: VALUE' and, as rules.HeaderSource, the
// headers of the event.
type headerList []struct{ name, value string }

func (h *headerList) String() string { return "" }

// Set adds one header; the space after the colon is no part of the value.
func (h *headerList) Set(s string) error {
	name, value, ok := strings.Cut(s, ":")
	if !ok || name == "" {
		return errors.New("want 'NAME: VALUE'")
	}
	*h = append(*h, struct{ name, value string }{name, strings.TrimPrefix(value, " ")})
	return nil
}

// Header returns the first header of that name.
func (h headerList) Header(name string) ([]byte, bool) {
	for _, header := range h {
		if header.name == name {
			return []byte(header.value), true
		}
	}
	return nil, false
}

// openPayload opens what is to be read as payload: the FILE argument, or
// standard input without one or for "-".
func openPayload(rest []string, stdin io.Reader) (io.ReadCloser, error) {
	if len(rest) != 1 || rest[0] == "-" {
		return io.NopCloser(stdin), nil
	}
	// A directory opens like a file, and fails only when it is read.
	if info, err := os.Stat(rest[0]); err == nil && info.IsDir() { //nolint:gosec // the file is the one the user names
		return nil, fmt.Errorf("%s is a directory, want the file of an event", rest[0])
	}
	return os.Open(rest[0]) //nolint:gosec // the file is the one the user names
}

// readEvent reads the whole payload.
func readEvent(rest []string, stdin io.Reader) ([]byte, error) {
	in, err := openPayload(rest, stdin)
	if err != nil {
		return nil, err
	}
	defer in.Close() //nolint:errcheck // it was only read
	payload, err := io.ReadAll(in)
	if err != nil {
		return nil, fmt.Errorf("read the event: %w", err)
	}
	return payload, nil
}
