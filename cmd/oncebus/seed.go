package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/portable"
	"oncebus/processor/transfer"
)

// seedOptions are the flags of 'oncebus seed'.
type seedOptions struct {
	routesFile  string
	route       string
	firstSeen   string
	rate        int
	timeout     time.Duration
	withoutOpen bool
	json        bool
}

// seedCommand is 'oncebus seed'.
func seedCommand() cli.Command {
	var o seedOptions
	return cli.Command{
		Name: "seed", Synopsis: "[OPTIONS] FILE|-", About: "give the app keys that another system knows", ArgsMax: 1,
		Long: "Makes the keys of FILE known to the app: events of them are duplicates, as if the app had\n" +
			"emitted the first ones. FILE is one of 'oncebus export', or text with a key in each line:\n" +
			"  {\"id\":\"t1\",\"first_seen\":1764109200000}  an id; of a composite id a list of its parts\n" +
			"  {\"event\":{...},\"first_seen\":\"2026-11-25T22:20:00Z\"}\n" +
			"  {\"key\":\"46e9...\",\"first_seen\":...}      a dedup key of 64 hexadecimal digits\n" +
			"  {...}                                   an event, as the input topic has it\n" +
			"  t1<TAB>2026-11-25T22:20:00Z             an id and a time\n" +
			"  t1                                      an id, with --first-seen\n" +
			"  webhook:46e9...                         namespace and key, of a route whose keys are no ids\n" +
			"In claim mode a line has an outcome too: \"status\" (completed, submitted or in_progress), and\n" +
			"\"result\" or \"result_base64\", \"http_status\" and \"content_type\".\n" +
			"It checks all of FILE before it writes the first key. Events may arrive meanwhile; with 'oncebus\n" +
			"hold' before it no event comes first. Killed or repeated, it goes on where it stopped, or\n" +
			"counts as known what the app has. Standard input is not checked before, and begins again.\n" +
			"Keys too late are those of which the app emitted an event before the seed came. The\n" +
			"settings are those of 'oncebus run'.",
		Example: "oncebus seed --route signals ids.tsv\n" +
			"oncebus seed keys.obx1",
		Flags: func(fs *pflag.FlagSet) {
			cli.RoutesFlag(fs, &o.routesFile)
			fs.StringVar(&o.route, "route", "", "the `name` of the route; a file of 'oncebus export' needs none, and all of its routes are seeded")
			fs.StringVar(&o.firstSeen, "first-seen", "", "when the ids without a `time` were first seen: Unix milliseconds, or RFC 3339")
			fs.IntVar(&o.rate, "rate", 0, "at most this `number` of keys per second; 0 for no bound")
			fs.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long no task may decide on a key, as without a process, until the command ends; 0 for no bound")
			fs.BoolVar(&o.withoutOpen, "without-open-claims", false, "leave out claims without an outcome: their duplicates run again")
			cli.OutputFlag(fs, &o.json)
		},
		Words: routeWords(&o.routesFile),
		Run:   o.run,
	}
}

func (o *seedOptions) run(ctx context.Context, args []string, p cli.Process) int {
	first, err := o.check(args)
	if err != nil {
		return cli.UsageError(p, "seed", err.Error())
	}
	c, code, err := openTransfer(ctx, p, o.routesFile)
	if err != nil {
		return fail(p, "seed", code, err)
	}
	defer c.Close()
	options, err := o.options(c, args[0], first, p)
	if err != nil {
		return fail(p, "seed", codeOf(err), err)
	}
	checked, decided := cli.NewProgress(p, "lines checked"), cli.NewProgress(p, "keys")
	options.Checked = checked.Set
	options.Decided = func(done, total int64) {
		checked.End()
		decided.Set(done, total)
	}
	report, err := c.Seed(ctx, options)
	checked.End()
	decided.End()
	if err != nil {
		return fail(p, "seed", codeOf(err), err)
	}
	if o.json {
		err = json.NewEncoder(p.Stdout).Encode(report)
	} else {
		writeSeeded(p, report)
	}
	if err != nil {
		return fail(p, "seed", cli.ExitFailed, err)
	}
	return cli.ExitStopped
}

// check returns the first mistake on the command line, and the time of --first-seen.
func (o *seedOptions) check(args []string) (first *int64, err error) {
	switch {
	case len(args) != 1:
		return nil, errors.New("want the FILE with the keys, or - for standard input")
	case o.timeout < 0:
		return nil, errors.New("--timeout must not be negative")
	case o.rate < 0:
		return nil, fmt.Errorf("--rate is a number of keys per second from 0, not %d", o.rate)
	case o.firstSeen == "":
		return nil, nil
	}
	at, err := transfer.ParseTime(o.firstSeen)
	if err != nil {
		return nil, fmt.Errorf("--first-seen: %w", err)
	}
	return &at, nil
}

// options returns the options with which the client seeds a file.
func (o *seedOptions) options(c *transfer.Client, file string, first *int64, p cli.Process) (*transfer.SeedOptions, error) {
	options := &transfer.SeedOptions{By: operatorName(), Rate: o.rate, Wait: o.timeout}
	var route *app.Route
	if o.route != "" {
		var err error
		if route, err = c.RouteOf(o.route); err != nil {
			return nil, err
		}
	}
	source := func(from io.Reader) (transfer.Source, func(), error) {
		start := make([]byte, portable.MagicBytes)
		n, err := io.ReadFull(from, start)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, nil, err
		}
		from = io.MultiReader(bytes.NewReader(start[:n]), from)
		if portable.Is(start[:n]) {
			return c.Rows(from, route, o.withoutOpen)
		}
		if route == nil {
			return nil, nil, kafka.OperatorErrorf("%s is no file of 'oncebus export', so --route must name the route of its lines", file)
		}
		lines, err := c.Lines(from, route, first)
		return lines, func() {}, err
	}
	if file == "-" {
		options.Open = func() (transfer.Source, func(), error) { return source(p.Stdin) }
		return options, nil
	}
	digest, err := fileDigest(file)
	if err != nil {
		return nil, err
	}
	options.Name, options.File = digest+"/"+o.route, digest
	options.Open = func() (transfer.Source, func(), error) {
		opened, err := os.Open(file)
		if err != nil {
			return nil, nil, err
		}
		s, stop, err := source(opened)
		if err != nil {
			return nil, nil, errors.Join(err, opened.Close())
		}
		return s, func() {
			stop()
			_ = opened.Close() // it was only read
		}, nil
	}
	return options, nil
}

// fileDigest returns the SHA-256 of a file. The digest identifies the file's progress, so that a repeated seed
// continues.
func fileDigest(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", kafka.OperatorErrorf("%v", err)
	}
	sum := sha256.New()
	_, err = io.Copy(sum, file)
	if err := errors.Join(err, file.Close()); err != nil {
		return "", kafka.OperatorErrorf("read %s: %v", name, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// tooLateShown is how many of the lines that came too late the command prints.
const tooLateShown = 20

func writeSeeded(p cli.Process, r *transfer.Seeded) {
	if r.Resumed > 0 {
		cli.Printf(p.Stdout, "went on after line %s\n", withCommas(r.Resumed))
	}
	cli.Printf(p.Stdout, "%s lines", withCommas(r.Lines))
	if r.Keys != r.Lines {
		cli.Printf(p.Stdout, " with %s keys", withCommas(r.Keys))
	}
	cli.Printf(p.Stdout, ": %s taken, %s known, %s out of window, %s too late", withCommas(r.Taken), withCommas(r.Known), withCommas(r.OutOfWindow), withCommas(r.TooLate))
	if r.InFuture > 0 {
		cli.Printf(p.Stdout, ", %s in the future", withCommas(r.InFuture))
	}
	if r.TooLate > 0 {
		cli.Printf(p.Stdout, " (an event was emitted: lines %s)", shownLines(r.TooLateLines))
	}
	cli.Printf(p.Stdout, "\n")
	if r.Cut {
		cli.Printf(p.Stdout, "some keys are not counted: the changelog was trimmed before they were read; 'oncebus verify' shows what the app has\n")
	}
	if r.Arrived {
		cli.Printf(p.Stdout, "the app has all that it had in its other cluster\nnext: oncebus verify FILE, then oncebus release\n")
	}
}

func shownLines(numbers []int64) string {
	var texts []string
	for _, n := range numbers[:min(len(numbers), tooLateShown)] {
		texts = append(texts, strconv.FormatInt(n, 10))
	}
	if more := len(numbers) - tooLateShown; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more, all in -o json", more))
	}
	return strings.Join(texts, ", ")
}
