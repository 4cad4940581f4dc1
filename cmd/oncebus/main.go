// Command oncebus lets every event stand exactly once in Kafka: it consumes
// topics that may carry copies and produces topics that do not.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/demo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// Once the first signal has cancelled ctx the handler is removed, so that
	// a second one ends the process at once, whatever it is waiting for.
	context.AfterFunc(ctx, stop)
	os.Exit(commands().Run(ctx, os.Args[1:], cli.ThisProcess()))
}

// commands are the subcommands, in the order of the help.
func commands() cli.Commands {
	return cli.Commands{
		{Name: "run", About: "the service: settings from the environment, see 'oncebus run --help'", Run: runService},
		{Name: "ingress", About: "takes events in by HTTP and answers with the verdict, see 'oncebus ingress --help'", Run: runIngress},
		{Name: "demo", About: "sample traffic through an embedded broker, with the result proved", Run: demo.Run},
		{Name: "check", About: "validate the routes file, without a broker", Run: runCheck},
		{Name: "key", About: "print the dedup key a route derives for an event, and how", Run: runKey},
		{Name: "get", About: "show what is kept of an event's key, from the app's topics", Run: runGet},
		{Name: "forget", About: "erase what is kept of an event's key, in claim mode", Run: runForget},
		{Name: "stats", About: "show how many keys the app remembers, from its topics", Run: runStats},
		{Name: "version", About: "print the version", Run: runVersion},
	}
}
