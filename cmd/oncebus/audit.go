package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/formats"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/audit"
	"oncebus/processor/registry"
)

const auditAbout = "Reads topics once and shows what key rules would find there: keys, copies by delay, partition,\n" +
	"sender and hour, copies with another payload, and a window and a grace period for a route. It\n" +
	"needs no routes file and no app, writes nothing, joins no group, and needs the rights Read and\n" +
	"Describe. It reads the records that were there at its start and whose transactions had ended.\n\n" +
	"A rule is one key source, or several with a semicolon between them, of which the first that\n" +
	"yields a key counts, as in a routes file: field:id, fields:account,id, hash:symbol,side,time,\n" +
	"record_key, header:NAME, cloudevent, payload, payload:exclude=sentAt, raw. A text in brackets\n" +
	"is the value of key of a routes file: '[{field: id, normalise: [lower]}]'.\n\n" +
	"Counts are exact while all keys fit into memory: about 65 bytes each. Beyond --keys-max they\n" +
	"are those of a sample of the keys, each with its standard error, or exact with --exact.\n" +
	"Brokers, TLS and credentials are the settings of 'oncebus run'."

// auditOptions are the flags of 'oncebus audit'.
type auditOptions struct {
	brokers, topics []string
	keys            []string
	time, sender    string
	format          string
	ignore          []string
	suggest         bool
	routesFile      string
	route           string
	keysMax         int
	exact           string
	from, to, since string
	report          string
	json            bool
}

// keysMaxDefault is how many keys an audit holds in memory by default; they need some 350 MB.
const keysMaxDefault = 5_000_000

// auditCommand is 'oncebus audit'.
func auditCommand() cli.Command {
	var o auditOptions
	return cli.Command{
		Name: "audit", Synopsis: "--topic NAME --key RULE [OPTIONS]", About: "show the copies in any topic, and the key rule, window and grace it needs",
		Long: auditAbout,
		Example: "oncebus audit --brokers localhost:9092 --topic orders --suggest\n" +
			"oncebus audit --brokers localhost:9092 --topic orders --key field:id --key hash:symbol,side,time\n" +
			"oncebus audit --routes routes.yaml --route signals --since 72h --report audit.html",
		Flags: o.define,
		Words: routeWords(&o.routesFile),
		Run:   o.run,
	}
}

func (o *auditOptions) define(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.brokers, "brokers", nil, "seed brokers as `host:port`, comma separated; default: $ONCEBUS_BROKERS")
	fs.StringArrayVar(&o.topics, "topic", nil, "a `topic` to read; repeat it to read several as one log")
	fs.StringArrayVar(&o.keys, "key", nil, "a key `rule`; repeat it to compare rules")
	fs.BoolVar(&o.suggest, "suggest", false, "also try the rules that the first records suggest, and rank all")
	fs.StringVar(&o.routesFile, "routes", "", "the routes `file` of --route; default: $ONCEBUS_ROUTES, or routes.yaml")
	fs.StringVar(&o.route, "route", "", "the `name` of a route whose key, time and sender are audited, in its topics")
	fs.StringVar(&o.time, "time", "", "the payload `field` with the event time, as FIELD or FIELD:FORMAT with unix_ms, unix_s or\n"+
		"rfc3339; default: the timestamp of the record")
	fs.StringVar(&o.format, "format", "", "`format` of the records: json, avro, protobuf, json_schema, cbor or msgpack; default: json, with --route that of the route")
	fs.StringVar(&o.sender, "sender", "", "`what` names the sender: header:NAME, field:PATH or producer_id")
	fs.StringSliceVar(&o.ignore, "ignore", nil, "payload `fields` that may differ between copies, such as sentAt, comma separated")
	fs.StringVar(&o.from, "from", "", "read records from this `time` on: RFC 3339, or a duration before now such as 72h")
	fs.StringVar(&o.to, "to", "", "read records before this `time`")
	fs.StringVar(&o.since, "since", "", "the same as --from, for a `duration` before now")
	fs.IntVar(&o.keysMax, "keys-max", keysMaxDefault, "the `number` of keys in memory, of all rules together, from 1000")
	fs.StringVar(&o.exact, "exact", "", "a `directory` in which keys beyond --keys-max are counted exactly: about 35 bytes for each\n"+
		"of their records, removed at the end")
	fs.StringVar(&o.report, "report", "", "also write a page with charts to this `file`, which a browser shows without a network")
	cli.OutputFlag(fs, &o.json)
}

func (o *auditOptions) run(ctx context.Context, _ []string, p cli.Process) int {
	span, err := o.check(p.Clock()())
	if err != nil {
		return cli.UsageError(p, "audit", err.Error())
	}
	s, err := settings.Parse(p.Environ)
	if len(o.brokers) > 0 {
		s.Processor.Brokers = o.brokers
	}
	if err = errors.Join(err, s.Processor.Config.Validate()); err != nil {
		return fail(p, "audit", cli.ExitWrong, err)
	}
	w := &auditWork{auditOptions: o, p: p, secret: s.Processor.KeySecret.Bytes(), ignored: o.ignore}
	if w.schemas, err = registry.New(s.Processor.Schema, slog.New(slog.DiscardHandler)); err != nil {
		return fail(p, "audit", cli.ExitWrong, err)
	}
	if err := w.readRules(s); err != nil {
		return fail(p, "audit", cli.ExitWrong, err)
	}
	// By default Go lets the heap double between two garbage collections, so the keys would need twice their
	// memory.
	bounded, stop := context.WithCancel(ctx)
	var heap sync.WaitGroup
	heap.Go(func() { boundHeap(bounded, p.Environ) })
	shown, err := w.read(ctx, s.Processor.Config, span, cli.NewLogger(p.Stderr, slog.LevelError, s.LogFormat))
	stop()
	heap.Wait()
	if err != nil {
		return fail(p, "audit", codeOf(err), err)
	}
	if o.report != "" {
		if err := writeReport(o.report, shown); err != nil {
			return fail(p, "audit", cli.ExitFailed, err)
		}
	}
	if o.json {
		encoder := json.NewEncoder(p.Stdout)
		encoder.SetEscapeHTML(false)
		err = encoder.Encode(shown)
	} else {
		err = shown.write(p.Stdout)
	}
	if err != nil {
		return fail(p, "audit", cli.ExitFailed, err)
	}
	return cli.ExitStopped
}

// check returns the first mistake in the flags, and the span of time that they select.
func (o *auditOptions) check(now time.Time) (span audit.Span, err error) {
	if o.since != "" {
		if o.from != "" {
			return span, errors.New("want either --from or --since")
		}
		if span.From, err = timeOf("since", o.since, now); err != nil {
			return span, err
		}
	} else if span.From, err = timeOf("from", o.from, now); err != nil {
		return span, err
	}
	if span.To, err = timeOf("to", o.to, now); err != nil {
		return span, err
	}
	if o.exact != "" {
		if d, err := os.Stat(o.exact); err != nil || !d.IsDir() {
			return span, fmt.Errorf("--exact %q: want a directory that exists", o.exact)
		}
	}
	switch {
	case span.From != 0 && span.To != 0 && span.From >= span.To:
		return span, errors.New("--from is not before --to, so no record is between them")
	case o.keysMax < 1000:
		return span, fmt.Errorf("--keys-max is a number from 1000, not %d", o.keysMax)
	case o.route == "" && len(o.topics) == 0:
		return span, errors.New("want --topic, or --route of a routes file")
	case o.route == "" && len(o.keys) == 0 && !o.suggest:
		return span, errors.New("want --key, or --suggest to find one, or --route")
	case o.route == "" && o.routesFile != "":
		return span, errors.New("--routes needs --route, the name of a route of it")
	case o.route != "" && (o.time != "" || o.sender != "" || o.format != ""):
		return span, errors.New("--time, --sender and --format are those of the route; leave them out")
	case slices.Contains(o.topics, ""):
		return span, errors.New("--topic: want a name")
	case len(slices.Compact(slices.Sorted(slices.Values(o.topics)))) < len(o.topics):
		return span, errors.New("--topic names a topic twice, whose records would count as copies")
	}
	return span, nil
}

// auditWork is an audit, with the key rules that it compares.
type auditWork struct {
	*auditOptions

	p       cli.Process
	secret  []byte
	rules   []*audit.Rule
	source  audit.Source
	ignored []string
	content *audit.Rule // compares payloads; nil: payloads are compared byte by byte
	schemas *registry.Registry
}

// readRules reads the rules of the command line. Its error names every mistake.
func (w *auditWork) readRules(s settings.Settings) error {
	format, err := formatNamed(w.format)
	if err != nil {
		return err
	}
	w.source = audit.Source{Topics: w.topics, Time: w.time, Sender: w.sender, Format: format}
	if w.route != "" {
		path := s.Routes
		if w.routesFile != "" {
			path = w.routesFile
		}
		routes, err := settings.ReadRoutes(path)
		if err != nil {
			return err
		}
		route, err := findRoute(routes, path, w.route)
		if err != nil {
			return err
		}
		if len(w.topics) == 0 {
			w.topics = route.Topics
		}
		for _, t := range w.topics {
			if !slices.Contains(route.Topics, t) {
				return fmt.Errorf("--topic %s: route %s reads %s", t, route.Name, strings.Join(route.Topics, ", "))
			}
		}
		w.source = sourceOf(route, w.topics)
		w.rules = append(w.rules, audit.RouteRule(routes, route))
	}
	var errs []error
	for _, text := range w.keys {
		r, err := audit.NewRule(text, w.source)
		errs = append(errs, err)
		w.rules = append(w.rules, r)
	}
	if len(w.keys) == 0 && len(w.rules) == 0 { // no rule was given, but the other options may have mistakes, too
		_, err := audit.NewRule("raw", w.source)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, w.compare())...)
}

// formatNamed returns the format that --format names; "" means JSON.
func formatNamed(name string) (f rules.RecordFormat, err error) {
	if name == "" {
		return f, nil
	}
	at := slices.Index(formats.Names(), name)
	if at < 0 {
		return f, fmt.Errorf("--format %q: want %s", name, strings.Join(formats.Names(), ", "))
	}
	f.Format = formats.Format(at)
	return f, nil
}

// sourceOf returns the settings that the rules on the command line take from a route.
func sourceOf(r *rules.Route, topics []string) audit.Source {
	s := audit.Source{Topics: topics, Secret: r.Secret, Format: r.FormatOf(topics[0])}
	if r.Time != nil {
		s.Time = r.Time.Field.Path.Text + ":" + r.Time.Format.String()
	}
	return s
}

// compare makes the rule with which payloads are compared.
func (w *auditWork) compare() (err error) {
	if len(w.ignored) == 0 {
		return nil
	}
	w.content, err = audit.NewRule("payload:exclude="+strings.Join(w.ignored, ","), audit.Source{Topics: w.topics, Format: w.source.Format})
	if err != nil {
		return fmt.Errorf("--ignore %s: %w", strings.Join(w.ignored, ","), err)
	}
	return nil
}

// read connects to Kafka and does the audit.
func (w *auditWork) read(ctx context.Context, cfg app.Config, span audit.Span, log *slog.Logger) (*shownAudit, error) {
	l, err := audit.Open(ctx, cfg, w.topics, span, log)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if w.suggest {
		if err := w.addSuggested(ctx, l); err != nil {
			return nil, err
		}
	}
	var progress *cli.Progress
	var phase audit.Phase
	watch := func(now audit.Phase, done, total int64) {
		if now != phase {
			if progress != nil {
				progress.End()
			}
			phase, progress = now, cli.NewProgress(w.p, string(now))
		}
		progress.Set(done, total)
	}
	a, err := audit.Run(ctx, l, w.rules, audit.Options{KeysMax: w.keysMax, Dir: w.exact, Secret: w.secret, Schemas: w.schemas, Content: w.content, Now: w.p.Clock()(), Watch: watch})
	if progress != nil {
		progress.End()
	}
	if err != nil {
		return nil, err
	}
	return w.show(a), nil
}

// addSuggested adds the rules that audit.Suggest derives from the first records.
func (w *auditWork) addSuggested(ctx context.Context, l *audit.Log) error {
	candidates, volatile, err := audit.Suggest(ctx, l)
	if err != nil {
		return err
	}
	if len(w.ignored) == 0 {
		w.ignored = volatile
		if err := w.compare(); err != nil {
			return err
		}
	}
	for _, text := range candidates {
		if slices.ContainsFunc(w.rules, func(r *audit.Rule) bool { return r.Text == text }) {
			continue
		}
		r, err := audit.NewRule(text, w.source)
		if err != nil {
			continue // the name of the field cannot be a path in a rule
		}
		w.rules = append(w.rules, r)
	}
	return nil
}
