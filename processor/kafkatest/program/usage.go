//go:build unix

package program

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage has the resources that a process has used since its start.
type Usage struct {
	CPU     time.Duration // user and system time, in steps of 10 ms
	RSS     int64         // resident memory now, bytes
	RSSAnon int64         // the part of RSS that is not backed by files, which the kernel cannot drop
	RSSMax  int64         // highest resident memory so far, bytes
}

// userHz is the number of time units per second in /proc, on every architecture of Linux (proc(5), USER_HZ).
const userHz = 100

// UsageOf returns the usage of a running process. It works on Linux only.
func UsageOf(pid int) (Usage, error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	cpu, err := cpuTime(dir)
	if err != nil {
		return Usage{}, fmt.Errorf("read the usage of process %d (this needs Linux): %w", pid, err)
	}
	u := Usage{CPU: cpu}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	for name, to := range map[string]*int64{"VmRSS": &u.RSS, "RssAnon": &u.RSSAnon, "VmHWM": &u.RSSMax} {
		err = errors.Join(err, readKiB(status, name, to))
	}
	if err != nil {
		return Usage{}, fmt.Errorf("read the usage of process %d (this needs Linux): %w", pid, err)
	}
	return u, nil
}

// cpuTime returns user plus system time: fields 14 and 15 of /proc/PID/stat, counted from 1 (proc(5)). It searches
// for them after the last parenthesis, which ends the name of the command: the name itself may contain any character.
func cpuTime(dir string) (sum time.Duration, err error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("%s/stat has %d fields", dir, len(fields)+2)
	}
	for _, ticks := range fields[11:13] {
		n, err := strconv.ParseInt(ticks, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * time.Second / userHz
	}
	return sum, nil
}

// readKiB reads a line "name: n kB" of /proc/PID/status and stores the number in bytes.
func readKiB(status []byte, name string, to *int64) error {
	for line := range strings.Lines(string(status)) {
		if key, value, _ := strings.Cut(line, ":"); key == name {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			*to = kib << 10
			return err
		}
	}
	return fmt.Errorf("no line %s in /proc/PID/status", name)
}
