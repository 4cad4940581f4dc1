package main

import (
	"flag"
	"fmt"
	"io"
	"os"
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
