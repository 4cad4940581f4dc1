package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"oncebus/dedup/rules"
	"oncebus/processor/deadletter"
	"oncebus/processor/front"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// selection says which keys a command is about. The user selects them in exactly one way: by an event, a dedup
// key, an id, a record, or a file of several.
type selection struct {
	eventFlags
	route    string
	dedupKey *string
	ids      []string
	record   string // topic/partition/offset
	file     string // of forget

	routes *rules.Routes
	secret []byte
}

// takeHeaders moves the headers of oncebus out of the event, because a person may paste the output of a console
// consumer. The headers with the key and the route select the row; all other headers of oncebus are dropped.
func (s *selection) takeHeaders() {
	s.headers = slices.DeleteFunc(s.headers, func(h header) bool {
		switch {
		case h.name == wire.HeaderKey:
			s.dedupKey = &h.value
		case h.name == wire.HeaderRoute && s.route == "":
			s.route = h.value
		}
		return wire.IsReserved(h.name)
	})
}

// check returns a mistake in the combination of flags.
func (s *selection) check(rest []string) error {
	var ways []string
	for _, way := range []struct {
		name string
		used bool
	}{{"--key", s.dedupKey != nil}, {"--id", len(s.ids) > 0}, {"--record", s.record != ""}, {"--file", s.file != ""}} {
		if way.used {
			ways = append(ways, way.name)
		}
	}
	switch {
	case len(ways) > 1:
		return fmt.Errorf("%s exclude each other", strings.Join(ways, " and "))
	case len(ways) == 1 && (len(rest) > 0 || len(s.headers) > 0 || s.recordKey != nil):
		return fmt.Errorf("%s names the key, so the event is not read: leave FILE, --header and --record-key out", ways[0])
	case len(ways) == 0 && s.route == "":
		return errors.New("--route is missing, want the route that derives the key; --key, --id and --record may do without")
	}
	return nil
}

// candidates returns the routes to which the key may belong: the route of --route, or all routes.
func (s *selection) candidates() []*rules.Route {
	if s.route != "" {
		return []*rules.Route{s.routes.Route(s.route)}
	}
	return s.routes.Routes
}

// targets returns the selected keys. The keys of a record are unknown until the command has connected to Kafka.
func (s *selection) targets(rest []string, stdin io.Reader) ([]front.Target, error) {
	switch {
	case s.record != "":
		_, err := s.position()
		return nil, err
	case s.file != "":
		return s.fileTargets(stdin)
	case s.dedupKey != nil:
		return one(s.byKey("--key", *s.dedupKey))
	case len(s.ids) > 0:
		return one(s.byID("--id", s.ids...))
	}
	payload, err := readEvent(rest, stdin)
	if err != nil {
		return nil, err
	}
	derived, err := s.derive(payload)
	return []front.Target{{Text: "the event", Keys: []rules.Derived{derived}}}, err
}

func one(t front.Target, err error) ([]front.Target, error) { return []front.Target{t}, err }

// byKey returns every key that a text can mean: 64 hexadecimal digits are a dedup key, but they may also be an
// id.
func (s *selection) byKey(name, text string) (front.Target, error) {
	t := front.Target{Text: text}
	if key, err := hex.DecodeString(text); err == nil && len(key) == len(rules.Derived{}.Key) {
		for _, route := range s.candidates() {
			t.Keys = append(t.Keys, route.OfKey([32]byte(key))...)
		}
	}
	byID, err := s.byID(name, text)
	t.Keys = append(t.Keys, byID.Keys...)
	if len(t.Keys) > 0 {
		err = nil
	}
	return t, err
}

// byID returns the keys that an id, or the parts of a composite id, have in the candidate routes.
func (s *selection) byID(name string, ids ...string) (front.Target, error) {
	t := front.Target{Text: strings.Join(ids, " ")}
	deriver := s.routes.NewDeriver(s.secret)
	var mistakes []error
	for _, route := range s.candidates() {
		derived, err := deriver.OfID(route, ids...)
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s: %w", name, err))
		}
		t.Keys = append(t.Keys, derived...)
	}
	if len(t.Keys) > 0 {
		return t, nil
	}
	return t, errors.Join(mistakes...)
}

// derive returns the key that the route derives for an event.
func (s *selection) derive(payload []byte) (rules.Derived, error) {
	route := s.routes.Route(s.route)
	derived := s.routes.NewDeriver(s.secret).Derive(s.input(route.Topics[0], payload))
	switch {
	case derived.Finding != rules.Keyed && len(payload) == 0:
		return derived, fmt.Errorf("%w: the event is empty; pass FILE or write the event to standard input; %s", errNoKey, derived.Reason)
	case derived.Finding != rules.Keyed:
		return derived, fmt.Errorf("%w: %s", errNoKey, derived.Reason)
	case derived.Route != route:
		return derived, fmt.Errorf("route %s matches this event before %s", derived.Route.Name, s.route)
	}
	return derived, nil
}

// lineBytesMax is the longest line of --file in bytes.
const lineBytesMax = 16 << 20

// fileTargets returns the keys in a file. Each line is an event as a JSON object, the parts of a composite id
// as a JSON array, a dedup key, or an id. fileTargets reports all mistakes in the file together.
func (s *selection) fileTargets(stdin io.Reader) ([]front.Target, error) {
	in := io.NopCloser(stdin)
	if s.file != "-" {
		var err error
		if in, err = os.Open(s.file); err != nil {
			return nil, err
		}
	}
	defer in.Close() //nolint:errcheck // it was only read
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, lineBytesMax)
	var targets []front.Target
	var mistakes []error
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		t, err := s.lineTarget(line)
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s:%d: %w", s.file, n, err))
		}
		t.Text = fmt.Sprintf("%s:%d", s.file, n)
		targets = append(targets, t)
	}
	if err := lines.Err(); err != nil {
		mistakes = append(mistakes, fmt.Errorf("read %s: %w", s.file, err))
	}
	if len(targets) == 0 && len(mistakes) == 0 {
		return nil, fmt.Errorf("%s has no line", s.file)
	}
	const shown = 10
	if n := len(mistakes) - shown; n > 0 {
		mistakes = append(mistakes[:shown], fmt.Errorf("and %s", plural(n, "further mistake")))
	}
	return targets, errors.Join(mistakes...)
}

func (s *selection) lineTarget(line []byte) (front.Target, error) {
	switch line[0] {
	case '{':
		if s.route == "" {
			return front.Target{}, errors.New("an event needs --route, the route that derives its key")
		}
		derived, err := s.derive(line)
		return front.Target{Keys: []rules.Derived{derived}}, err
	case '[':
		var ids []string
		if err := json.Unmarshal(line, &ids); err != nil {
			return front.Target{}, fmt.Errorf("want a JSON array of texts, the parts of an id: %w", err)
		}
		return s.byID("the ids", ids...)
	}
	return s.byKey("the line", string(line))
}

// position parses the position of --record.
func (s *selection) position() (deadletter.Position, error) {
	at, err := deadletter.ParsePosition(s.record)
	if err != nil {
		return at, fmt.Errorf("--record is %q, want TOPIC/PARTITION/OFFSET", s.record)
	}
	return at, nil
}

// ofRecord reads the record that --record names and returns its keys.
func (s *selection) ofRecord(ctx context.Context, inspector *front.Inspector) ([]front.Target, error) {
	at, err := s.position()
	if err != nil {
		return nil, err
	}
	rec, err := inspector.ReadRecord(ctx, at.Topic, at.Partition, at.Offset)
	if err != nil {
		return nil, err
	}
	keys, err := inspector.KeysOf(ctx, rec)
	if err != nil {
		return nil, err
	}
	if s.route != "" {
		keys = slices.DeleteFunc(keys, func(d rules.Derived) bool { return d.Route.Name != s.route })
		if len(keys) == 0 {
			return nil, kafka.OperatorErrorf("record %s is not of route %s", s.record, s.route)
		}
	}
	return []front.Target{{Text: s.record, Keys: keys}}, nil
}
