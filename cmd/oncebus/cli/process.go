package cli

import (
	"io"
	"os"
)

// Process is the part of the operating system that a command uses.
type Process struct {
	Environ []string // as from os.Environ
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
}

// ThisProcess returns the current process.
func ThisProcess() Process {
	return Process{Environ: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
}
