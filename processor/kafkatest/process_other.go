//go:build unix && !linux

package kafkatest

import "syscall"

// sysProcAttr leaves the child in the process group of its test, so that an interrupt
// of the terminal stops both: this system has no parent-death signal.
func sysProcAttr() *syscall.SysProcAttr { return nil }
