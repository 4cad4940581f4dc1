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
	// The first signal cancels ctx and removes the handler, so that a second one
	// ends the process immediately.
	context.AfterFunc(ctx, stop)
	os.Exit(commands().Run(ctx, os.Args[1:], cli.ThisProcess()))
}

// commands are the subcommands, in the order of the help.
func commands() cli.Commands {
	return cli.Commands{
		{Name: "run", About: "run the service; 'oncebus run --help' lists its settings", Run: runService},
		{Name: "ingress", About: "accept events by HTTP and respond with the verdict", Run: runIngress},
		{Name: "demo", About: "send sample traffic through an embedded broker and verify the result", Run: demo.Run},
		{Name: "check", About: "validate the routes file, without a broker", Run: runCheck},
		{Name: "doctor", About: "check everything that the service needs, and say what to do", Run: runDoctor},
		{Name: "key", About: "print the dedup key that a route derives for an event, and how", Run: runKey},
		{Name: "get", About: "show the state of an event's key, from the app's topics", Run: runGet},
		{Name: "forget", About: "erase the state of an event's key, in claim mode", Run: runForget},
		{Name: "accept", About: "decide how a partition goes on that lost rows, records or offsets", Run: runAccept},
		{Name: "stats", About: "show how many keys the app retains, from its topics", Run: runStats},
		{Name: "version", About: "print the version", Run: runVersion},
	}
}
