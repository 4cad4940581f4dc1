package restore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// leases gives each task's directory to one owner of this process at a time. In a rebalance a worker
// may want to open a store that another worker has not closed yet. acquire makes it wait, because a
// store whose files are locked looks like a damaged store.
type leases struct {
	turn  chan struct{} // guards taken; not a mutex, because the simulation cannot see a goroutine that waits for one
	taken map[app.TaskID]*lease
}

// lease is the ownership of one directory.
type lease struct {
	released chan struct{}
	yield    func() // asks the owner to release the directory; nil if the owner keeps it until its end
}

func newLeases() *leases {
	d := &leases{turn: make(chan struct{}, 1), taken: map[app.TaskID]*lease{}}
	d.turn <- struct{}{}
	return d
}

// acquire waits until the task's directory is free, and takes it. If a standby has it, acquire asks the
// standby to release it.
func (d *leases) acquire(ctx context.Context, id app.TaskID) error {
	for {
		held := d.take(id, nil)
		if held == nil {
			return nil
		}
		if held.yield != nil {
			held.yield()
		}
		select {
		case <-held.released:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// acquireUnlessTaken takes the directory if it is free, and reports whether it did. yield is called
// when another owner waits for the directory; it must not block.
func (d *leases) acquireUnlessTaken(id app.TaskID, yield func()) bool {
	return d.take(id, yield) == nil
}

// take takes the directory, or returns the lease of its present owner.
func (d *leases) take(id app.TaskID, yield func()) *lease {
	<-d.turn
	defer func() { d.turn <- struct{}{} }()
	if held := d.taken[id]; held != nil {
		return held
	}
	d.taken[id] = &lease{make(chan struct{}), yield}
	return nil
}

// release frees the directory. The caller must have acquired it.
func (d *leases) release(id app.TaskID) {
	<-d.turn
	close(d.taken[id].released)
	delete(d.taken, id)
	d.turn <- struct{}{}
}

// lockName is the file in the state directory that a process locks.
const lockName = "LOCK"

func refuseLinkedLock(dir string) error {
	return kafka.OperatorErrorf("%s is a symbolic link: delete it", filepath.Join(dir, lockName))
}

// lockDir locks the state directory for this process. The kernel releases the lock when the process
// ends, also after a crash. Network file systems do not enforce such locks.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		return nil, refuseLinkedLock(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, kafka.OperatorErrorf("state directory %s is in use by another process (%w): give each its own ONCEBUS_STATE_DIR", dir, err)
	}
	return f, nil
}
