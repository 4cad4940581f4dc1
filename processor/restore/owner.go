package restore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"oncebus/processor/kafka"
)

// CheckDir returns the error with which Stores.Lock would refuse a state directory, as far as CheckDir can find
// that without writing. It does not try to take the lock, because a running service holds the lock.
func CheckDir(dir, app string) error {
	if err := canMake(filepath.Join(dir, app)); err != nil {
		return refuseMake(err)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if info, err := os.Lstat(filepath.Join(dir, lockName)); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return refuseLinkedLock(dir)
	}
	return checkTrust(dir, app, os.Geteuid())
}

// canMake returns why os.MkdirAll would fail for dir; nil if it would not.
func canMake(dir string) error {
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir):
		if err := canMake(filepath.Dir(dir)); err != nil {
			return err
		}
		const writeAndSearch = 0o3
		if err := syscall.Access(filepath.Dir(dir), writeAndSearch); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &fs.PathError{Op: "mkdir", Path: dir, Err: err}
		}
		return nil
	case err != nil:
		return err
	case !info.IsDir():
		return &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
	}
	return nil
}

// checkTrust refuses a state directory that belongs to another user, or that contains a link. The owner of the
// files could change the rows that decide on events, and a link could make the process write to a place that
// somebody else chose. uid is the user of the process. checkTrust accepts files of root, because root can do all
// that anyway.
func checkTrust(dir, app string, uid int) error {
	info, err := os.Stat(dir) // the directory itself may be a link
	if err != nil {
		return fmt.Errorf("read the state directory: %w", err)
	}
	if err := checkOwner(dir, info, uid); err != nil {
		return err
	}
	return filepath.WalkDir(filepath.Join(dir, app), func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a start creates it later, and a running process removes files
		}
		if err != nil {
			return fmt.Errorf("read the state directory: %w", err)
		}
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the state directory: %w", err)
		}
		return checkOwner(path, info, uid)
	})
}

// checkOwner refuses a symbolic link, and a file of another user.
func checkOwner(path string, info fs.FileInfo, uid int) error {
	if info.Mode()&fs.ModeSymlink != 0 {
		return kafka.OperatorErrorf("%s is a symbolic link: replace it by the directory or file itself, or delete it: it is rebuilt; only ONCEBUS_STATE_DIR may be a link", path)
	}
	stat, known := info.Sys().(*syscall.Stat_t)
	if known && stat.Uid != 0 && int(stat.Uid) != uid {
		return kafka.OperatorErrorf("%s belongs to user %d, and the process is user %d: chown it, or delete it: it is rebuilt", path, stat.Uid, uid)
	}
	return nil
}
