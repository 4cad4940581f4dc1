package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/front"
)

// shadowOptions are the flags of shadow and promote.
type shadowOptions struct {
	name, routesFile string
	timeout          time.Duration
	asJSON           bool
}

// shadowCommand is 'oncebus shadow'.
func shadowCommand() cli.Command {
	o := shadowOptions{name: "shadow"}
	return cli.Command{
		Name: "shadow", Synopsis: "[OPTIONS]", About: "show where a key rule on trial differs from the one in force",
		Long: "Shows the shadows of the routes in force: key rules on trial. It has the events that the new rule\n" +
			"would drop or let through, with the newest of them, and when the rule can be promoted. The\n" +
			"numbers are as of the last transaction of each task. The settings are those of 'oncebus run'.",
		Example: "oncebus shadow",
		Flags: func(fs *pflag.FlagSet) {
			cli.RoutesFlag(fs, &o.routesFile)
			cli.OutputFlag(fs, &o.asJSON)
		},
		Run: func(ctx context.Context, _ []string, p cli.Process) int {
			return o.run(ctx, o.routesFile, p, o.show)
		},
	}
}

// promoteCommand is 'oncebus promote'.
func promoteCommand() cli.Command {
	o := shadowOptions{name: "promote"}
	return cli.Command{
		Name: "promote", Synopsis: "[OPTIONS] [FILE]", About: "put the key rule of a shadow in force while the app runs", ArgsMax: 1,
		Long: "Puts a routes file in force that has the key rule of a shadow as that of its route. The input is\n" +
			"held for some seconds. From then on an event is emitted if none that was emitted within its window\n" +
			"has its new key, also if the old rule emitted that. Until then the old rule is in force. It can be\n" +
			"killed and repeated at any time: before its act nothing changes, and after it the processes end\n" +
			"the hold by themselves. FILE defaults to $ONCEBUS_ROUTES, else routes.yaml. The settings are those\n" +
			"of 'oncebus run'.",
		Example: "oncebus promote promoted.yaml",
		Flags: func(fs *pflag.FlagSet) {
			fs.DurationVar(&o.timeout, "timeout", time.Minute, "how long the input may be held before the act; then nothing changes")
			cli.OutputFlag(fs, &o.asJSON)
		},
		Run: func(ctx context.Context, args []string, p cli.Process) int {
			if o.timeout <= 0 {
				return cli.UsageError(p, o.name, "--timeout must be positive")
			}
			return o.run(ctx, strings.Join(args, ""), p, o.promote)
		},
	}
}

// run connects to Kafka and runs shadow or promote.
func (o *shadowOptions) run(ctx context.Context, file string, p cli.Process, do func(context.Context, *front.Changer, cli.Process) error) int {
	s, routes, err := settings.Load(p.Environ, file)
	if err != nil {
		cli.Printf(p.Stderr, "oncebus %s: %v\n", o.name, err)
		return cli.ExitWrong
	}
	changer, err := front.NewChanger(s.Processor.Config, routes, cli.NewLogger(p.Stderr, slog.LevelError, s.LogFormat))
	if err == nil {
		defer changer.Close()
		err = do(ctx, changer, p)
	}
	if err != nil {
		cli.Printf(p.Stderr, "oncebus %s: %v\n", o.name, err)
		return codeOf(err)
	}
	return cli.ExitStopped
}

func (o *shadowOptions) show(ctx context.Context, changer *front.Changer, p cli.Process) error {
	states, err := changer.Shadows(ctx)
	switch {
	case err != nil:
		return err
	case o.asJSON:
		return json.NewEncoder(p.Stdout).Encode(map[string][]app.ShadowState{"shadows": states})
	case len(states) == 0:
		cli.Printf(p.Stdout, "no route in force has a shadow\n")
		return nil
	}
	return writeShadows(p.Stdout, states, true)
}

// writeShadows prints the shadows (key rules that are tried out); if samples is true, it also prints sampled
// events.
func writeShadows(to io.Writer, states []app.ShadowState, samples bool) error {
	for i := range states {
		s := &states[i]
		cli.Printf(to, "shadow %s of route %s: %s\n", s.Namespace, s.Route, s.Text())
		if !samples {
			continue
		}
		tw := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
		cli.Printf(tw, "fate\tevents\tof\n")
		for fate := range dedup.ShadowFate(dedup.ShadowFates) {
			cli.Printf(tw, "%s\t%d\t%s\n", fate, s.Events[fate.String()], fateTexts[fate])
		}
		if len(s.Samples) > 0 {
			cli.Printf(tw, "\nfate\tevent\temitted before\ttime\n")
		}
		for _, one := range s.Samples {
			cli.Printf(tw, "%s\t%s\t%s\t%s\n", one.Fate, one.Event, one.First, time.UnixMilli(one.TimeMS).UTC().Format(time.RFC3339))
		}
		if err := tw.Flush(); err != nil {
			return fmt.Errorf("write standard output: %w", err)
		}
	}
	return nil
}

var fateTexts = [dedup.ShadowFates]string{
	dedup.ShadowBothEmit:  "emitted by both rules",
	dedup.ShadowBothDrop:  "duplicates by both rules",
	dedup.ShadowWouldDrop: "emitted, duplicates by the new rule",
	dedup.ShadowWouldEmit: "duplicates, emitted by the new rule",
	dedup.ShadowNoKey:     "without the new key",
}

func (o *shadowOptions) promote(ctx context.Context, changer *front.Changer, p cli.Process) error {
	steps := 0
	promoted, err := changer.Promote(ctx, operatorName(), o.timeout, func(step front.PromotionStep) {
		steps++
		if !o.asJSON {
			cli.Printf(p.Stdout, "%s\n", stepTexts[step])
		}
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("nothing has changed within %v: %w", o.timeout, err)
	}
	if err != nil {
		return err
	}
	if !o.asJSON {
		if steps == 0 {
			cli.Printf(p.Stdout, "nothing to do: the file is route set %d, which is in force\n", promoted.Set)
		}
		return nil
	}
	return json.NewEncoder(p.Stdout).Encode(promoted)
}

var stepTexts = map[front.PromotionStep]string{
	front.StepHeld:   "held: the input waits",
	front.StepJudged: "judged: all that was routed",
	front.StepJoined: "joined: every task has begun the shadow",
	front.StepActed:  "acted: the new key rule is in force",
	front.StepDone:   "done: the input is read again",
}
