package kafkatest

import (
	"errors"
	"os"
	"syscall"
)

// sysProcAttr puts the child into its own process group, so that an interrupt of the
// terminal does not reach it before its test. The kernel kills it when the test
// process ends without stopping it.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitStopped waits until a child is stopped, or has ended. It leaves both for the goroutine that waits for the end to see.
func awaitStopped(pid int) error {
	const byID = 1 // P_PID of waitid(2)
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byID, uintptr(pid), 0, syscall.WSTOPPED|syscall.WEXITED|syscall.WNOWAIT, 0, 0)
		switch {
		case errno == 0:
			return nil
		case errors.Is(errno, syscall.ECHILD):
			return os.ErrProcessDone
		case !errors.Is(errno, syscall.EINTR):
			return os.NewSyscallError("waitid", errno)
		}
	}
}
