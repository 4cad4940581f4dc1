package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor/registry"
)

// keyLineMax is the longest line of 'oncebus key --lines' in bytes. No real event is that long, because with
// its default settings a broker would reject the record.
const keyLineMax = 64 << 20

// keyOptions are the flags of 'oncebus key'.
type keyOptions struct {
	eventFlags
	routesFile string
	topic      string
	route      string
	json       bool
	lines      bool
	encoded    bool
}

// keyCommand is 'oncebus key'.
func keyCommand() cli.Command {
	var o keyOptions
	return cli.Command{
		Name: "key", Synopsis: "--topic TOPIC | --route NAME [OPTIONS] [FILE|-]", About: "print the dedup key that a route derives for an event, and how", ArgsMax: 1,
		Long: "Prints the dedup key that a route derives for an event, and the bytes that it hashes, so\n" +
			"that another tool can recompute the key. It reads the payload unchanged from FILE, or from\n" +
			"standard input: as JSON, or with --encoded in the format of the route, whose schema it\n" +
			"takes from its file or from the registry of ONCEBUS_SCHEMA_REGISTRY_URL. A route with a secret takes it from ONCEBUS_KEY_SECRET or\n" +
			"ONCEBUS_KEY_SECRET_FILE. Exit code 1: no key can be derived.",
		Example: `echo '{"traceId":"t1"}' | oncebus key --routes deployments/routes/signals.yaml --route signals`,
		Flags: func(fs *pflag.FlagSet) {
			cli.RoutesFlag(fs, &o.routesFile)
			fs.StringVar(&o.topic, "topic", "", "the input `topic` of the event; its routes are tried in order")
			fs.StringVar(&o.route, "route", "", "the `name` of the route, instead of --topic")
			o.register(fs)
			fs.BoolVar(&o.encoded, "encoded", false, "the event is in the format of the route, such as Avro, and not in JSON")
			fs.BoolVar(&o.lines, "lines", false, "read every line of the input as an event, and print one line for each")
			cli.OutputFlag(fs, &o.json)
		},
		Words: routeWords(&o.routesFile),
		Run:   o.run,
	}
}

func (o *keyOptions) run(ctx context.Context, rest []string, p cli.Process) int {
	if (o.topic == "") == (o.route == "") {
		return cli.UsageError(p, "key", "want either --topic or --route")
	}
	if o.encoded && o.lines {
		return cli.UsageError(p, "key", "want either --encoded or --lines: a line is text")
	}
	k, err := newKeyPrinter(*o, p)
	if err != nil {
		cli.Printf(p.Stderr, "%v\n", err)
		return cli.ExitWrong
	}
	in, err := openPayload(rest, p.Stdin)
	if err != nil {
		cli.Printf(p.Stderr, "oncebus key: %v\n", err)
		return cli.ExitWrong
	}
	defer in.Close() //nolint:errcheck // it was only read
	if err := k.print(ctx, in); err != nil {
		cli.Printf(p.Stderr, "oncebus key: %v\n", err)
		return cli.ExitFailed
	}
	return cli.ExitStopped
}

// keyPrinter derives and prints dedup keys.
type keyPrinter struct {
	keyOptions
	deriver *rules.Deriver
	schemas *registry.Registry
	out     io.Writer
}

// newKeyPrinter reads the routes and the secret. Each of its errors means that settings are wrong.
func newKeyPrinter(o keyOptions, p cli.Process) (*keyPrinter, error) {
	s, settingsErr := settings.Parse(p.Environ)
	if o.routesFile != "" {
		s.Routes = o.routesFile
	}
	routes, err := settings.ReadRoutes(s.Routes)
	if err := errors.Join(settingsErr, err); err != nil {
		return nil, err
	}
	if err := s.Processor.CheckSecret(routes.NeedsSecret()); err != nil {
		return nil, err
	}
	if o.route != "" {
		route, err := findRoute(routes, s.Routes, o.route)
		if err != nil {
			return nil, err
		}
		o.topic = route.Topics[0]
	}
	s.Processor.Schema.Dir = cmp.Or(s.Processor.Schema.Dir, filepath.Dir(s.Routes))
	schemas, err := registry.New(s.Processor.Schema, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	deriver := routes.NewDeriver(s.Processor.KeySecret.Bytes()).Using(schemas.Schemas)
	return &keyPrinter{keyOptions: o, deriver: deriver, schemas: schemas, out: p.Stdout}, nil
}

// errNoKey means that an event has no dedup key.
var errNoKey = errors.New("no key can be derived")

// print explains every event of the input. With --lines, an event without a key gets a line with the error, and
// print continues with the next line.
func (k *keyPrinter) print(ctx context.Context, in io.Reader) error {
	if !k.lines {
		payload, err := io.ReadAll(in)
		if err != nil {
			return fmt.Errorf("read the event: %w", err)
		}
		shown := k.explain(ctx, payload)
		if shown.Error == "" || k.json {
			if err := k.write(shown); err != nil {
				return err
			}
		}
		if shown.Error != "" {
			return fmt.Errorf("%w: %s", errNoKey, shown.Error)
		}
		return nil
	}
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, keyLineMax)
	failed, line := 0, 0
	for scanner.Scan() && ctx.Err() == nil {
		line++
		shown := k.explain(ctx, scanner.Bytes())
		if shown.Error != "" {
			failed++
		}
		if err := k.writeLine(shown); err != nil {
			return err
		}
	}
	if err := errors.Join(scanner.Err(), ctx.Err()); err != nil {
		return fmt.Errorf("read line %d: %w", line+1, err)
	}
	if failed > 0 {
		return fmt.Errorf("%w for %d of %s", errNoKey, failed, plural(line, "event"))
	}
	return nil
}

// shownKey explains a key; if there is no key, Error tells why. Its JSON names are an interface.
type shownKey struct {
	Key       string   `json:"key,omitempty"`
	Route     string   `json:"route,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Tenant    string   `json:"tenant,omitempty"`
	Source    string   `json:"source,omitempty"`
	Preset    string   `json:"preset,omitempty"` // why the preset of the route's provider chooses this key
	Hash      string   `json:"hash,omitempty"`
	Hashed    string   `json:"hashed,omitempty"`     // the hashed bytes as text, if they are printable
	HashedHex string   `json:"hashed_hex,omitempty"` // the hashed bytes, if they are not printable
	Digest    string   `json:"digest,omitempty"`     // the key in the state store
	Time      int64    `json:"time,omitempty"`       // event time, Unix milliseconds
	Skipped   []string `json:"skipped,omitempty"`    // key sources that yielded no key
	Compared  []string `json:"compared,omitempty"`   // what the routes of the topic compared, if none of them takes the event
	Hint      string   `json:"hint,omitempty"`
	Error     string   `json:"error,omitempty"`
}

func (k *keyPrinter) explain(ctx context.Context, payload []byte) shownKey {
	in := k.input(k.topic, payload)
	in.AsJSON = !k.encoded
	if _, err := k.schemas.Derive(ctx, k.deriver, in); err != nil { // loads the schema
		return shownKey{Error: err.Error()}
	}
	derived, explanation := k.deriver.Explain(in)
	shown := shownKey{Skipped: explanation.Skipped, Compared: explanation.Compared}
	if derived.Route != nil && shown.Compared == nil {
		shown.Route = derived.Route.Name
	}
	switch {
	case derived.Finding != rules.Keyed:
		shown.Error = strings.Join(append([]string{derived.Reason}, shown.Compared...), "; ")
		return shown
	case k.route != "" && k.route != shown.Route:
		shown.Error = fmt.Sprintf("route %s matches this event before %s", shown.Route, k.route)
		return shown
	}
	shown.Key, shown.Digest = hex.EncodeToString(derived.Key[:]), derived.Digest.String()
	shown.Namespace, shown.Tenant, shown.Source, shown.Time = derived.Route.Namespace, derived.Tenant, derived.Source, derived.Time
	if h := derived.Route.HTTP; h != nil {
		if p := rules.ProviderOf(h.Provider); p != nil && p.Keys(derived.Route) {
			shown.Preset = p.Name + ": " + p.Why
		}
	}
	if derived.Source == "raw" && bytes.HasSuffix(payload, []byte("\n")) {
		shown.Hint = "raw hashes the line break at the end too: without one in Kafka, give the event by printf '%s', or by --lines"
	}
	shown.Hash = "SHA-256"
	if explanation.HMAC {
		shown.Hash = "HMAC-SHA-256"
	}
	if printable(explanation.Hashed) {
		shown.Hashed = string(explanation.Hashed)
	} else {
		shown.HashedHex = hex.EncodeToString(explanation.Hashed)
	}
	return shown
}

// write prints a key as a table or as JSON.
func (k *keyPrinter) write(s shownKey) error {
	if k.json {
		return k.writeLine(s)
	}
	hashed := s.Hashed
	if s.HashedHex != "" {
		hashed = "hex " + s.HashedHex
	}
	tw := tabwriter.NewWriter(k.out, 0, 0, 2, ' ', 0)
	for _, line := range []fact{
		{"key", s.Key}, {"route", s.Route}, {"namespace", s.Namespace}, {"tenant", s.Tenant}, {"source", s.Source},
		{"hash", s.Hash + " of the next line's bytes"}, {"hashed", hashed},
		{"digest", s.Digest + " (the key of its row)"},
		{"time", strconv.FormatInt(s.Time, 10) + " (" + time.UnixMilli(s.Time).UTC().Format(time.RFC3339Nano) + ")"},
	} {
		if line.value != "" {
			cli.Printf(tw, "%s\t%s\n", line.name, line.value)
		}
	}
	if s.Preset != "" {
		cli.Printf(tw, "preset\t%s\n", s.Preset)
	}
	if s.Hint != "" {
		cli.Printf(tw, "hint\t%s\n", s.Hint)
	}
	for _, skipped := range s.Skipped {
		cli.Printf(tw, "skipped\t%s\n", skipped)
	}
	return tw.Flush()
}

// writeLine prints a key on one line; if there is no key, it prints the reason.
func (k *keyPrinter) writeLine(s shownKey) error {
	if !k.json {
		line := s.Key
		if s.Error != "" {
			line = "error: " + s.Error
		}
		_, err := fmt.Fprintln(k.out, line)
		return err
	}
	encoder := json.NewEncoder(k.out)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(s)
}

// printable reports whether b can be printed unchanged on a single line.
func printable(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	return !strings.ContainsFunc(string(b), func(r rune) bool { return !unicode.IsPrint(r) })
}
