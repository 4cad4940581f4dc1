package kafkatest

import (
	"errors"
	"os"
	"syscall"
)

// sysProcAttr puts the child into its own process group: Ctrl-C in the terminal then reaches the test first, not the
// child. The kernel kills the child when the test process ends without stopping it.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitStopped waits until a child is stopped or has ended. It does not consume the child's status (WNOWAIT), which
// the goroutine that waits for the end needs.
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
