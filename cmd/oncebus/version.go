package main

import (
	"context"
	"runtime/debug"

	"oncebus/cmd/oncebus/cli"
)

func runVersion(_ context.Context, args []string, p cli.Process) int {
	if _, code, done := cli.ParseFlags(cli.NewFlags("version", "", "Prints the version of the build."), args, 0, p); done {
		return code
	}
	cli.Printf(p.Stdout, "oncebus %s\n", version())
	return cli.ExitStopped
}

// version returns the module version, or the commit that the binary was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				modified = "+modified"
			}
		}
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	if revision == "" {
		return "devel"
	}
	return revision + modified
}
