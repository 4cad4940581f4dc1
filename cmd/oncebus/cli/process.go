package cli

import (
	"io"
	"os"
	"time"
)

// Process is the part of the operating system that a command uses.
type Process struct {
	Environ []string // in the form of os.Environ
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Now     func() time.Time // nil: time.Now
}

// Clock returns the function that tells the time of this machine.
func (p Process) Clock() func() time.Time {
	if p.Now == nil {
		return time.Now
	}
	return p.Now
}

// ThisProcess returns the current process.
func ThisProcess() Process {
	return Process{Environ: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
}
