package restore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// leases gives each task's directory to one owner of this process at a time. In a
// rebalance a worker may open a store that another has not closed yet. acquire makes
// it wait, because a locked store looks like a damaged one.
type leases struct {
	turn  chan struct{} // guards taken; a channel, because simulations cannot see that a goroutine waits for a mutex
	taken map[app.TaskID]chan struct{}
}

func newLeases() *leases {
	d := &leases{turn: make(chan struct{}, 1), taken: map[app.TaskID]chan struct{}{}}
	d.turn <- struct{}{}
	return d
}

// acquire waits until the task's directory is free, and takes it.
func (d *leases) acquire(ctx context.Context, id app.TaskID) error {
	for {
		<-d.turn
		released, held := d.taken[id]
		if !held {
			d.taken[id] = make(chan struct{})
			d.turn <- struct{}{}
			return nil
		}
		d.turn <- struct{}{}
		select {
		case <-released:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// release frees the directory. The caller must have acquired it.
func (d *leases) release(id app.TaskID) {
	<-d.turn
	close(d.taken[id])
	delete(d.taken, id)
	d.turn <- struct{}{}
}

// lockDir locks the state directory for this process. The kernel releases the lock
// when the process ends, also after a crash. Network file systems do not enforce
// it.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "LOCK"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, kafka.OperatorErrorf("state directory %s is in use by another process (%w): give each its own ONCEBUS_STATE_DIR", dir, err)
	}
	return f, nil
}
