package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/demo"
	"oncebus/cmd/oncebus/top"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// The first signal cancels ctx and removes the handler, so that a second signal ends the process
	// immediately.
	context.AfterFunc(ctx, stop)
	os.Exit(commands().Run(ctx, os.Args[1:], cli.ThisProcess()))
}

// commands are the subcommands, in the order of the help.
func commands() cli.Commands {
	return slices.Concat(
		cli.InGroup("Run", runCommand, ingressCommand, demo.Command),
		cli.InGroup("Prepare", auditCommand, checkCommand, keyCommand, doctorCommand),
		cli.InGroup("Look", top.Command, getCommand, statsCommand, selfAuditCommand),
		cli.InGroup("Change a running app", planCommand, applyCommand, shadowCommand, promoteCommand, finalizeCommand, holdCommand, releaseCommand, moveCommand, abortCommand),
		cli.InGroup("Repair", acceptCommand, deadLettersCommand, forgetCommand),
		cli.InGroup("Take keys along", exportCommand, verifyCommand, seedCommand, arriveCommand),
		cli.InGroup("Other", conformanceCommand, versionCommand),
	)
}
