package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/kafka"
)

// inspection has what 'oncebus get' and 'oncebus forget' share: the selected keys, and an inspector that reads
// the topics of the app.
type inspection struct {
	targets   []front.Target
	inspector *front.Inspector
	progress  *cli.Progress
}

// inspectOptions are the flags of 'oncebus get' and 'oncebus forget'.
type inspectOptions struct {
	selection
	routesFile string
	json       bool
	shown      getOptions
	erased     forgetOptions
}

const inspectAbout = "An event selects the row of its key. It is read from FILE or standard input, and only the\n" +
	"fields of the key matter. In its place --key, --id or --record select the row. They need no\n" +
	"--route if only one route has such a key. A header oncebus-key or oncebus-route counts as\n" +
	"--key or --route. The settings are those of 'oncebus run': brokers, app and credentials.\n"

// define defines the flags that get and forget share.
func (o *inspectOptions) define(fs *pflag.FlagSet) {
	fs.StringVar(&o.route, "route", "", "the `name` of the route")
	o.register(fs)
	fs.Func("key", "the dedup `key` of 64 hexadecimal digits, as in a response or log line, or the id that it was derived from", func(s string) error {
		o.dedupKey = &s
		return nil
	})
	fs.Func("id", "the raw `id`; the rule of the route applies to it. Of a composite id repeat it for each\n"+
		"part, in the order of the route's fields", func(s string) error {
		o.ids = append(o.ids, s)
		return nil
	})
	fs.StringVar(&o.record, "record", "", "a record at `TOPIC/PARTITION/OFFSET` that has the key: a duplicate, a dead letter, a reply,\n"+
		"or a record of an input or output")
	cli.RoutesFlag(fs, &o.routesFile)
	cli.OutputFlag(fs, &o.json)
}

// inspect finds the selected keys and connects to Kafka. If done is true, the command has ended already and
// code is its exit code.
func (o *inspectOptions) inspect(ctx context.Context, name string, rest []string, p cli.Process) (in inspection, code int, done bool) {
	o.takeHeaders()
	if err := o.check(rest); err != nil {
		return in, cli.UsageError(p, name, err.Error()), true
	}
	fail := func(code int, err error) (inspection, int, bool) {
		cli.Printf(p.Stderr, "oncebus %s: %v\n", name, err)
		return in, code, true
	}
	s, routes, err := settings.Load(p.Environ, o.routesFile)
	if err != nil {
		return fail(cli.ExitWrong, err)
	}
	if o.route != "" {
		if _, err := findRoute(routes, s.Routes, o.route); err != nil {
			return fail(cli.ExitWrong, err)
		}
	}
	o.routes, o.secret = routes, s.Processor.KeySecret.Bytes()
	if in.targets, err = o.targets(rest, p.Stdin); err != nil {
		return fail(cli.ExitWrong, err)
	}
	log := cli.NewLogger(p.Stderr, slog.LevelError, s.LogFormat)
	if in.inspector, err = front.NewInspector(ctx, s.Processor.Config, routes, log); err != nil {
		return fail(codeOf(err), err)
	}
	if o.record != "" {
		in.targets, err = o.ofRecord(ctx, in.inspector)
	}
	if err != nil {
		in.inspector.Close()
		return fail(codeOf(err), err)
	}
	if o.route == "" {
		in.dropUnknown()
	}
	in.progress = cli.NewProgress(p, "offsets")
	in.inspector.OnProgress(in.progress.Set)
	return in, 0, false
}

// dropUnknown drops the keys of routes that the app has never run, as long as other keys are left. Such routes
// are not always a mistake, because the routes file may be newer than the running app.
func (in *inspection) dropUnknown() {
	for t := range in.targets {
		target := &in.targets[t]
		known := slices.DeleteFunc(slices.Clone(target.Keys), func(d rules.Derived) bool { return !in.inspector.Knows(d.Route) })
		if len(known) > 0 {
			target.Keys = known
		}
	}
}

// codeOf returns the exit code for an error of the inspector. For a mistake of the operator it returns
// ExitWrong, although the command has already read from Kafka: only the app's manifest shows whether the
// settings and routes belong to the app.
func codeOf(err error) int {
	if kafka.IsOperatorError(err) {
		return cli.ExitWrong
	}
	return cli.ExitFailed
}

// findRoute returns the route with this name. file is the name of the routes file, for the error.
func findRoute(routes *rules.Routes, file, name string) (*rules.Route, error) {
	if route := routes.Route(name); route != nil {
		return route, nil
	}
	return nil, fmt.Errorf("%s has no route %q; it has %s", file, name, routeNames(routes))
}

func inClaimMode(r *rules.Route) bool { return r.Mode == rules.ClaimMode }

// routeNames lists the names of the routes, for an error.
func routeNames(routes *rules.Routes) string {
	var names []string
	for _, r := range routes.Routes {
		names = append(names, r.Name)
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

// routeWords returns the words with which a shell completes --route (names of routes) and --topic (their input
// topics). file is the value of --routes.
func routeWords(file *string) func(p cli.Process, flag string) []string {
	return func(p cli.Process, flag string) []string {
		s, _ := settings.Parse(p.Environ) // if the settings are wrong, the routes file is missing or the default file
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
