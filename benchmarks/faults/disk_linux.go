package main

import (
	"fmt"
	"os"
	"syscall"
)

// smallDiskBytes is the size of a disk to fill. It has space for the stores of all
// tasks above the pause level.
const smallDiskBytes = 1 << 30

// mountSmall mounts a small file system in memory, which needs root.
func mountSmall(dir string) error {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", smallDiskBytes)); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", dir, err)
	}
	return nil
}

// unmount unmounts it, even if a process uses it.
func unmount(dir string) error {
	if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// allocate allocates that many bytes for a file.
func allocate(f *os.File, bytes int64) error {
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, bytes); err != nil {
		return fmt.Errorf("allocate %d bytes for %s: %w", bytes, f.Name(), err)
	}
	return nil
}
