//go:build unix && !linux

package kafkatest

import "syscall"

// sysProcAttr leaves the child in the process group of the test, so that Ctrl-C stops both. This system has no
// parent-death signal that would end the child with the test.
func sysProcAttr() *syscall.SysProcAttr { return nil }

// awaitStopped does not wait: on this system a process cannot look at a child's state without consuming the status
// that the parent's Wait needs.
func awaitStopped(int) error { return nil }
