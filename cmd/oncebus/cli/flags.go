package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// NewFlags returns a flag set whose help is synopsis (what follows the command
// name), about and the flags themselves.
func NewFlags(name, synopsis, about string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // ParseFlags decides where what is printed
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

// ParseFlags parses args and returns what stands besides the flags, which may
// stand before or behind it. When the command is over already, because help was
// asked for or the usage is wrong, done is true and code is the exit code.
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

func UsageError(fs *flag.FlagSet, p Process, message string) int {
	Printf(p.Stderr, "oncebus %s: %s\n'oncebus %s --help' says what it takes.\n", fs.Name(), message, fs.Name())
	return ExitWrong
}
