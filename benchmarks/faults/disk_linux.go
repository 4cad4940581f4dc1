package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// smallDiskBytes is the size of a disk that a fault fills, in bytes. It is so large that the stores of all
// tasks do not fill it up to the level at which tasks pause.
const smallDiskBytes = 1 << 30

// mountSmall mounts a small file system in memory at dir, which needs root.
func mountSmall(dir string) error {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", smallDiskBytes)); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", dir, err)
	}
	return nil
}

// unmount unmounts the file system at dir, even while a process uses it.
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

// The request numbers of ioctl_fsfreeze(2).
const (
	requestFreeze = 0xC0045877
	requestThaw   = 0xC0045878
)

// freezeDisk makes all writes to the file system of dir block until thawDisk. Before it blocks them, the kernel
// writes its dirty pages to the disk.
func freezeDisk(dir string) error { return diskRequest(dir, requestFreeze, "freeze") }

// thawDisk lets the blocked writes continue.
func thawDisk(dir string) error { return diskRequest(dir, requestThaw, "thaw") }

func diskRequest(dir string, request uintptr, verb string) (err error) {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), request, 0); errno != 0 {
		return fmt.Errorf("%s the disk at %s: %w", verb, dir, errno)
	}
	return nil
}
