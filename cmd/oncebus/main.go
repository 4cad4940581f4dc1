// Command oncebus lets every event stand exactly once in Kafka: it consumes
// topics that may carry copies and produces topics that do not.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// Exit codes, as README.md promises them.
const (
	exitStopped = 0 // stopped as asked, or the command did what it was asked
	exitFailed  = 1 // failed while running
	exitWrong   = 2 // wrong settings, routes or usage; nothing was written, and nothing connected but to read a manifest
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// Once the first signal has cancelled ctx the handler is removed, so that
	// a second one ends the process at once, whatever it is waiting for.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], process{environ: environment(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}))
}

// process is what a command sees of the operating system.
type process struct {
	environ []string // as from os.Environ
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
}

// command is one subcommand of oncebus.
type command struct {
	name  string
	about string
	// run takes the arguments after the name and returns the exit code.
	run func(ctx context.Context, args []string, p process) int
}

func commands() []command {
	return []command{
		{"run", "the service: settings from the environment, see 'oncebus run --help'", runService},
		{"ingress", "takes events in by HTTP and answers with the verdict, see 'oncebus ingress --help'", runIngress},
		{"demo", "sample traffic through an embedded broker, with the result proved", runDemo},
		{"check", "validate the routes file, without a broker", runCheck},
		{"key", "print the dedup key a route derives for an event, and how", runKey},
		{"get", "show what is kept of an event's key, from the app's topics", runGet},
		{"forget", "erase what is kept of an event's key, in claim mode", runForget},
		{"stats", "show how many keys the app remembers, from its topics", runStats},
		{"version", "print the version", runVersion},
	}
}

// run executes one command line and returns the exit code. A result that could
// not be written is a failure: whoever reads standard output must not take half
// of it for the whole.
func run(ctx context.Context, args []string, p process) int {
	stdout := &output{w: p.stdout, terminal: isTerminal(p.stdout)}
	p.stdout, p.stderr = stdout, &output{w: p.stderr, terminal: isTerminal(p.stderr)}
	code := dispatch(ctx, args, p)
	if err := stdout.failed(); err != nil && code == exitStopped {
		printf(p.stderr, "oncebus: standard output: %v\n", err)
		return exitFailed
	}
	return code
}

// dispatch finds the command and runs it.
func dispatch(ctx context.Context, args []string, p process) int {
	if len(args) == 0 {
		printUsage(p.stderr)
		return exitWrong
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		printUsage(p.stdout)
		return exitStopped
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], p)
		}
	}
	printf(p.stderr, "oncebus: unknown command %q\n\n", args[0])
	printUsage(p.stderr)
	return exitWrong
}

func printUsage(w io.Writer) {
	printf(w, "oncebus lets every event stand exactly once in Kafka.\n\nUsage: oncebus COMMAND [OPTIONS]\n\n")
	for _, c := range commands() {
		printf(w, "  %-8s %s\n", c.name, c.about)
	}
	printf(w, "\n'oncebus COMMAND --help' says more about a command.\n")
}

func runVersion(_ context.Context, args []string, p process) int {
	if _, code, done := parseFlags(newFlags("version", "", "Prints the version of the build."), args, 0, p); done {
		return code
	}
	printf(p.stdout, "oncebus %s\n", version())
	return exitStopped
}

// version is the module version or the commit the binary was built from.
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
