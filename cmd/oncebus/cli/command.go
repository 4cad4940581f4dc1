package cli

import (
	"context"
	"io"
	"strings"
)

// Command is one subcommand of oncebus.
type Command struct {
	Name  string
	About string // one line of the list of commands
	// Run takes the arguments after the name and returns the exit code.
	Run func(ctx context.Context, args []string, p Process) int
}

// Help returns what 'oncebus NAME --help' prints.
func (c Command) Help() string {
	var help strings.Builder
	c.Run(context.Background(), []string{"--help"}, Process{Stdin: strings.NewReader(""), Stdout: &help, Stderr: io.Discard})
	return help.String()
}

// Commands are the subcommands of oncebus.
type Commands []Command

// Run executes one command line and returns the exit code. It fails if standard
// output could not be written, because a reader must not mistake half a result for
// the whole.
func (cs Commands) Run(ctx context.Context, args []string, p Process) int {
	stdout := newOutput(p.Stdout)
	p.Stdout, p.Stderr = stdout, newOutput(p.Stderr)
	code := cs.dispatch(ctx, args, p)
	if err := stdout.failed(); err != nil && code == ExitStopped {
		Printf(p.Stderr, "oncebus: standard output: %v\n", err)
		return ExitFailed
	}
	return code
}

// dispatch runs the command that args name.
func (cs Commands) dispatch(ctx context.Context, args []string, p Process) int {
	if len(args) == 0 {
		cs.printUsage(p.Stderr)
		return ExitWrong
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		cs.printUsage(p.Stdout)
		return ExitStopped
	}
	for _, c := range cs {
		if c.Name == args[0] {
			return c.Run(ctx, args[1:], p)
		}
	}
	Printf(p.Stderr, "oncebus: unknown command %q\n\n", args[0])
	cs.printUsage(p.Stderr)
	return ExitWrong
}

func (cs Commands) printUsage(w io.Writer) {
	Printf(w, "oncebus removes duplicates from Kafka topics: every event comes out exactly once.\n\nUsage: oncebus COMMAND [OPTIONS]\n\n")
	for _, c := range cs {
		Printf(w, "  %-8s %s\n", c.Name, c.About)
	}
	Printf(w, "\n'oncebus COMMAND --help' describes a command.\n")
}
