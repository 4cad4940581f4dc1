package cli

// The exit codes; ExitCodes tells their meanings.
const (
	ExitStopped = 0
	ExitFailed  = 1
	ExitWrong   = 2
	ExitBroken  = 3
)

// ExitCode is an exit code with its meaning.
type ExitCode struct {
	Code    int
	Meaning string
}

// ExitCodes lists the exit codes of all commands.
func ExitCodes() []ExitCode {
	return []ExitCode{
		{ExitStopped, "stopped as requested, or the command succeeded"},
		{ExitFailed, "failed while running; of doctor: the service works, at risk; of dead-letters redrive: not all were redriven; of plan: apply would do something; of apply: in force, but not taken by all processes; of verify: the file is damaged, or keys are missing or different; of conformance: a rule is broken, or none was judged"},
		{ExitWrong, "wrong settings, routes or usage: nothing was written; at most the app's manifest was read; of doctor: the service will not work; of plan: something is refused"},
		{ExitBroken, "of self-audit: the promise did not hold; exit code 1 says that it could not look"},
	}
}
