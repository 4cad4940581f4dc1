package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/app"
	"oncebus/processor/front"
)

// holdOptions are the flags of hold and release.
type holdOptions struct {
	routesFile, reason string
	limit, timeout     time.Duration
	asJSON             bool
	leaving, left      bool // only for hold
	back               bool // only for release
}

// holdCommand is 'oncebus hold'.
func holdCommand() cli.Command {
	var o holdOptions
	return cli.Command{
		Name: "hold", Synopsis: "[OPTIONS]", About: "stop the input of an app until it is released",
		Long: "Stops the input of an app. Every process commits what it has routed and reads no further, and the\n" +
			"ingress responds with 503. The tasks judge what was routed. Nothing is lost: the events wait in\n" +
			"their topics. The command waits until that is so for all partitions. Without --reason it shows\n" +
			"the hold in force. A process that starts meanwhile holds too. Killed, it is run again and goes\n" +
			"on. With --leaving the app moves to another cluster: 'oncebus export --leaving' is next, and\n" +
			"only 'oncebus release --back' ends the hold. The settings are those of 'oncebus run'.",
		Example: "oncebus hold --reason 'seed the keys of Redis' --limit 30m\n" +
			"oncebus hold --leaving --reason 'move to cluster east'\n" +
			"oncebus release",
		Flags: func(fs *pflag.FlagSet) {
			cli.RoutesFlag(fs, &o.routesFile)
			fs.StringVar(&o.reason, "reason", "", "begin a hold, for this reason")
			fs.DurationVar(&o.limit, "limit", 0, "release the hold by itself after this time; 0 for never")
			fs.BoolVar(&o.leaving, "leaving", false, "the app moves to another cluster")
			fs.BoolVar(&o.left, "left", false, "the app was released in the other cluster: nothing ends this hold any more")
			fs.DurationVar(&o.timeout, "timeout", time.Minute, "how long to wait until all partitions are held and judged; 0 does not wait")
			cli.OutputFlag(fs, &o.asJSON)
		},
		Run: func(ctx context.Context, _ []string, p cli.Process) int { return o.run(ctx, "hold", p, o.hold) },
	}
}

// releaseCommand is 'oncebus release'.
func releaseCommand() cli.Command {
	var o holdOptions
	return cli.Command{
		Name: "release", Synopsis: "[OPTIONS]", About: "end a hold, so that an app reads its input again",
		Long: "Ends the hold that 'oncebus hold' or 'oncebus arrive' began. Every process goes on within about a\n" +
			"second, where it stopped. An app that arrives must have all of its keys. One that leaves needs\n" +
			"--back, and must not have been released in the other cluster: both would emit every event. The\n" +
			"settings are those of 'oncebus run'.",
		Example: "oncebus release",
		Flags: func(fs *pflag.FlagSet) {
			cli.RoutesFlag(fs, &o.routesFile)
			fs.BoolVar(&o.back, "back", false, "take back an app that leaves, and was not released in the other cluster")
			cli.OutputFlag(fs, &o.asJSON)
		},
		Run: func(ctx context.Context, _ []string, p cli.Process) int {
			return o.run(ctx, "release", p, o.release)
		},
	}
}

// run connects to Kafka and runs hold or release.
func (o *holdOptions) run(ctx context.Context, name string, p cli.Process, do func(context.Context, *front.Decider, cli.Process) error) int {
	switch {
	case o.limit < 0 || o.timeout < 0:
		return cli.UsageError(p, name, "--limit and --timeout must not be negative")
	case o.leaving && o.limit > 0:
		return cli.UsageError(p, name, "an app that leaves has no --limit: a hold that ends by itself would emit what the other cluster emits")
	case o.leaving && (o.reason == "" || o.left):
		return cli.UsageError(p, name, "--leaving begins a hold: give a --reason, and no --left")
	case o.limit > 0 && o.reason == "":
		return cli.UsageError(p, name, "--limit is that of a hold to begin: give a --reason")
	case o.left && o.reason != "":
		return cli.UsageError(p, name, "--left takes no --reason")
	}
	return withDecider(ctx, name, o.routesFile, p, func(d *front.Decider) error { return do(ctx, d, p) })
}

// hold begins a hold and waits until it is complete. If no reason was given, it only shows the hold in force.
func (o *holdOptions) hold(ctx context.Context, d *front.Decider, p cli.Process) error {
	if o.left {
		if _, err := d.Leave(ctx); err != nil {
			return err
		}
	}
	if o.reason == "" {
		s, err := d.HoldState(ctx)
		if err != nil {
			return err
		}
		return o.show(p, s)
	}
	if err := o.begin(ctx, d); err != nil {
		return err
	}
	if o.timeout == 0 {
		s, err := d.HoldState(ctx)
		if err != nil {
			return err
		}
		return o.show(p, s)
	}
	waiting, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	s, err := d.AwaitHold(waiting, nil)
	if err == nil {
		return o.show(p, s)
	}
	if !errors.Is(err, context.DeadlineExceeded) || s.Hold == nil {
		return err
	}
	if err := o.show(p, s); err != nil {
		return err
	}
	return fmt.Errorf("not complete within %v; the hold stays in force: wait for it with 'oncebus hold', or end it with 'oncebus release'", o.timeout)
}

// begin puts a hold in force. If a command with --leaving was killed, the next command with --leaving continues
// the hold that the killed one began.
func (o *holdOptions) begin(ctx context.Context, d *front.Decider) error {
	if o.leaving {
		s, err := d.HoldState(ctx)
		if err != nil || s.Hold != nil && s.Hold.Leaving && !s.Hold.Left {
			return err
		}
	}
	hold := app.NewHold(o.reason, operatorName(), o.limit)
	hold.Leaving = o.leaving
	return d.Hold(ctx, hold)
}

func (o *holdOptions) release(ctx context.Context, d *front.Decider, p cli.Process) error {
	end := d.Release
	if o.back {
		end = d.TakeBack
	}
	hold, err := end(ctx)
	if err != nil {
		return err
	}
	if o.asJSON {
		return json.NewEncoder(p.Stdout).Encode(map[string]*app.Hold{"released": hold})
	}
	if hold == nil {
		cli.Printf(p.Stdout, "no hold is in force\n")
		return nil
	}
	cli.Printf(p.Stdout, "released: %s, held since %s\n", hold.Reason, hold.At.Format(time.RFC3339))
	if hold.Arriving {
		cli.Printf(p.Stdout, "next, in the cluster that the app left: oncebus hold --left; a release there would emit every event twice\n")
	}
	return nil
}

// shownHold is the output of hold. Its JSON names are an interface.
type shownHold struct {
	Hold      *app.Hold        `json:"hold"`
	Complete  bool             `json:"complete"`
	Held      map[string]int64 `json:"held"`     // offset by topic/partition
	NotHeld   []string         `json:"not_held"` // topic/partition
	Undrained []string         `json:"undrained"`
}

// show prints which partitions are held already and which are not.
func (o *holdOptions) show(p cli.Process, s *front.HoldState) error {
	shown := shownHold{s.Hold, s.Complete(), map[string]int64{}, names(s.NotHeld), names(s.Undrained)}
	for id, offset := range s.Held {
		shown.Held[id.String()] = offset
	}
	if o.asJSON {
		return json.NewEncoder(p.Stdout).Encode(&shown)
	}
	if s.Hold == nil {
		cli.Printf(p.Stdout, "no hold is in force\n")
		return nil
	}
	limit := "until 'oncebus release'"
	switch {
	case s.Hold.Left:
		limit = "for good: the app has left this cluster"
	case s.Hold.Leaving:
		limit = "until 'oncebus release --back'"
	case s.Hold.LimitMS > 0:
		limit = "for at most " + (time.Duration(s.Hold.LimitMS) * time.Millisecond).String()
	}
	cli.Printf(p.Stdout, "held since %s, %s: %s\n", s.Hold.At.Format(time.RFC3339), limit, s.Hold.Reason)
	switch {
	case len(s.NotHeld) > 0:
		cli.Printf(p.Stdout, "%s held, not yet %s: no process has it, or its process runs an earlier build, or it waits for a decision (oncebus accept)\n", plural(len(s.Held), "partition"), strings.Join(shown.NotHeld, ", "))
	case len(s.Undrained) > 0:
		cli.Printf(p.Stdout, "%s held; these tasks have records to judge: %s\n", plural(len(s.Held), "partition"), strings.Join(shown.Undrained, ", "))
	default:
		cli.Printf(p.Stdout, "complete: %s held, and all that was routed is judged\n", plural(len(s.Held), "partition"))
		if s.Hold.Leaving && !s.Hold.Left {
			cli.Printf(p.Stdout, "next: oncebus export --leaving FILE\n")
		}
	}
	return nil
}

// names returns the names of tasks or partitions in sorted order.
func names(ids []app.TaskID) []string {
	all := []string{}
	for _, id := range ids {
		all = append(all, id.String())
	}
	slices.Sort(all)
	return all
}
