// Package cli is the command line of oncebus, on which every command is built.
//
// It owns the table of commands (Commands), the help of a command, the flags that many commands have
// (OutputFlag, RoutesFlag), completion by shells, standard output (Printf), progress on a terminal (Progress),
// the logger, and the exit codes (ExitCodes).
//
// Only this package imports cobra, which chooses the command and completes words. Commands define their flags
// in a pflag.FlagSet. For a mistyped name it suggests a name with the function that the routes file uses
// (rules.Nearest).
//
// # Invariants
//
//   - A command uses the operating system only through its Process. Only ThisProcess reads the environment.
//   - Commands.Run returns ExitFailed if standard output could not be written.
//   - Help goes to standard output and ends with ExitStopped; a mistake on the command line goes to standard error and
//     ends with ExitWrong.
//   - Commands.Help returns what the help of a command prints, and does not run the command.
//
// # What looks wrong
//
//   - Printf drops errors: the output of a Process keeps the first error, and Commands.Run reports it.
//   - Commands are functions: the flags of a Command write into variables that its function has made, so a second run
//     needs a new Command.
//   - The help defines the flags a second time, in a flag set that lacks cobra's --help.
package cli
