package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Command describes a subcommand of oncebus.
type Command struct {
	Name     string
	Synopsis string // what follows the name in the first line of the help
	About    string // one line in the list of commands
	Group    string // the heading above it in that list; "" for the same heading as the previous command
	Long     string // what the command does, in whole sentences
	Example  string // command lines, each on its own line
	ArgsMax  int    // largest number of arguments that are not flags

	Flags func(*pflag.FlagSet) // defines the flags; nil if there are none
	More  func(io.Writer)      // prints what follows the options in the help; nil for nothing
	// Words returns the words that a shell offers for the flag with this name or, if flag is "", for an argument. It
	// is nil for a command whose arguments are files.
	Words func(p Process, flag string) []string
	// Run executes the command with the arguments that are not flags, and returns the exit code. It is nil for a
	// command that only groups other Commands.
	Run      func(ctx context.Context, args []string, p Process) int
	Commands Commands
}

// Commands are subcommands, in the order of the help. Each is a function that makes a Command: the flags of a
// Command write into variables, and every run needs new variables.
type Commands []func() Command

// InGroup returns the commands with a group in the help.
func InGroup(group string, commands ...func() Command) Commands {
	grouped := make(Commands, len(commands))
	for i, command := range commands {
		grouped[i] = func() Command {
			c := command()
			c.Group = group
			return c
		}
	}
	return grouped
}

// Run executes one command line and returns the exit code. It returns ExitFailed if standard output could not
// be written, so that a program that reads the output does not take half of a result for the whole result.
func (cs Commands) Run(ctx context.Context, args []string, p Process) int {
	stdout := newOutput(p.Stdout)
	p.Stdout, p.Stderr = stdout, newOutput(p.Stderr)
	code := cs.execute(ctx, args, p)
	if err := stdout.failed(); err != nil && code == ExitStopped {
		Printf(p.Stderr, "oncebus: standard output: %v\n", err)
		return ExitFailed
	}
	return code
}

// execute runs the command that args name. 'help NAME' means 'NAME --help', and --version means the command
// version.
func (cs Commands) execute(ctx context.Context, args []string, p Process) int {
	if len(args) > 0 {
		switch args[0] { // cobra's own help command would print a different text
		case "help":
			args = append(args[1:len(args):len(args)], "--help")
		case "--version":
			args = append([]string{"version"}, args[1:]...)
		}
	}
	r := &run{p: p}
	root := r.group(&Command{Name: program, Long: programAbout, Commands: append(cs[:len(cs):len(cs)], r.completionCommand)})
	r.root = root
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetArgs(args)
	root.SetIn(p.Stdin)
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	if cmd, err := root.ExecuteContextC(ctx); err != nil {
		return r.usageError(cmd, err)
	}
	return r.code
}

// Help returns what 'oncebus PATH --help' prints.
func (cs Commands) Help(path ...string) string {
	var help strings.Builder
	cs.Run(context.Background(), append(path[:len(path):len(path)], "--help"), Process{Stdin: strings.NewReader(""), Stdout: &help, Stderr: io.Discard})
	return help.String()
}

// Paths returns the path of every command: a group first, then its subcommands.
func (cs Commands) Paths() [][]string {
	return append(cs[:len(cs):len(cs)], (&run{}).completionCommand).paths(nil)
}

func (cs Commands) paths(group []string) [][]string {
	var all [][]string
	for _, command := range cs {
		c := command()
		path := slices.Concat(group, []string{c.Name})
		all = append(append(all, path), c.Commands.paths(path)...)
	}
	return all
}

// run is the execution of one command line by cobra.
type run struct {
	p    Process
	root *cobra.Command
	code int // the exit code
}

// errShown ends a command whose mistake was already printed to standard error.
var errShown = errors.New("shown")

// group returns a cobra command that only has subcommands.
func (r *run) group(c *Command) *cobra.Command {
	cmd := r.command(c)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			r.unknownCommand(cmd, args[0])
		} else {
			r.printHelp(cmd, c, r.p.Stderr)
		}
		return errShown
	}
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if name := cmd.Flags().Arg(0); name != "" {
			r.unknownCommand(cmd, name)
			r.code = ExitWrong
			return
		}
		r.printHelp(cmd, c, r.p.Stdout)
	})
	for _, sub := range c.Commands {
		s := sub()
		if len(s.Commands) > 0 {
			cmd.AddCommand(r.group(&s))
		} else {
			cmd.AddCommand(r.command(&s))
		}
	}
	return cmd
}

// command returns c as a cobra command.
func (r *run) command(c *Command) *cobra.Command {
	cmd := &cobra.Command{Use: c.Name, Short: c.About, SilenceErrors: true, SilenceUsage: true}
	if c.Flags != nil {
		c.Flags(cmd.Flags())
	}
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) { r.printHelp(cmd, c, r.p.Stdout) })
	cmd.SetFlagErrorFunc(explainFlag)
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > c.ArgsMax {
			return fmt.Errorf("unexpected argument %q", args[c.ArgsMax])
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r.code = c.Run(cmd.Context(), args, r.p)
		return nil
	}
	r.completeWords(cmd, c)
	return cmd
}
