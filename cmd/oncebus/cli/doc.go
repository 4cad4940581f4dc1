// Package cli is the command line of oncebus, on which every command is built.
//
// It owns the table of commands (Commands), the help of a command, flags that many
// have (OutputFlag, RoutesFlag), completion by shells, standard output (Printf),
// progress on a terminal (Progress), the logger, and the exit codes (ExitCodes).
//
// It alone imports cobra, which chooses the command and completes words. Commands
// define their flags in a pflag.FlagSet. A suggestion for a mistyped name is that of
// the routes file (rules.Nearest).
//
// # Invariants
//
//   - A command uses the operating system only by its Process. Only
//     ThisProcess reads the environment.
//   - Commands.Run returns ExitFailed if standard output could not be written.
//   - Help goes to standard output with ExitStopped; a mistake on the command line
//     goes to standard error with ExitWrong.
//   - Commands.Help returns what a command prints, and runs nothing else.
//
// # What looks wrong
//
//   - Printf drops errors: a Process's output keeps the first one, and
//     Commands.Run reports it.
//   - Commands are functions: the flags of a Command write into the variables that its
//     function made, so a second run needs another Command.
//   - Help defines the flags a second time, in a set without cobra's --help.
package cli
