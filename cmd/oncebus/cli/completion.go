package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// shells are the shells that complete oncebus' command lines.
var shells = []string{"bash", "zsh", "fish", "powershell"}

// completionCommand is 'oncebus completion'.
func (r *run) completionCommand() Command {
	return Command{
		Name: "completion", Synopsis: strings.Join(shells, " | "), About: "print the script with which a shell completes command lines", ArgsMax: 1,
		Long: "Prints a script for a shell. With it the Tab key completes commands, options, the names\n" +
			"of routes, and files. bash needs the package bash-completion for it.",
		Example: "source <(oncebus completion bash)\n" +
			"oncebus completion fish > ~/.config/fish/completions/oncebus.fish",
		Words: func(Process, string) []string { return shells },
		Run:   r.printCompletion,
	}
}

func (r *run) printCompletion(_ context.Context, args []string, p Process) int {
	var err error
	switch strings.Join(args, "") {
	case "bash":
		err = r.root.GenBashCompletionV2(p.Stdout, true)
	case "zsh":
		err = r.root.GenZshCompletion(p.Stdout)
	case "fish":
		err = r.root.GenFishCompletion(p.Stdout, true)
	case "powershell":
		err = r.root.GenPowerShellCompletionWithDesc(p.Stdout)
	default:
		return UsageError(p, "completion", "want one of "+strings.Join(shells, ", "))
	}
	if err != nil {
		Printf(p.Stderr, "oncebus completion: %v\n", err)
		return ExitFailed
	}
	return ExitStopped
}

// completeWords registers the words with which a shell completes the arguments and options of a command. Only
// options whose value is a file complete to names of files.
func (r *run) completeWords(cmd *cobra.Command, c *Command) {
	if c.ArgsMax == 0 {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	if c.Words != nil {
		cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			if words := c.Words(r.p, ""); words != nil {
				return words, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		}
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		var kind string
		if kind, f.Usage = pflag.UnquoteUsage(f); kind == "file" { // cobra shows the usage unchanged
			return
		}
		complete := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			switch {
			case f.Name == outputFlag:
				return formats, cobra.ShellCompDirectiveNoFileComp
			case c.Words != nil:
				return c.Words(r.p, f.Name), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		// This fails only for a flag that does not exist or that has words already.
		_ = cmd.RegisterFlagCompletionFunc(f.Name, complete)
	})
}
