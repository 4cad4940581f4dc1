package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/processor/transfer"
)

// arriveOptions are the flags of 'oncebus arrive'.
type arriveOptions struct {
	routesFile string
	repeat     bool
	json       bool
}

// arriveCommand is 'oncebus arrive'.
func arriveCommand() cli.Command {
	var o arriveOptions
	return cli.Command{
		Name: "arrive", Synopsis: "[OPTIONS] FILE", About: "create an app in this cluster that leaves another one", ArgsMax: 1,
		Long: "Creates the app of a FILE of 'oncebus export --leaving' in this cluster, held: its processes may\n" +
			"start, and read no event before 'oncebus release'. A mirror has filled its input topics, under\n" +
			"the same names and with the same partitions. The command finds the place of the last record\n" +
			"before each held offset, by key, value, headers and timestamp: the app reads on there. It\n" +
			"changes nothing if a mirror has not come so far, or if settings or routes differ from those of\n" +
			"the app. Repeated, it changes nothing more. The settings are those of 'oncebus run'.",
		Example: "oncebus arrive app.obx1",
		Flags: func(fs *pflag.FlagSet) {
			cli.RoutesFlag(fs, &o.routesFile)
			fs.BoolVar(&o.repeat, "repeat-unchecked", false, "accept that events without a stored key, which a policy forwards, may be emitted again")
			cli.OutputFlag(fs, &o.json)
		},
		Run: o.run,
	}
}

func (o *arriveOptions) run(ctx context.Context, args []string, p cli.Process) int {
	if len(args) != 1 {
		return cli.UsageError(p, "arrive", "want the FILE of 'oncebus export --leaving'")
	}
	s, routes, err := settings.Load(p.Environ, o.routesFile)
	if err != nil {
		return fail(p, "arrive", cli.ExitWrong, err)
	}
	digest, err := fileDigest(args[0])
	if err != nil {
		return fail(p, "arrive", cli.ExitWrong, err)
	}
	rows := cli.NewProgress(p, "keys")
	arrived, err := transfer.Arrive(ctx, s.Processor.Config, routes, cli.NewLogger(p.Stderr, slog.LevelWarn, s.LogFormat), &transfer.ArriveOptions{
		Open: func() (io.ReadCloser, error) { return os.Open(args[0]) }, File: digest, By: operatorName(), RepeatUnchecked: o.repeat,
		Checked: func(n int64) { rows.Set(n, n) },
	})
	rows.End()
	if err != nil {
		return fail(p, "arrive", codeOf(err), err)
	}
	if o.json {
		err = json.NewEncoder(p.Stdout).Encode(arrived)
	} else {
		o.write(p, args[0], s.Processor.AppID, arrived)
	}
	if err != nil {
		return fail(p, "arrive", cli.ExitFailed, err)
	}
	return cli.ExitStopped
}

func (o *arriveOptions) write(p cli.Process, file, app string, a *transfer.Arrived) {
	if a.Before {
		cli.Printf(p.Stdout, "app %s has arrived with this file before, from cluster %s\n", app, a.Cluster)
	} else {
		cli.Printf(p.Stdout, "app %s is created and held; it came from cluster %s with %s keys\n", app, a.Cluster, withCommas(a.Keys))
	}
	for _, s := range a.Starts {
		cli.Printf(p.Stdout, "  %s/%d: held at %d there, starts at %d here", s.Topic, s.Partition, s.Held, s.Start)
		if s.Again > 0 {
			cli.Printf(p.Stdout, "; reads up to %s records again", withCommas(s.Again))
		}
		cli.Printf(p.Stdout, "\n")
	}
	cli.Printf(p.Stdout, "next: start its processes, which hold, then oncebus seed %s\n", file)
}
