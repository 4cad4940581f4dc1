package restore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"oncebus/processor/kafka"
	"oncebus/state"
)

const (
	// diskInterval is the time between two checks of the free space.
	diskInterval = time.Second
	// diskResume times the pause level must be free before tasks resume. Without this gap, a disk near the pause
	// level would pause and resume the tasks again and again.
	diskResume = 1.2
)

// DiskGuard watches the free space of the state directory's disk. Below the refuse level no process
// starts. Below the pause level tasks fetch nothing, begin no transaction and restore nothing, but stay
// members of the consumer group.
//
// The routing stage continues: it writes no local state, and it also routes for the tasks of other
// processes.
type DiskGuard struct {
	dir     string
	cfg     Disk
	Space   func(dir string) (state.Space, error) // state.DiskSpace; a test replaces it to fill the disk
	Network func(dir string) (string, error)      // state.NetworkFS
	host    *state.Host
	metrics *Metrics
	log     *slog.Logger

	mu          sync.Mutex
	reason      string        // why tasks are paused; "" while they are not
	resumed     chan struct{} // closed while not paused
	checkFailed bool          // the last check failed
}

func newDiskGuard(dir string, cfg Disk, host *state.Host, m *Metrics, log *slog.Logger) *DiskGuard {
	g := &DiskGuard{dir: dir, cfg: cfg, Space: state.DiskSpace, Network: state.NetworkFS, host: host, metrics: m, log: log, resumed: make(chan struct{})}
	close(g.resumed)
	return g
}

// level returns percent of the size of a file system in bytes, or least if that is more.
func level(s state.Space, percent int, least int64) uint64 {
	return max(uint64(float64(s.Total)*float64(percent)/100), uint64(least))
}

// Levels returns two levels of free space, in bytes: below start no process starts, below pause tasks
// pause.
func (d Disk) Levels(s state.Space) (start, pause uint64) {
	return level(s, d.StartMinFreePercent, d.MinFreeBytes/2), level(s, d.MinFreePercent, d.MinFreeBytes)
}

// checkStart returns an operator error on a network file system, and on a disk below the refuse level.
// Below the pause level the process starts with its tasks paused.
func (g *DiskGuard) checkStart() error {
	s, err := g.Space(g.dir)
	network, netErr := g.Network(g.dir)
	if err := errors.Join(err, netErr); err != nil {
		return kafka.OperatorErrorf("ONCEBUS_STATE_DIR: %w", err)
	}
	if network != "" {
		return kafka.OperatorErrorf("the state directory %s is on a network file system (%s), where locks and mapped files are not reliable: set ONCEBUS_STATE_DIR to a local disk; local state is rebuilt from the changelog", g.dir, network)
	}
	g.metrics.DiskFree.Set(float64(s.Free))
	if least, _ := g.cfg.Levels(s); s.Free < least {
		return kafka.OperatorErrorf("the disk of the state directory %s has %d bytes free (%.1f %%), a start needs %d: free space, or set ONCEBUS_STATE_DIR to another disk; local state is rebuilt from the changelog",
			g.dir, s.Free, s.FreePercent(), least)
	}
	g.checkSpace()
	return nil
}

// run checks the disk until ctx is done.
func (g *DiskGuard) run(ctx context.Context) {
	for kafka.Pause(ctx, diskInterval) == nil {
		g.checkSpace()
	}
}

func (g *DiskGuard) checkSpace() {
	s, err := g.Space(g.dir)
	if err != nil {
		if !g.checkFailed {
			g.log.Warn("free disk space unknown", "dir", g.dir, "error", err)
		}
		g.checkFailed = true
		return
	}
	g.checkFailed = false
	g.metrics.DiskFree.Set(float64(s.Free))
	_, least := g.cfg.Levels(s)
	g.metrics.diskPause.Set(float64(least))
	g.mu.Lock()
	defer g.mu.Unlock()
	switch paused := g.reason != ""; {
	case !paused && s.Free < least:
		g.reason = fmt.Sprintf("paused: the disk of the state directory %s has less than %d bytes free; tasks resume at %d",
			g.dir, least, uint64(diskResume*float64(least)))
		g.resumed = make(chan struct{})
		g.metrics.DiskPaused.Set(1)
		g.host.PauseMerges(true)
		g.log.Error("tasks paused: disk space is low", "dir", g.dir, "free_bytes", s.Free, "free_percent", s.FreePercent(), "pause_below", least)
	case paused && float64(s.Free) >= diskResume*float64(least):
		g.reason = ""
		close(g.resumed)
		g.metrics.DiskPaused.Set(0)
		g.host.PauseMerges(false)
		g.log.Info("tasks resumed: disk space is sufficient", "dir", g.dir, "free_bytes", s.Free)
	}
}

// paused returns why tasks are paused, nil if they are not.
func (g *DiskGuard) paused() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reason == "" {
		return nil
	}
	return errors.New(g.reason)
}

// awaitSpace waits while tasks are paused.
func (g *DiskGuard) awaitSpace(ctx context.Context) error {
	g.mu.Lock()
	resumed := g.resumed
	g.mu.Unlock()
	select {
	case <-resumed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Disk has the levels of DiskGuard. If all are zero, it never pauses.
type Disk struct {
	// MinFreePercent is the free space below which tasks pause, in percent of the disk as df counts it.
	// They resume when a fifth more than that is free (diskResume).
	MinFreePercent int `env:"MIN_FREE_PERCENT" envDefault:"10" help:"free disk space of the state directory below which tasks pause until there is more; 0 = never"`
	// StartMinFreePercent is the free space below which the process does not start, in percent. It is
	// at most MinFreePercent.
	StartMinFreePercent int `env:"START_MIN_FREE_PERCENT" envDefault:"5" help:"free disk space of the state directory below which the process does not start; 0 = never"`
	// MinFreeBytes is the least value of the pause level, in bytes, for small disks. Half of it is the least
	// value of the refuse level.
	MinFreeBytes int64 `env:"MIN_FREE_BYTES" envDefault:"67108864" help:"tasks also pause below so many free bytes; below half of it no process starts"`
}
