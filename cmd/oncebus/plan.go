package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/routesets"
	"oncebus/processor/app"
	"oncebus/processor/front"
)

// changeOptions are the flags of plan and apply.
type changeOptions struct {
	name    string // name of the command
	yes     bool
	forget  []string
	timeout time.Duration
	asJSON  bool
}

// planCommand is 'oncebus plan'.
func planCommand() cli.Command {
	o := changeOptions{name: "plan"}
	return cli.Command{
		Name: "plan", Synopsis: "[OPTIONS] [FILE]", About: "show what a routes file would change for the running app", ArgsMax: 1,
		Long: "Shows what a routes file would change for the app, and of which kind each change is: harmless;\n" +
			"confirm, which apply does with --yes; or refused, with the steps that do it. It changes nothing.\n" +
			"FILE defaults to $ONCEBUS_ROUTES, else routes.yaml. The settings are those of 'oncebus run'. Exit\n" +
			"codes: 0 nothing to do, 1 apply would do something, 2 something is refused.",
		Example: "oncebus plan routes.yaml",
		Flags:   o.define,
		Run:     o.run,
	}
}

// applyCommand is 'oncebus apply'.
func applyCommand() cli.Command {
	o := changeOptions{name: "apply"}
	return cli.Command{
		Name: "apply", Synopsis: "[OPTIONS] [FILE]", About: "put a routes file in force while the app runs", ArgsMax: 1,
		Long: "Puts a routes file in force while the app runs, and waits until every live process has taken it.\n" +
			"It writes nothing if 'oncebus plan' shows something that is refused, or that needs --yes. FILE\n" +
			"defaults to $ONCEBUS_ROUTES, else routes.yaml. The settings are those of 'oncebus run'. Back is to\n" +
			"apply the old file. Exit codes: 0 in force, 1 in force but not taken by all processes within\n" +
			"--timeout, 2 nothing was written.",
		Example: "oncebus apply --yes routes.yaml",
		Flags:   o.define,
		Run:     o.run,
	}
}

func (o *changeOptions) define(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.forget, "forget-keys", nil, "give up the stored keys of these `NAMESPACES`: copies of their events are emitted again")
	if o.name == "apply" {
		fs.BoolVar(&o.yes, "yes", false, "also make the changes of kind confirm")
		fs.DurationVar(&o.timeout, "timeout", time.Minute, "how long to wait for the processes")
	}
	cli.OutputFlag(fs, &o.asJSON)
}

func (o *changeOptions) run(ctx context.Context, args []string, p cli.Process) int {
	file := ""
	if len(args) == 1 {
		file = args[0]
	}
	if o.name == "apply" && o.timeout <= 0 {
		return cli.UsageError(p, o.name, "--timeout must be positive")
	}
	s, routes, err := settings.Load(p.Environ, file)
	if err == nil {
		err = s.Processor.Schemas().Check(ctx, routes)
	}
	if err != nil {
		cli.Printf(p.Stderr, "oncebus %s: %v\n", o.name, err)
		return cli.ExitWrong
	}
	changer, err := front.NewChanger(s.Processor.Config, routes, cli.NewLogger(p.Stderr, slog.LevelWarn, s.LogFormat))
	code := cli.ExitStopped
	if err == nil {
		defer changer.Close()
		if o.name == "plan" {
			code, err = o.plan(ctx, changer, p)
		} else {
			code, err = o.apply(ctx, changer, p)
		}
	}
	if err != nil {
		cli.Printf(p.Stderr, "oncebus %s: %v\n", o.name, err)
		return codeOf(err)
	}
	return code
}

func (o *changeOptions) plan(ctx context.Context, changer *front.Changer, p cli.Process) (int, error) {
	a, err := changer.Plan(ctx, o.forget)
	if err != nil {
		return 0, err
	}
	if o.asJSON {
		err = json.NewEncoder(p.Stdout).Encode(a)
	} else {
		err = writePlan(p, a)
	}
	switch {
	case a.Worst() == routesets.Refused:
		return cli.ExitWrong, err
	case len(a.Changes) > 0:
		return cli.ExitFailed, err
	}
	return cli.ExitStopped, err
}

// writePlan prints one line for each change, and below it the reason for the kind of the change, and the steps
// to make the change.
func writePlan(p cli.Process, a *app.Applied) error {
	if a.Behind > 0 {
		cli.Printf(p.Stdout, "the file is route set %d; set %d is in force: to apply it goes back\n", a.Behind, a.InForce)
	}
	if len(a.Changes) == 0 {
		cli.Printf(p.Stdout, "nothing to do: the file is route set %d, which is in force\n", a.InForce)
	}
	tw := tabwriter.NewWriter(p.Stdout, 0, 0, 2, ' ', 0)
	for _, c := range a.Changes {
		cli.Printf(tw, "%v\troute %s\t%s\n", c.Kind, c.Route, c.What)
		if c.Why != "" {
			cli.Printf(tw, "\t\t%s\n", c.Why)
		}
		for _, step := range c.Steps {
			cli.Printf(tw, "\t\t- %s\n", step)
		}
	}
	for i := range a.Windows {
		cli.Printf(tw, "window\tnamespace %s\n", &a.Windows[i])
	}
	for _, f := range a.Former {
		cli.Printf(tw, "former\troute %s\toutcomes topic %s is read until none of its claims is open\n", f.Route, f.Topic)
	}
	return tw.Flush()
}

// shownApplied is the output of apply as JSON. Its JSON names are an interface.
type shownApplied struct {
	*app.Applied
	front.Taken

	Seconds float64 `json:"seconds"` // how long it took until all live processes had taken the set
}

func (o *changeOptions) apply(ctx context.Context, changer *front.Changer, p cli.Process) (int, error) {
	began := time.Now()
	a, err := changer.Apply(ctx, app.ApplyOptions{Yes: o.yes, Forget: o.forget, By: operatorName()})
	if err != nil {
		return 0, err
	}
	if !a.Written && len(a.Changes) > 0 {
		if o.asJSON {
			err = json.NewEncoder(p.Stdout).Encode(a)
		} else {
			err = writePlan(p, a)
		}
		if err != nil {
			return 0, err
		}
		if a.Worst() == routesets.Refused {
			cli.Printf(p.Stderr, "oncebus apply: nothing was written: changes are refused; take their steps first\n")
		} else {
			cli.Printf(p.Stderr, "oncebus apply: nothing was written: repeat it with --yes to make the changes of kind confirm\n")
		}
		return cli.ExitWrong, nil
	}
	awaited, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	taken, err := changer.Await(awaited, a.Set)
	shown := shownApplied{a, taken, time.Since(began).Seconds()}
	if o.asJSON {
		err = errors.Join(err, json.NewEncoder(p.Stdout).Encode(shown))
	} else {
		cli.Printf(p.Stdout, "%s\n", shown.text())
	}
	if len(taken.Missing) > 0 {
		cli.Printf(p.Stderr, "oncebus apply: not taken within %v by %s: see /readyz and /state of these processes\n", o.timeout, strings.Join(taken.Missing, ", "))
		return cli.ExitFailed, err
	}
	return cli.ExitStopped, err
}

// text returns the route set in force, the changes in it, and which processes have taken it over.
func (a *shownApplied) text() string {
	text := fmt.Sprintf("set %d in force", a.Set)
	var parts []string
	for _, c := range a.Changes {
		switch {
		case c.Field != "":
			parts = append(parts, fmt.Sprintf("~ route %s: %s", c.Route, c.What))
		case c.What == "removed":
			parts = append(parts, "- route "+c.Route)
		default:
			parts = append(parts, "+ route "+c.Route)
		}
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return fmt.Sprintf("%s; %d of %d processes after %.1f s", text, len(a.Live)-len(a.Missing), len(a.Live), a.Seconds)
}
