//go:build unix && !linux

package kafkatest

import "testing"

// A Disk is a small file system of a test.
type Disk struct{}

// MountDisk skips the test: only Linux mounts a file system in memory by a system call.
func MountDisk(tb testing.TB, _, _ string) *Disk {
	tb.Helper()
	tb.Skip("skipped: a disk for a test can be mounted on Linux only")
	return nil
}

// Fill fills the disk.
func (*Disk) Fill(int64) {}

// Clear frees what Fill filled.
func (*Disk) Clear() {}
