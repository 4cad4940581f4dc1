//go:build unix

package server

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// userHz is the number of time units per second in /proc, on every architecture of Linux (proc(5), USER_HZ).
const userHz = 100

// CPU returns the CPU time of the server: of its first process, of the processes that this process has waited for,
// and of its children.
func (s *Server) CPU() (sum time.Duration, err error) {
	err = s.each(func(pid int) error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		ticks, err := ticks(stat)
		sum += time.Duration(ticks) * time.Second / userHz
		return err
	})
	return sum, err
}

// ticks returns user plus system time of a process and of the children that it has waited for: fields 14 to 17 of
// /proc/PID/stat, counted from 1. The fields come after the name of the command, which ends with the last
// parenthesis.
func ticks(stat []byte) (sum int64, err error) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 15 {
		return 0, fmt.Errorf("/proc/PID/stat has %d fields", len(fields)+2)
	}
	for _, field := range fields[11:15] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// Memory returns the current memory of the server's processes. A page that several processes share counts once
// (PSS). To compute this the kernel walks the page tables of the processes, so do not call Memory in a tight
// loop.
func (s *Server) Memory() (sum int64, err error) {
	err = s.each(func(pid int) error {
		rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(rollup)) {
			if kib, is := strings.CutPrefix(line, "Pss:"); is {
				n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kib), "kB")), 10, 64)
				sum += n << 10
				return err
			}
		}
		return fmt.Errorf("no line Pss in /proc/%d/smaps_rollup", pid)
	})
	return sum, err
}

// each calls read with the server's process and each of its children. A child that ends meanwhile is left out.
func (s *Server) each(read func(pid int) error) error {
	root := s.process.PID()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", root, root))
	if err != nil {
		return fmt.Errorf("list the processes of %s (this needs Linux): %w", s.process.Name, err)
	}
	if err := read(root); err != nil {
		return err
	}
	for _, child := range strings.Fields(string(children)) {
		pid, err := strconv.Atoi(child)
		if err != nil {
			return err
		}
		if err := read(pid); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}
