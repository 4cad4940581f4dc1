package cli

// The exit codes. ExitCodes says what each of them means.
const (
	ExitStopped = 0
	ExitFailed  = 1
	ExitWrong   = 2
)

// ExitCode is one row of ExitCodes.
type ExitCode struct {
	Code    int
	Meaning string
}

// ExitCodes lists the exit codes of every command.
func ExitCodes() []ExitCode {
	return []ExitCode{
		{ExitStopped, "stopped as asked, or the command did what it was asked"},
		{ExitFailed, "failed while running"},
		{ExitWrong, "wrong settings, routes or usage; nothing was written, and nothing connected but to read a manifest"},
	}
}
