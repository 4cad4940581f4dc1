package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/front"
)

// finalizeCommand is 'oncebus finalize'.
func finalizeCommand() cli.Command {
	var asJSON bool
	return cli.Command{
		Name: "finalize", Synopsis: "[OPTIONS] [FILE]", About: "raise the level of an app once all its processes have this build", ArgsMax: 1,
		Long: "Raises the level of an app that an earlier build began, once all of its processes have this build.\n" +
			"Until then the earlier build can come back; afterwards it refuses the app. FILE, which all processes\n" +
			"must have, becomes route set 1. It defaults to $ONCEBUS_ROUTES, else routes.yaml. The settings are\n" +
			"those of 'oncebus run'. A new app needs no finalize.",
		Example: "oncebus finalize routes.yaml",
		Flags:   func(fs *pflag.FlagSet) { cli.OutputFlag(fs, &asJSON) },
		Run: func(ctx context.Context, args []string, p cli.Process) int {
			s, routes, err := settings.Load(p.Environ, strings.Join(args, ""))
			if err != nil {
				cli.Printf(p.Stderr, "oncebus finalize: %v\n", err)
				return cli.ExitWrong
			}
			f, err := finalize(ctx, s, routes, p)
			switch {
			case err != nil:
				cli.Printf(p.Stderr, "oncebus finalize: %v\n", err)
				return codeOf(err)
			case asJSON:
				if err := json.NewEncoder(p.Stdout).Encode(f); err != nil {
					return cli.ExitFailed
				}
			case f.Raised:
				cli.Printf(p.Stdout, "level %d, route set %d in force; live processes: %s\n", f.Level, f.Set, liveText(f.Live))
			default:
				cli.Printf(p.Stdout, "nothing to do: the app is at level %d, with route set %d in force\n", f.Level, f.Set)
			}
			return cli.ExitStopped
		},
	}
}

func finalize(ctx context.Context, s settings.Settings, routes *rules.Routes, p cli.Process) (*app.Finalized, error) {
	changer, err := front.NewChanger(s.Processor.Config, routes, cli.NewLogger(p.Stderr, slog.LevelError, s.LogFormat))
	if err != nil {
		return nil, err
	}
	defer changer.Close()
	return changer.Finalize(ctx, operatorName())
}

// liveText lists the instances that are alive; "none" if there are none.
func liveText(live []string) string {
	if len(live) == 0 {
		return "none"
	}
	return strings.Join(live, ", ")
}
