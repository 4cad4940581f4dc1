package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor/deadletter"
	"oncebus/processor/kafka"
)

// deadLettersCommand is 'oncebus dead-letters'.
func deadLettersCommand() cli.Command {
	return cli.Command{
		Name: "dead-letters", Synopsis: "COMMAND [OPTIONS]", About: "list the records that were turned away, and send them back",
		Long: "Works on the dead-letter topics of the routes file: lists their records, shows one, sends\n" +
			"records back to the input that they came from, or marks them as done. Its settings are\n" +
			"those of 'oncebus run'. It reads only topics, so it works on any machine, even if the\n" +
			"service does not run.",
		Example:  "oncebus dead-letters list --summary",
		Commands: cli.Commands{listLettersCommand, showLetterCommand, redriveCommand, dropCommand},
	}
}

const aboutDry = "Without --yes it changes nothing and says what it would do.\n"

// letterOptions are the flags of the commands about dead letters.
type letterOptions struct {
	routesFile   string
	json         bool
	filter       deadletter.Filter
	key          *string
	since, until string
	limit        int
	attemptsMax  int

	all, summary       bool // list
	yes, again, remove bool // redrive, drop
	rate               int  // redrive
}

// define defines the flags that select dead letters.
func (o *letterOptions) define(fs *pflag.FlagSet) {
	cli.RoutesFlag(fs, &o.routesFile)
	cli.OutputFlag(fs, &o.json)
	fs.StringVar(&o.filter.Route, "route", "", "only those of the route with this `name`")
	fs.StringVar(&o.filter.Reason, "reason", "", "only those of a class such as missing_key or late, or whose reason contains this `text`")
	fs.StringVar(&o.filter.Topic, "topic", "", "only those that came from this `topic`")
	fs.StringVar(&o.since, "since", "", "only those whose record has this `time` or a later one: RFC 3339, or a duration before now such as 2h")
	fs.StringVar(&o.until, "until", "", "only those whose record has an earlier `time`")
	fs.Func("key", "only those of this `key`: 64 hexadecimal digits of a dedup key, a record key, or an id from which a route derives keys", func(s string) error {
		o.key = &s
		return nil
	})
	fs.IntVar(&o.limit, "limit", 0, "at most this `number`; 0 for all")
}

// attemptsFlag defines --max-attempts.
func (o *letterOptions) attemptsFlag(fs *pflag.FlagSet) {
	fs.IntVar(&o.attemptsMax, "max-attempts", 3, "leave a record alone that was redriven this `number` of times before, 1 to 100000")
}

// words returns the words with which a shell completes the values of flags.
func (o *letterOptions) words(p cli.Process, flag string) []string {
	if flag != "reason" {
		return routeWords(&o.routesFile)(p, flag)
	}
	var words []string
	for _, class := range deadletter.Classes {
		words = append(words, string(class))
	}
	return words
}

// check returns the first mistake in the flags, and parses the times.
func (o *letterOptions) check(name string, p cli.Process) (err error) {
	now := p.Clock()()
	if o.filter.Since, err = timeOf("since", o.since, now); err != nil {
		return err
	}
	if o.filter.Until, err = timeOf("until", o.until, now); err != nil {
		return err
	}
	switch {
	case o.filter.Since != 0 && o.filter.Until != 0 && o.filter.Since >= o.filter.Until:
		return errors.New("--since is not before --until, so no record is between them")
	case o.limit < 0:
		return fmt.Errorf("--limit is a number from 0, not %d", o.limit)
	case o.rate < 0:
		return fmt.Errorf("--rate is a number of records per second from 0, not %d", o.rate)
	case (name == "show" || name == "redrive") && (o.attemptsMax < 1 || o.attemptsMax > attemptsMaxMax):
		return fmt.Errorf("--max-attempts is a number from 1 to %d, not %d", attemptsMaxMax, o.attemptsMax)
	}
	return nil
}

// attemptsMaxMax is the largest --max-attempts: the header with the attempts has at most six digits.
const attemptsMaxMax = 100_000

// timeOf parses the time of a flag, as Unix milliseconds. The text is RFC 3339 or a duration before now; 0
// means that it is "".
func timeOf(flag, text string, now time.Time) (int64, error) {
	if text == "" {
		return 0, nil
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at.UnixMilli(), nil
	}
	before, err := time.ParseDuration(text)
	if err != nil || before < 0 {
		return 0, fmt.Errorf("--%s: %q: want a time such as 2026-11-25T18:00:00Z, or a duration before now such as 90m", flag, text)
	}
	return now.Add(-before).UnixMilli(), nil
}

// letterWork is a command about dead letters together with its connection.
type letterWork struct {
	*letterOptions

	name   string
	p      cli.Process
	client *deadletter.Client
}

// run connects to Kafka, calls do and returns the exit code.
func (o *letterOptions) run(ctx context.Context, name string, p cli.Process, do func(context.Context, *letterWork) (int, error)) int {
	if err := o.check(name, p); err != nil {
		return cli.UsageError(p, "dead-letters "+name, err.Error())
	}
	failed := func(code int, err error) int {
		cli.Printf(p.Stderr, "oncebus dead-letters %s: %v\n", name, err)
		return code
	}
	s, routes, err := settings.Load(p.Environ, o.routesFile)
	if err == nil {
		err = o.checkRoutes(routes, s.Routes)
	}
	if err != nil {
		return failed(cli.ExitWrong, err)
	}
	if o.key != nil {
		o.filter.Key = deadletter.NewKeyFilter(*o.key, routes, s.Processor.KeySecret.Bytes())
	}
	client, err := deadletter.New(ctx, s.Processor.Config, routes, cli.NewLogger(p.Stderr, slog.LevelError, s.LogFormat), o.yes)
	if err != nil {
		return failed(codeOf(err), err)
	}
	defer client.Close()
	code, err := do(ctx, &letterWork{letterOptions: o, name: name, p: p, client: client})
	if err != nil {
		return failed(codeOf(err), err)
	}
	return code
}

// checkRoutes returns an error if --topic names a topic that no route reads. It does not check --route: a route
// may have been removed from the file, and its dead letters can still be listed.
func (o *letterOptions) checkRoutes(routes *rules.Routes, file string) error {
	if o.filter.Topic == "" || slices.ContainsFunc(routes.Routes, func(r *rules.Route) bool {
		return slices.Contains(r.Topics, o.filter.Topic) || r.Claim.Outcomes == o.filter.Topic
	}) {
		return nil
	}
	return kafka.OperatorErrorf("--topic: %s names no input topic %s", file, o.filter.Topic)
}

// selection returns which dead letters the flags select.
func (o *letterOptions) selection() deadletter.Selection {
	return deadletter.Selection{Filter: o.filter, Again: o.again, Limit: o.limit}
}

// progress returns the progress of a command.
func (w *letterWork) progress(what string) *cli.Progress { return cli.NewProgress(w.p, what) }
