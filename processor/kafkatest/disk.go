//go:build linux

package kafkatest

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Disk is a small file system in memory that a test can fill.
type Disk struct {
	tb          testing.TB
	dir, filler string
}

// MountDisk creates dir, mounts a Disk there and unmounts it when the test ends. size has the form of mount(8), such
// as 48m. Without the right to mount (root, or unshare -rm) MountDisk skips the test; with CI=true it fails the test
// instead.
func MountDisk(tb testing.TB, dir, size string) *Disk {
	tb.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		Lack(tb, "mount a disk for the test: %v; run the tests as root, or with unshare -rm", err)
	}
	tb.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			tb.Errorf("unmount the disk of the test: %v", err)
		}
	})
	return &Disk{tb, dir, filepath.Join(dir, "filler")}
}

// Fill fills the disk until only freePercent percent of it are free.
func (d *Disk) Fill(freePercent int64) {
	d.tb.Helper()
	var space syscall.Statfs_t
	if err := syscall.Statfs(d.dir, &space); err != nil {
		d.tb.Fatal(err)
	}
	f, err := os.Create(d.filler)
	if err != nil {
		d.tb.Fatal(err)
	}
	defer func() { _ = f.Close() }() // Fallocate has allocated the space, so nothing is lost if Close fails
	used := int64(space.Bavail) - int64(space.Blocks)*freePercent/100
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, used*space.Bsize); err != nil {
		d.tb.Fatal(err)
	}
}

// Clear frees the space that Fill took.
func (d *Disk) Clear() {
	d.tb.Helper()
	if err := os.Remove(d.filler); err != nil {
		d.tb.Fatal(err)
	}
}
