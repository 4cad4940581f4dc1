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

// leases hands each task's directory to one owner of this process at a
// time: during a rebalance the next worker may want it before the last one
// has closed it, and must then wait instead of taking a locked store for a
// broken one. The zero value is not usable.
type leases struct {
	turn  chan struct{} // guards taken; a channel, so that simulations see who waits
	taken map[app.TaskID]chan struct{}
}

func newLeases() *leases {
	d := &leases{turn: make(chan struct{}, 1), taken: map[app.TaskID]chan struct{}{}}
	d.turn <- struct{}{}
	return d
}

// acquire waits until nobody has the task's directory.
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

// release gives the directory back. The caller must hold it.
func (d *leases) release(id app.TaskID) {
	<-d.turn
	close(d.taken[id])
	delete(d.taken, id)
	d.turn <- struct{}{}
}

// lockDir takes the state directory for this process. The lock is the
// kernel's and ends with the process, so nothing has to be cleaned up after a
// crash; it does not hold on network file systems.
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
