//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"oncebus/processor/kafkatest"
)

// loopDiskBytes is the size of a loop disk, in bytes. The image is a sparse file, so it uses only the space that is
// written.
const loopDiskBytes = 32 << 30

// loopDisk is a file system in an image file, mounted at a directory. The harness can block its writes, so that it
// behaves like a disk that responds late.
type loopDisk struct{ image, dir string }

// loopDisks returns why this machine cannot mount loop disks; nil if it can. Loop disks need root, loop devices and
// mkfs.ext4.
var loopDisks = sync.OnceValue(func() error {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return errors.New("only root mounts a file system, on Linux")
	}
	dir, err := os.MkdirTemp("", "oncebus-disk-")
	if err != nil {
		return err
	}
	disk := &loopDisk{filepath.Join(dir, "image"), filepath.Join(dir, "disk")}
	if err := os.Mkdir(disk.dir, 0o700); err != nil {
		return err
	}
	if err := disk.mount(16 << 20); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return errors.Join(freezeDisk(disk.dir), thawDisk(disk.dir), disk.unmount(), os.RemoveAll(dir))
})

// moveToLoopDisk moves a directory to a new loop disk and mounts that disk at the directory's path. No process may
// write in the directory.
func moveToLoopDisk(dir string) (*loopDisk, error) {
	disk := &loopDisk{dir + ".image", dir}
	former := dir + ".former"
	if err := errors.Join(os.Rename(dir, former), os.Mkdir(dir, 0o700)); err != nil {
		return nil, err
	}
	if err := disk.mount(loopDiskBytes); err != nil {
		return nil, errors.Join(err, os.Remove(dir), os.Rename(former, dir))
	}
	if err := errors.Join(copySparse(former, dir), os.RemoveAll(former)); err != nil {
		return nil, errors.Join(err, disk.unmount())
	}
	return disk, nil
}

// moveBack moves the files back to the disk that had them before, and unmounts the loop disk.
func (d *loopDisk) moveBack() error {
	former := d.dir + ".former"
	if err := errors.Join(os.Mkdir(former, 0o700), copySparse(d.dir, former), d.unmount()); err != nil {
		return err
	}
	return errors.Join(os.Remove(d.dir), os.Remove(d.image), os.Rename(former, d.dir))
}

// mount makes the file system and mounts it.
func (d *loopDisk) mount(size int64) error {
	image, err := os.Create(d.image)
	if err != nil {
		return err
	}
	if err := errors.Join(image.Truncate(size), image.Close()); err != nil {
		return err
	}
	if err := tool("mkfs.ext4", "-q", "-F", d.image); err != nil {
		return err
	}
	// With discard, the image gives back the blocks of deleted files.
	if err := tool("mount", "-o", "loop,discard", d.image, d.dir); err != nil {
		return err
	}
	return os.Remove(filepath.Join(d.dir, "lost+found")) // Kafka would take the directory for a partition
}

func (d *loopDisk) unmount() error { return tool("umount", d.dir) }

// copySparse copies the files below a directory and keeps holes: Kafka preallocates its index files, which are nearly
// empty.
func copySparse(from, to string) error {
	return tool("cp", "-a", "--sparse=always", from+"/.", to)
}

// tool runs a program of the system.
func tool(name string, args ...string) error {
	// The command is not bound to a context, because an interrupted run must still unmount its disks.
	cmd := exec.Command(name, args...) //nolint:noctx // see above.
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %v: %w: %s", cmd.Args, err, bytes.TrimSpace(out))
	}
	return nil
}

// block makes all writes block for d.
func (d *loopDisk) block(ctx context.Context, took time.Duration) error {
	if err := freezeDisk(d.dir); err != nil {
		return err
	}
	return errors.Join(kafkatest.Pause(ctx, took), thawDisk(d.dir))
}
