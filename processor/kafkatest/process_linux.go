package kafkatest

import "syscall"

// sysProcAttr puts the child into its own process group, so that an interrupt of the
// terminal does not reach it before its test. The kernel kills it when the test
// process ends without stopping it.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
