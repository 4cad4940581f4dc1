package cli

import (
	"io"
	"os"
)

// Process is what a command sees of the operating system.
type Process struct {
	Environ []string // as from os.Environ
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
}

// ThisProcess returns the process that runs.
func ThisProcess() Process {
	return Process{Environ: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
}
