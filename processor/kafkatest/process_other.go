//go:build unix && !linux

package kafkatest

import "syscall"

// sysProcAttr leaves the broker in the process group of its test, so that an interrupt from the terminal stops both: there is
// no parent-death signal here.
func sysProcAttr() *syscall.SysProcAttr { return nil }
