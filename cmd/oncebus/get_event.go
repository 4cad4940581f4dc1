package main

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
)

// shownEvent is an event in the output of get. Its JSON names are an interface. Bytes that are not UTF-8 are in
// the fields whose names end in _hex.
type shownEvent struct {
	At           string        `json:"at"`   // topic/partition/offset
	Time         int64         `json:"time"` // of the record, Unix milliseconds
	RecordKey    *string       `json:"record_key,omitempty"`
	RecordKeyHex string        `json:"record_key_hex,omitempty"`
	Headers      []shownHeader `json:"headers,omitempty"`
	Value        *string       `json:"value,omitempty"`
	ValueHex     string        `json:"value_hex,omitempty"`
}

type shownHeader struct {
	Name     string  `json:"name"`
	Value    *string `json:"value,omitempty"`
	ValueHex string  `json:"value_hex,omitempty"`
}

// showEvent sets the first event, or the reason why it is absent.
func (s *shownEntry) showEvent(route *rules.Route, rec *kgo.Record, err error) {
	switch {
	case err != nil:
		s.noEvent = "unknown"
	case rec == nil:
		s.noEvent = "not in topic " + route.Output + ": its retention deleted it, or it was never emitted"
	default:
		s.Event = newShownEvent(rec)
	}
}

// newShownEvent converts a record into its output.
func newShownEvent(rec *kgo.Record) *shownEvent {
	e := &shownEvent{At: fmt.Sprintf("%s/%d/%d", rec.Topic, rec.Partition, rec.Offset), Time: rec.Timestamp.UnixMilli()}
	e.RecordKey, e.RecordKeyHex = showBytes(rec.Key)
	e.Value, e.ValueHex = showBytes(rec.Value)
	for _, h := range rec.Headers {
		shown := shownHeader{Name: h.Key}
		shown.Value, shown.ValueHex = showBytes(h.Value)
		e.Headers = append(e.Headers, shown)
	}
	return e
}

// showBytes returns b as text or, if b is not UTF-8, in hexadecimal digits; nil and "" for null.
func showBytes(b []byte) (text *string, digits string) {
	if b == nil {
		return nil, ""
	}
	if !utf8.Valid(b) {
		return nil, hex.EncodeToString(b)
	}
	s := string(b)
	return &s, ""
}

// facts returns the lines of the event in the output for people.
func (e *shownEvent) facts() []fact {
	printed := func(text *string, digits string) string {
		switch {
		case digits != "":
			return "hex " + digits
		case text == nil:
			return "null"
		case printable([]byte(*text)):
			return *text
		}
		return strconv.Quote(*text)
	}
	facts := []fact{
		{"event", e.At + " at " + time.UnixMilli(e.Time).UTC().Format(time.RFC3339Nano)},
		{"value", printed(e.Value, e.ValueHex)},
	}
	if e.RecordKey != nil || e.RecordKeyHex != "" {
		facts = append(facts, fact{"record key", printed(e.RecordKey, e.RecordKeyHex)})
	}
	for _, h := range e.Headers {
		facts = append(facts, fact{"header", h.Name + ": " + printed(h.Value, h.ValueHex)})
	}
	return facts
}
