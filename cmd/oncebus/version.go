package main

import (
	"context"
	"encoding/json"
	"runtime/debug"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
)

// versionCommand is 'oncebus version', and 'oncebus --version'.
func versionCommand() cli.Command {
	var asJSON bool
	return cli.Command{
		Name: "version", About: "print the version", Long: "Prints the version of the build.", Example: "oncebus version",
		Flags: func(fs *pflag.FlagSet) { cli.OutputFlag(fs, &asJSON) },
		Run: func(_ context.Context, _ []string, p cli.Process) int {
			if asJSON {
				if err := json.NewEncoder(p.Stdout).Encode(shownVersion{version()}); err != nil {
					return cli.ExitFailed
				}
				return cli.ExitStopped
			}
			cli.Printf(p.Stdout, "oncebus %s\n", version())
			return cli.ExitStopped
		},
	}
}

// shownVersion is printed as JSON. Its JSON names are an interface.
type shownVersion struct {
	Version string `json:"version"`
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

// commit returns the commit that the binary was built from; "" if the build does not say.
func commit() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return ""
}
