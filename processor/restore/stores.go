package restore

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/state"
)

// Stores are the local stores of one process: a directory for each task, and
// what bounds the disk and the rebuilds.
type Stores struct {
	dir, app string // the state directory, and the app's name below it
	Host     *state.Host
	leases   *leases
	Disk     *DiskGuard
	rebuilds *rebuildGuard
}

// Config is what the stores of a process are told from outside.
type Config struct {
	Dir, App        string
	State           state.Config
	Disk            Disk
	RebuildsPerHour int
}

func NewStores(cfg Config, reg prometheus.Registerer, m *Metrics, log *slog.Logger) (*Stores, error) {
	host, err := state.NewHost(cfg.State, reg, log)
	if err != nil {
		return nil, err
	}
	return &Stores{
		dir: cfg.Dir, app: cfg.App, Host: host, leases: newLeases(),
		Disk:     newDiskGuard(cfg.Dir, cfg.Disk, host, m, log),
		rebuilds: &rebuildGuard{dir: filepath.Join(cfg.Dir, cfg.App), max: cfg.RebuildsPerHour},
	}, nil
}

// Lock takes the state directory for this process, until the returned function
// is called. A disk that is nearly full is refused.
func (s *Stores) Lock() (unlock func(), err error) {
	if err := s.makeDir(); err != nil {
		return nil, err
	}
	lock, err := lockDir(s.dir)
	if err != nil {
		return nil, err
	}
	unlock = func() { _ = lock.Close() } // the kernel lets go in any case
	if err := s.Disk.checkStart(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// WatchDisk looks at the disk until ctx is done.
func (s *Stores) WatchDisk(ctx context.Context) { s.Disk.run(ctx) }

// Paused returns why tasks may not use their stores now, nil if they may.
func (s *Stores) Paused() error { return s.Disk.paused() }

// Release gives the directory of a closed store back.
func (s *Stores) Release(id app.TaskID) { s.leases.release(id) }

// Close ends the work in the background. All stores are closed.
func (s *Stores) Close() error { return s.Host.Close() }

// Source is where restores read, and what they report to.
type Source struct {
	Client  *kgo.Client
	Admin   *kadm.Client
	App     *app.App
	Stores  *Stores
	Metrics *Metrics
	// Explain notes why a restoring task gets no further; "" takes it back.
	Explain func(id app.TaskID, why string)
	// StallAfter is how long a restore may read nothing before it says why.
	StallAfter time.Duration
}

func (s *Stores) DirOf(id app.TaskID) string {
	return filepath.Join(s.dir, s.app, id.Topic+"-"+strconv.Itoa(int(id.Partition)))
}

// makeStateDir creates the state directory, readable for its owner only.
func (s *Stores) makeDir() error {
	dir := filepath.Join(s.dir, s.app)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return kafka.OperatorErrorf("the state directory cannot be made: %w; set ONCEBUS_STATE_DIR to a local disk", err)
	}
	return nil
}
