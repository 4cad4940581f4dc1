package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// NewFlags returns the flag set of a command. Its help shows synopsis (the text after
// the command name), about and the flags.
func NewFlags(name, synopsis, about string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // ParseFlags sets the output for help
	fs.Usage = func() {
		line := strings.TrimSpace("oncebus " + name + " " + synopsis)
		Printf(fs.Output(), "Usage: %s\n\n%s\n", line, strings.TrimSpace(about))
		flags := false
		fs.VisitAll(func(*flag.Flag) { flags = true })
		if flags {
			Printf(fs.Output(), "\nOptions:\n")
			fs.PrintDefaults()
		}
	}
	return fs
}

// ParseFlags parses args and returns the arguments that are not flags, at most
// argsMax. Flags may come before and after them. If args ask for help or are
// wrong, ParseFlags prints the help or the mistake; done is then true and code is
// the exit code.
func ParseFlags(fs *flag.FlagSet, args []string, argsMax int, p Process) (rest []string, code int, done bool) {
	for {
		if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
			fs.SetOutput(p.Stdout)
			fs.Usage()
			return nil, ExitStopped, true
		} else if err != nil {
			return nil, UsageError(fs, p, err.Error()), true
		}
		if fs.NArg() == 0 {
			break
		}
		rest = append(rest, fs.Arg(0))
		args = fs.Args()[1:]
	}
	if len(rest) > argsMax {
		return nil, UsageError(fs, p, fmt.Sprintf("unexpected argument %q", rest[argsMax])), true
	}
	return rest, 0, false
}

// UsageError prints a mistake in the arguments of a command and returns the exit
// code.
func UsageError(fs *flag.FlagSet, p Process, message string) int {
	Printf(p.Stderr, "oncebus %s: %s\n'oncebus %s --help' lists its options.\n", fs.Name(), message, fs.Name())
	return ExitWrong
}
