package transfer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// lineMax is the longest line in bytes.
const lineMax = 64 << 20

// noTime marks an event for which neither its line nor --first-seen gives a time.
const noTime = 1 << 62

// linesSource reads seeds from lines of text. Each line is about one key.
type linesSource struct {
	scanner *bufio.Scanner
	route   *app.Route
	deriver *rules.Deriver
	first   int64 // for lines without a time of their own; noTime if there is none
	number  int64
	seeds   []Seed
	// outcome is the outcome of the line, in claim mode. appToken is copied to its claim.
	outcome  *outcomeLine
	appToken bool
}

// Lines returns the lines of a text as seeds of a route. firstSeen, in ms, applies to lines without a time; nil
// if such lines are an error. A line is one of:
//
//	{"id":"t1","first_seen":1764109200000}    an id; a composite id is a list of its parts
//	{"event":{...},"first_seen":"2026-11-25T22:20:00Z"}
//	{"key":"46e9...","first_seen":...}        a dedup key of 64 hex digits
//	{...}                                     an event, as the input topic has it
//	t1<TAB>2026-11-25T22:20:00Z               an id, and after a tab when it was first seen
//	t1                                        an id; not in quotes
//	webhook:46e9...                           a dedup key, of a route whose keys are no ids
//
// A time is Unix milliseconds or RFC 3339; a space may stand in place of the T. An event needs no time if its
// route reads the time from a field. In claim mode each line is an object that also has the outcome, see
// outcomeLine.
func (c *Client) Lines(from io.Reader, route *app.Route, firstSeen *int64) (Source, error) {
	if route.AdjacentStepMS > 0 && firstSeen != nil {
		return nil, kafka.OperatorErrorf("route %s has adjacent buckets: the time is part of the key, so each line must be an event", route.Name)
	}
	text, err := textOf(from)
	if err != nil {
		return nil, err
	}
	s := &linesSource{scanner: bufio.NewScanner(text), route: route, deriver: c.cfg.NewDeriver(c.routes), first: noTime, appToken: c.app.TokensNameApp}
	if firstSeen != nil {
		s.first = *firstSeen
	}
	s.scanner.Buffer(make([]byte, 64<<10), lineMax)
	return s, nil
}

// byteOrderMark begins the text files of some editors and shells. It is not part of the first line.
const byteOrderMark = "\ufeff"

// noText has the first bytes of files that are not text, so that their lines are no ids.
var noText = []struct{ magic, what string }{
	{"\x1f\x8b", "compressed with gzip: decompress it first, or pipe it through gunzip to standard input"},
	{"\x28\xb5\x2f\xfd", "compressed with zstd: decompress it first"},
	{"\xff\xfe", "UTF-16: convert it to UTF-8 first, such as with iconv"},
	{"\xfe\xff", "UTF-16: convert it to UTF-8 first, such as with iconv"},
}

// textOf returns a text without its byte order mark. Any bytes could be ids, so it refuses files that it
// recognises as something other than text.
func textOf(from io.Reader) (io.Reader, error) {
	text := bufio.NewReader(from)
	start, err := text.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read line 1: %w", err)
	}
	for _, other := range noText {
		if bytes.HasPrefix(start, []byte(other.magic)) {
			return nil, kafka.OperatorErrorf("the file is %s", other.what)
		}
	}
	if bytes.HasPrefix(start, []byte(byteOrderMark)) {
		_, err = text.Discard(len(byteOrderMark))
		return text, err
	}
	return text, nil
}

// Next implements Source.
func (s *linesSource) Next() ([]Seed, error) {
	for s.scanner.Scan() {
		s.number++
		line := bytes.TrimRight(s.scanner.Bytes(), "\r")
		if len(line) == 0 {
			continue
		}
		s.seeds = s.seeds[:0]
		if err := s.read(line); err != nil {
			return nil, kafka.OperatorErrorf("line %d: %v", s.number, err)
		}
		return s.seeds, nil
	}
	if err := s.scanner.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return nil, kafka.OperatorErrorf("line %d has more than %d bytes", s.number+1, lineMax)
		}
		return nil, fmt.Errorf("read line %d: %w", s.number+1, err)
	}
	return nil, io.EOF
}

// wrapped is a line that, besides its key, has a time or, in claim mode, an outcome. If a JSON object has only
// such fields, it is wrapped and not an event.
type wrapped struct {
	ID        json.RawMessage `json:"id"`
	Event     json.RawMessage `json:"event"`
	Key       *string         `json:"key"`
	FirstSeen json.RawMessage `json:"first_seen"`
	outcomeLine
}

func (w *wrapped) names() (named int) {
	for _, has := range []bool{w.ID != nil, w.Event != nil, w.Key != nil} {
		if has {
			named++
		}
	}
	return named
}

func (s *linesSource) read(line []byte) error {
	object := bytes.TrimLeft(line, " \t")
	isObject := len(object) > 0 && object[0] == '{'
	if s.route.Mode == rules.ClaimMode {
		return s.readClaim(object, isObject)
	}
	if !isObject {
		return s.readID(line)
	}
	w, err := readWrapped(object)
	if err != nil || w.FirstSeen == nil || w.names() != 1 {
		return s.event(object, s.first)
	}
	if w.outcomeLine.isSet() {
		return fmt.Errorf("route %s is in plain mode, which stores no outcome: leave out status, result, http_status and content_type", s.route.Name)
	}
	return s.readWrapped(w)
}

func readWrapped(line []byte) (*wrapped, error) {
	w := &wrapped{}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(w); err != nil {
		return w, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return w, errors.New("more than one object")
	}
	return w, nil
}

// readWrapped reads the key and the time of a wrapped line.
func (s *linesSource) readWrapped(w *wrapped) error {
	first := s.first
	if w.FirstSeen != nil {
		var err error
		if first, err = ParseTime(string(bytes.Trim(w.FirstSeen, `"`))); err != nil {
			return err
		}
	}
	switch {
	case w.Event != nil:
		return s.event(w.Event, first)
	case first == noTime:
		return errors.New("field first_seen is missing: give it, or give all lines without one a time by --first-seen")
	case w.Key != nil:
		key, err := s.keyOf(*w.Key)
		if err != nil {
			return fmt.Errorf("field key: %w", err)
		}
		return s.key(key, first)
	}
	var ids []string
	if w.ID[0] != '[' {
		ids = []string{""}
		if err := idText(w.ID, &ids[0]); err != nil {
			return err
		}
		return s.ids(first, ids)
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(w.ID, &parts); err != nil {
		return fmt.Errorf("field id: %w", err)
	}
	for _, part := range parts {
		var text string
		if err := idText(part, &text); err != nil {
			return err
		}
		ids = append(ids, text)
	}
	return s.ids(first, ids)
}

// idText reads an id, which is text or a number.
func idText(raw json.RawMessage, to *string) error {
	if raw[0] == '"' {
		return json.Unmarshal(raw, to)
	}
	var number json.Number
	if err := json.Unmarshal(raw, &number); err != nil {
		return fmt.Errorf("field id: want text or a number, or a list of them: %s", raw)
	}
	*to = number.String()
	return nil
}

// readID reads an id and, if a tab follows it, the time after the tab.
func (s *linesSource) readID(line []byte) error {
	id, when, timed := bytes.Cut(line, []byte{'\t'})
	first := s.first
	if timed {
		var err error
		if first, err = ParseTime(string(when)); err != nil {
			return err
		}
	}
	if first == noTime {
		return errors.New("no time after a tab: give all lines without one a time by --first-seen")
	}
	if n := len(id); n > 1 && id[0] == '"' && id[n-1] == '"' {
		return fmt.Errorf("the id is in quotes: write it without, or as {\"id\":%s}", id)
	}
	err := s.ids(first, []string{string(id)})
	if err == nil || !endsAsKey(id) {
		return err
	}
	key, err := s.keyOf(string(id)) // no key of the route is made from a single id
	if err != nil {
		return err
	}
	return s.key(key, first)
}

func (s *linesSource) ids(first int64, ids []string) error {
	if s.route.AdjacentStepMS > 0 {
		return errors.New("the key of this route is made of more than an id: each line must be an event")
	}
	all, err := s.deriver.OfID(s.route.Route, ids...)
	if err != nil {
		return err
	}
	for i := range all {
		s.add(&all[i], first)
	}
	return nil
}

// event reads an event. If the route reads the time from a field, the event's own time counts.
func (s *linesSource) event(payload []byte, first int64) error {
	derived := s.deriver.Derive(&rules.Input{Topic: s.route.Topics[0], Value: payload, Timestamp: first, AsJSON: true})
	switch {
	case derived.Finding != rules.Keyed:
		return errors.New(derived.Reason)
	case derived.Route != s.route.Route:
		return fmt.Errorf("route %s takes this event, not %s", derived.Route.Name, s.route.Name)
	case derived.Time == noTime:
		return fmt.Errorf("route %s takes the time of an event from its record, and a line has none: give all lines a time by --first-seen, or each one as {\"event\":...,\"first_seen\":...}", s.route.Name)
	}
	s.add(&derived, derived.Time)
	return nil
}

func (s *linesSource) add(d *rules.Derived, first int64) {
	one := Seed{Number: s.number, Route: s.route, Digest: d.Digest, routing: d.Routing, First: first, placed: -1, details: wire.DetailsOf(d)}
	one.details.Request = ""
	if s.outcome != nil {
		one.value = s.outcome.row(d, s.appToken)
	}
	s.seeds = append(s.seeds, one)
}

// timeLayouts are the accepted layouts of a time that is not a number.
var timeLayouts = []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999Z07"}

// ParseTime parses the time in a line and returns it in Unix ms.
func ParseTime(text string) (int64, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		if n >= 1e9 && n < 1e10 { // taken as milliseconds it would be in 1970
			return 0, fmt.Errorf("first_seen %q: want Unix milliseconds, and this is a number of seconds", text)
		}
		return n, nil
	}
	for _, layout := range timeLayouts {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UnixMilli(), nil
		}
	}
	return 0, fmt.Errorf("first_seen %q: want Unix milliseconds, or a time such as 2026-11-25T22:20:00Z", text)
}
