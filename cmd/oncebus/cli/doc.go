// Package cli is the command line of oncebus, on which every command is built.
//
// It owns the table of commands and the choice of one (Commands), the flags and
// help of a command (NewFlags, ParseFlags), standard output (Printf), the logger,
// and the exit codes (ExitCodes).
//
// It imports only the standard library.
//
// # Invariants
//
//   - A command uses the operating system only by its Process. Only
//     ThisProcess reads the environment.
//   - Commands.Run returns ExitFailed if standard output could not be written.
//   - Help goes to standard output with ExitStopped; a mistake on the command line
//     goes to standard error with ExitWrong.
//   - Command.Help returns what the command prints, and runs nothing else.
//
// # What looks wrong
//
//   - Printf drops errors: a Process's output keeps the first one, and
//     Commands.Run reports it.
//   - ParseFlags parses in a loop, because package flag stops at the first
//     argument that is not a flag.
package cli
