package main

import (
	"context"
	"os"
	"os/signal"
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
	return cli.Commands{
		runCommand, ingressCommand, demo.Command, checkCommand, doctorCommand, keyCommand, getCommand, forgetCommand,
		planCommand, applyCommand, shadowCommand, promoteCommand, finalizeCommand, holdCommand, releaseCommand, moveCommand, abortCommand, acceptCommand, deadLettersCommand, statsCommand, exportCommand, verifyCommand, seedCommand, arriveCommand, auditCommand, selfAuditCommand, conformanceCommand, top.Command, versionCommand,
	}
}
