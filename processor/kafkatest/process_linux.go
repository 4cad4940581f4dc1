package kafkatest

import "syscall"

// sysProcAttr puts the broker into its own process group, so that an interrupt from the terminal does not reach it before its
// test, and has the kernel kill it when the test process dies without stopping it.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
