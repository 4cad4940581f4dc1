package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/kafka"
)

// inspection has the parts that 'oncebus get' and 'oncebus forget' share: the key of
// an event, and an inspector of the app's topics.
type inspection struct {
	// derived is the key; of --key every key that it can mean.
	derived   []rules.Derived
	inspector *front.Inspector
	progress  *cli.Progress
}

// inspectOptions are the flags of 'oncebus get' and 'oncebus forget'.
type inspectOptions struct {
	eventFlags
	routesFile string
	route      string
	json       bool
	dedupKey   *string // get: the key, instead of an event
	event      bool    // get: find the first event, too
}

const inspectAbout = "It reads the event from FILE or standard input, of which only the fields of the key matter.\n" +
	"Its settings are those of 'oncebus run': brokers, app and credentials. It reads only\n" +
	"topics, so it works on any machine, even if the service does not run.\n"

// define defines the flags that get and forget share.
func (o *inspectOptions) define(fs *pflag.FlagSet) {
	fs.StringVar(&o.route, "route", "", "the `name` of the route")
	o.register(fs)
	cli.RoutesFlag(fs, &o.routesFile)
	cli.OutputFlag(fs, &o.json)
}

// inspect derives the event's key and connects. fits returns why the command cannot
// use a route. If the command has ended, done is true and code is the exit code.
func (o *inspectOptions) inspect(
	ctx context.Context, name string, rest []string, p cli.Process, fits func(*rules.Routes, *rules.Route) error,
) (in inspection, code int, done bool) {
	if o.route == "" {
		return in, cli.UsageError(p, name, "--route is missing, want the route that derives the key"), true
	}
	fail := func(code int, err error) (inspection, int, bool) {
		cli.Printf(p.Stderr, "oncebus %s: %v\n", name, err)
		return in, code, true
	}
	s, routes, err := settings.Load(p.Environ, o.routesFile)
	if err != nil {
		return fail(cli.ExitWrong, err)
	}
	route, err := findRoute(routes, s.Routes, o.route)
	if err == nil {
		err = fits(routes, route)
	}
	if err != nil {
		return fail(cli.ExitWrong, err)
	}
	if in.derived, err = o.keys(routes, route, s.Processor.KeySecret.Bytes(), rest, p.Stdin); err != nil {
		return fail(cli.ExitWrong, err)
	}
	log := cli.NewLogger(p.Stderr, slog.LevelError, s.LogFormat)
	if in.inspector, err = front.NewInspector(ctx, s.Processor.Config, routes, log); err != nil {
		return fail(codeOf(err), err)
	}
	in.progress = cli.NewProgress(p, "offsets")
	in.inspector.OnProgress(in.progress.Set)
	return in, 0, false
}

// codeOf returns the exit code for an error of the inspector. Only the app's manifest
// shows whether settings and routes are those of the app.
func codeOf(err error) int {
	if kafka.IsOperatorError(err) {
		return cli.ExitWrong
	}
	return cli.ExitFailed
}

// keys returns the key of the event, or every key that --key can mean: 64 hexadecimal
// digits are a dedup key, and may also be an id.
func (o *inspectOptions) keys(routes *rules.Routes, route *rules.Route, secret []byte, rest []string, stdin io.Reader) ([]rules.Derived, error) {
	if o.dedupKey == nil {
		payload, err := readEvent(rest, stdin)
		if err != nil {
			return nil, err
		}
		derived, err := o.derive(routes, route, secret, payload)
		return []rules.Derived{derived}, err
	}
	if len(rest) > 0 || len(o.headers) > 0 || o.recordKey != nil {
		return nil, errors.New("--key names the key, so the event is not read: leave FILE, --header and --record-key out")
	}
	deriver := routes.NewDeriver(secret)
	var all []rules.Derived
	key, err := hex.DecodeString(*o.dedupKey)
	if err == nil && len(key) == len(rules.Derived{}.Key) {
		all = route.OfKey([32]byte(key))
	}
	byID, err := deriver.OfID(route, *o.dedupKey)
	if err != nil && all == nil {
		return nil, fmt.Errorf("--key: %w", err)
	}
	return append(all, byID...), nil
}

func (o *inspectOptions) derive(routes *rules.Routes, route *rules.Route, secret, payload []byte) (rules.Derived, error) {
	derived := routes.NewDeriver(secret).Derive(o.input(route.Topics[0], payload))
	switch {
	case derived.Finding != rules.Keyed && len(payload) == 0:
		return derived, fmt.Errorf("%w: the event is empty; pass FILE or write the event to standard input; %s", errNoKey, derived.Reason)
	case derived.Finding != rules.Keyed:
		return derived, fmt.Errorf("%w: %s", errNoKey, derived.Reason)
	case derived.Route != route:
		return derived, fmt.Errorf("route %s matches this event before %s", derived.Route.Name, o.route)
	}
	return derived, nil
}

// findRoute returns the route of that name. file is for the error.
func findRoute(routes *rules.Routes, file, name string) (*rules.Route, error) {
	if route := routes.Route(name); route != nil {
		return route, nil
	}
	return nil, fmt.Errorf("%s has no route %q; it has %s", file, name, routeNames(routes, anyRoute))
}

func anyRoute(*rules.Route) bool { return true }

func inClaimMode(r *rules.Route) bool { return r.Mode == rules.ClaimMode }

// routeNames lists the wanted routes for an error.
func routeNames(routes *rules.Routes, wanted func(*rules.Route) bool) string {
	var names []string
	for _, r := range routes.Routes {
		if wanted(r) {
			names = append(names, r.Name)
		}
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

// routeWords returns the words that a shell completes: the names of the routes for
// --route, and their input topics for --topic. file is the value of --routes.
func routeWords(file *string) func(p cli.Process, flag string) []string {
	return func(p cli.Process, flag string) []string {
		s, _ := settings.Parse(p.Environ) // without a valid one there is no routes file, or the default
		routes, err := settings.ReadRoutes(cmp.Or(*file, s.Routes))
		if err != nil {
			return nil
		}
		var words []string
		for _, r := range routes.Routes {
			switch flag {
			case "route":
				words = append(words, r.Name)
			case "topic":
				words = append(words, r.Topics...)
			}
		}
		return words
	}
}
