package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"oncebus/dedup/rules"
)

// eventFlags are the flags of the commands that read an event. They give the parts of the event's record other
// than its payload.
type eventFlags struct {
	recordKey *string // nil means null
	headers   headerList
	timestamp int64
}

func (e *eventFlags) register(fs *pflag.FlagSet) {
	fs.Func("record-key", "the record `key` of the event; default: null", func(s string) error { e.recordKey = &s; return nil })
	fs.Var(&e.headers, "header", "a header of the record, as `'NAME: VALUE'`; may be repeated")
	// The flag is not an Int64Var, because the help would then show the present time as its default.
	e.timestamp = time.Now().UnixMilli()
	fs.Func("timestamp", "the record's time, in Unix `milliseconds`; default: now", func(s string) error {
		at, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return errors.New("want Unix milliseconds, such as 1767323045000")
		}
		e.timestamp = at
		return nil
	})
}

// input returns the event as a record of this topic.
func (e *eventFlags) input(topic string, payload []byte) *rules.Input {
	in := &rules.Input{Topic: topic, Value: payload, Headers: e.headers, Timestamp: e.timestamp, AsJSON: true}
	if e.recordKey != nil {
		in.Key = []byte(*e.recordKey)
	}
	return in
}

// headerList is the value of a repeatable flag 'NAME: VALUE'. It implements rules.HeaderSource.
type headerList []header

type header struct{ name, value string }

func (h *headerList) String() string { return "" }

// Type implements pflag.Value.
func (h *headerList) Type() string { return "header" }

// Set adds a header. It drops the space after the colon.
func (h *headerList) Set(s string) error {
	name, value, ok := strings.Cut(s, ":")
	if !ok || name == "" {
		return errors.New("want 'NAME: VALUE'")
	}
	*h = append(*h, header{name, strings.TrimPrefix(value, " ")})
	return nil
}

// Header returns the first header with this name.
func (h headerList) Header(name string) ([]byte, bool) {
	for _, header := range h {
		if header.name == name {
			return []byte(header.value), true
		}
	}
	return nil, false
}

// openPayload opens the FILE argument. If the argument is missing or "-", it returns standard input.
func openPayload(rest []string, stdin io.Reader) (io.ReadCloser, error) {
	if len(rest) != 1 || rest[0] == "-" {
		return io.NopCloser(stdin), nil
	}
	// The system opens a directory without an error, and only a read of it fails, so directories are refused
	// here.
	if info, err := os.Stat(rest[0]); err == nil && info.IsDir() {
		return nil, fmt.Errorf("%s is a directory, want a file with one event", rest[0])
	}
	return os.Open(rest[0])
}

// readEvent reads the payload that openPayload opens.
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
