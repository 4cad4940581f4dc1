package cli

import (
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"oncebus/dedup/rules"
)

const (
	program      = "oncebus"
	programAbout = "oncebus removes duplicates from Kafka topics: every event comes out exactly once."
)

// printHelp prints the help of a command.
func (r *run) printHelp(cmd *cobra.Command, c *Command, w io.Writer) {
	if len(c.Commands) > 0 {
		printGroup(cmd, c, w)
		return
	}
	Printf(w, "Usage: %s\n\n%s\n", strings.TrimSpace(cmd.CommandPath()+" "+c.Synopsis), strings.TrimSpace(c.Long))
	if c.Flags != nil {
		fs := pflag.NewFlagSet(c.Name, pflag.ContinueOnError) // without cobra's --help
		fs.SortFlags = false
		c.Flags(fs)
		Printf(w, "\nOptions:\n%s", fs.FlagUsages())
	}
	if c.Example != "" {
		Printf(w, "\nExample:\n")
		for line := range strings.Lines(strings.TrimSpace(c.Example)) {
			Printf(w, "  %s", line)
		}
		Printf(w, "\n")
	}
	if c.More != nil {
		c.More(w)
	}
}

// printGroup prints the subcommands of a command.
func printGroup(cmd *cobra.Command, c *Command, w io.Writer) {
	Printf(w, "%s\n\nUsage: %s COMMAND [OPTIONS]\n\n", strings.TrimSpace(c.Long), cmd.CommandPath())
	width := 0
	for _, sub := range c.Commands {
		width = max(width, len(sub().Name))
	}
	group := ""
	for _, sub := range c.Commands {
		s := sub()
		if s.Group != "" && s.Group != group {
			if group != "" {
				Printf(w, "\n")
			}
			Printf(w, "%s:\n", s.Group)
			group = s.Group
		}
		Printf(w, "  %-*s  %s\n", width, s.Name, s.About)
	}
	Printf(w, "\n'%s COMMAND --help' describes a command.\n", cmd.CommandPath())
}

// usageError prints the mistake in a command line and returns the exit code.
func (r *run) usageError(cmd *cobra.Command, err error) int {
	if !errors.Is(err, errShown) {
		printUsageError(r.p, cmd.CommandPath(), err.Error())
	}
	return ExitWrong
}

// UsageError prints a mistake in the arguments of the command with this name and returns the exit code.
func UsageError(p Process, name, message string) int {
	printUsageError(p, program+" "+name, message)
	return ExitWrong
}

// printUsageError prints a mistake in the arguments of the command with this path.
func printUsageError(p Process, path, message string) {
	Printf(p.Stderr, "%s: %s\n'%s --help' lists its options.\n", path, message, path)
}

// unknownCommand prints that a group has no command with this name.
func (r *run) unknownCommand(group *cobra.Command, name string) {
	var names []string
	for _, sub := range group.Commands() {
		names = append(names, sub.Name())
	}
	path := group.CommandPath()
	Printf(r.p.Stderr, "%s: unknown command %q%s\n'%s --help' lists the commands.\n", path, name, meant(name, names, ""), path)
}

// explainFlag adds to the error about an unknown flag the flag that the user most likely meant.
func explainFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	// pflag parses -name as a group of short flags, but a user who types it means --name.
	given := "--" + unknown.GetSpecifiedName()
	if group := unknown.GetSpecifiedShortnames(); group != "" {
		given = "-" + group
	}
	return errors.New("unknown option " + given + meant(strings.TrimLeft(given, "-"), names, "--"))
}

// meant returns a question with the name that a mistyped name most likely means; "" if there is no such name.
func meant(mistyped string, names []string, before string) string {
	mistyped, _, _ = strings.Cut(mistyped, "=")
	if name := rules.Nearest(mistyped, names); name != "" {
		return "; did you mean " + before + name + "?"
	}
	return ""
}
