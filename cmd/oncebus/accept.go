package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/processor/app"
	"oncebus/processor/front"
)

// acceptOptions are the options of accept.
type acceptOptions struct {
	routesFile                   string
	task, route                  string // topic/partition
	all                          bool
	believe, unsure, from, topic string
	inputLost, skip, asJSON      bool
	row, why                     string
}

// acceptCommand is 'oncebus accept'.
func acceptCommand() cli.Command {
	var o acceptOptions
	return cli.Command{
		Name: "accept", Synopsis: "[OPTIONS]", About: "decide how a partition goes on that lost rows, records or offsets, or cannot read a record",
		Long: "Decides how a partition goes on that lost rows, records or offsets, or cannot read a record of an\n" +
			"internal topic. Without a decision it lists the partitions that wait for one: what is known, and\n" +
			"the ways on. The service follows a decision within seconds. The settings are those of\n" +
			"'oncebus run'.",
		Example: "oncebus accept\n" +
			"oncebus accept --task oncebus-repartition/3 --believe changelog --why 'the disk was replaced'",
		Flags: o.define,
		Run:   o.runCommand,
	}
}

func (o *acceptOptions) runCommand(ctx context.Context, _ []string, p cli.Process) int {
	decision, err := o.decision()
	if err != nil {
		return cli.UsageError(p, "accept", err.Error())
	}
	return withDecider(ctx, "accept", o.routesFile, p, func(d *front.Decider) error { return o.run(ctx, d, decision, p) })
}

// withDecider reads the settings, connects to Kafka, calls do, and returns the exit code. name is the name of
// the command, for error messages.
func withDecider(ctx context.Context, name, routesFile string, p cli.Process, do func(*front.Decider) error) int {
	s, routes, err := settings.Load(p.Environ, routesFile)
	if err != nil {
		cli.Printf(p.Stderr, "oncebus %s: %v\n", name, err)
		return cli.ExitWrong
	}
	decider, err := front.NewDecider(ctx, s.Processor.Config, routes, cli.NewLogger(p.Stderr, slog.LevelError, s.LogFormat))
	if err == nil {
		err = do(decider)
		decider.Close()
	}
	if err != nil {
		cli.Printf(p.Stderr, "oncebus %s: %v\n", name, err)
		return codeOf(err)
	}
	return cli.ExitStopped
}

func (o *acceptOptions) define(fs *pflag.FlagSet) {
	cli.RoutesFlag(fs, &o.routesFile)
	fs.StringVar(&o.task, "task", "", "decide on the task `TOPIC/PARTITION`")
	fs.StringVar(&o.route, "route", "", "decide on the partition `TOPIC/PARTITION` of a routed input topic")
	fs.BoolVar(&o.all, "all", false, "decide on every partition that waits")
	fs.StringVar(&o.believe, "believe", "", "which `STATE` to go on with: local, changelog, or nothing")
	fs.StringVar(&o.unsure, "unsure", "late", "what events are whose duplicates may be unknown, those from before the decision: `late` (the\n"+
		"late policy of their route applies) or unique")
	fs.BoolVar(&o.inputLost, "input-lost", false, "go on without the input records that were deleted")
	fs.StringVar(&o.from, "from", "", "read a routed partition from `WHERE`: mark, start, group, or an offset")
	fs.BoolVar(&o.skip, "skip", false, "go on without the record that cannot be read")
	fs.StringVar(&o.row, "row", "", "put the row before it in the place of the row `KEY` of the manifest topic, which cannot be read")
	fs.StringVar(&o.topic, "recreated", "", "accept that this `TOPIC` was deleted and recreated; all processes must be stopped")
	fs.StringVar(&o.why, "why", "", "the reason, for people")
	cli.OutputFlag(fs, &o.asJSON)
}

// decision returns the decision that the options describe; the zero value means that the command only lists the
// partitions.
func (o *acceptOptions) decision() (app.Acceptance, error) {
	decision := app.Acceptance{Unique: o.unsure == "unique", Why: o.why, By: operatorName()}
	chosen, targets := 0, 0
	for _, on := range []bool{o.believe != "", o.inputLost, o.from != "", o.skip, o.topic != "", o.row != ""} {
		if on {
			chosen++
		}
	}
	for _, on := range []bool{o.task != "", o.route != "", o.all} {
		if on {
			targets++
		}
	}
	switch {
	case chosen > 1:
		return decision, errors.New("choose one of --believe, --input-lost, --from, --skip, --recreated, --row")
	case o.topic+o.row != "" && targets > 0:
		return decision, errors.New("--recreated and --row decide on no partition: without --task, --route and --all")
	case o.topic+o.row == "" && chosen != targets:
		return decision, errors.New("a decision needs one of --task, --route, --all, and one of --believe, --input-lost, --from, --skip")
	case o.unsure != "late" && o.unsure != "unique":
		return decision, fmt.Errorf("--unsure is late or unique, not %q", o.unsure)
	}
	switch {
	case o.inputLost:
		decision.Way = app.InputLost
	case o.skip:
		decision.Way = app.SkipRecord
	case o.believe != "":
		decision.Way = app.Way(o.believe)
		if !slices.Contains([]app.Way{app.BelieveLocal, app.BelieveChangelog, app.BelieveNothing}, decision.Way) {
			return decision, fmt.Errorf("--believe is local, changelog or nothing, not %q", o.believe)
		}
	case o.from != "":
		decision.Way = app.Way(o.from)
		if !slices.Contains([]app.Way{app.FromMark, app.FromStart, app.FromGroup}, decision.Way) {
			offset, err := strconv.ParseInt(o.from, 10, 64)
			if err != nil || offset < 0 {
				return decision, fmt.Errorf("--from is mark, start, group or an offset, not %q", o.from)
			}
			decision.Way, decision.Offset = app.FromOffset, offset
		}
	}
	return decision, nil
}

func (o *acceptOptions) run(ctx context.Context, d *front.Decider, decision app.Acceptance, p cli.Process) error {
	switch {
	case o.topic != "":
		return o.report(p, d.AcceptRecreated(ctx, o.topic), "recreated", o.topic, "topic %s was recreated; start the service")
	case o.row != "":
		return o.report(p, d.RepairRow(ctx, o.row), "row", o.row, "row %s has the value before")
	case decision.Way == "":
		return o.list(ctx, d, p)
	}
	var names []string
	for _, name := range []string{o.task, o.route} {
		if name != "" {
			names = append(names, name)
		}
	}
	decided, err := d.Accept(ctx, names, decision)
	if err != nil {
		return err
	}
	if o.asJSON {
		return json.NewEncoder(p.Stdout).Encode(decided)
	}
	for _, r := range decided {
		cli.Printf(p.Stdout, "accepted: %s goes on with %s\n", r.Name(), decision.Way.Flag())
	}
	return nil
}

// report prints the decision. If err is not nil, it prints nothing and returns err.
func (o *acceptOptions) report(p cli.Process, err error, what, name, text string) error {
	switch {
	case err != nil:
		return err
	case o.asJSON:
		return json.NewEncoder(p.Stdout).Encode(map[string]string{what: name})
	}
	cli.Printf(p.Stdout, "accepted: "+text+"\n", name)
	return nil
}

// list prints the partitions that wait for a decision.
func (o *acceptOptions) list(ctx context.Context, d *front.Decider, p cli.Process) error {
	refusals, err := d.Refusals(ctx)
	if err != nil {
		return err
	}
	rows, err := d.BadRows(ctx)
	if err != nil {
		return err
	}
	return writeRefusals(p, append(refusals, rows...), o.asJSON)
}

// writeRefusals prints the partitions that wait for a decision.
func writeRefusals(p cli.Process, refusals []app.Refusal, asJSON bool) error {
	if asJSON {
		if refusals == nil {
			refusals = []app.Refusal{}
		}
		return json.NewEncoder(p.Stdout).Encode(refusals)
	}
	if len(refusals) == 0 {
		cli.Printf(p.Stdout, "no partition waits for a decision\n")
	}
	for _, r := range refusals {
		cli.Printf(p.Stdout, "%s waits since %s: %s\n  %s\n  %s\n", r.Name(), r.At.Format(time.RFC3339), r.Problem, r.Detail, r.Command())
	}
	return nil
}

// operatorName returns the name of the user who runs the command, for people who later read what the command
// wrote; "" if the system does not know the name.
func operatorName() string {
	by, err := user.Current()
	if err != nil {
		return ""
	}
	return by.Username
}
