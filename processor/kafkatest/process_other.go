//go:build unix && !linux

package kafkatest

import "syscall"

// sysProcAttr leaves the child in the process group of its test, so that an interrupt
// of the terminal stops both: this system has no parent-death signal.
func sysProcAttr() *syscall.SysProcAttr { return nil }

// awaitStopped does not wait: this system has no way to look at a child's state and leave it for its parent's wait.
func awaitStopped(int) error { return nil }
