//go:build unix && !linux

package kafkatest

import "testing"

// Disk is a small file system that a test can fill. This system has none.
type Disk struct{}

// MountDisk skips the test: the harness can mount a file system in memory on Linux only.
func MountDisk(tb testing.TB, _, _ string) *Disk {
	tb.Helper()
	tb.Skip("skipped: a disk for a test can be mounted on Linux only")
	return nil
}

// Fill does nothing: no test has a Disk on this system.
func (*Disk) Fill(int64) {}

// Clear does nothing.
func (*Disk) Clear() {}
