package restore

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/state"
)

// Stores has the local stores of one process: a directory for each task, the disk guard and the limit
// of rebuilds.
type Stores struct {
	dir, app string // the state directory, and the app's name below it
	Host     *state.Host
	leases   *leases
	tallies  tallies
	Disk     *DiskGuard
	rebuilds *rebuildGuard
}

// Config has the settings of a process's stores.
type Config struct {
	Dir, App        string // the state directory, and the id of the app
	State           state.Config
	Disk            Disk
	RebuildsPerHour int // limit for each task; 0 means no limit
	Openings        int // how many stores may open their files at the same time, at least 1
}

// NewStores returns the stores below cfg.Dir. It does not open any of them.
func NewStores(cfg Config, reg prometheus.Registerer, m *Metrics, log *slog.Logger) (*Stores, error) {
	host, err := state.NewHost(cfg.State, reg, log)
	if err != nil {
		return nil, err
	}
	host.LimitOpenings(cfg.Openings)
	return &Stores{
		dir: cfg.Dir, app: cfg.App, Host: host, leases: newLeases(),
		Disk:     newDiskGuard(cfg.Dir, cfg.Disk, host, m, log),
		rebuilds: &rebuildGuard{dir: filepath.Join(cfg.Dir, cfg.App), max: cfg.RebuildsPerHour},
	}, nil
}

// Lock creates and locks the state directory; unlock frees it. The error is an operator error if
// another process has the directory or if its disk is unsuitable.
func (s *Stores) Lock() (unlock func(), err error) {
	if err := s.makeDir(); err != nil {
		return nil, err
	}
	lock, err := lockDir(s.dir)
	if err != nil {
		return nil, err
	}
	unlock = func() { _ = lock.Close() } // the kernel frees the lock even after an error
	if err := checkTrust(s.dir, s.app, os.Geteuid()); err != nil {
		unlock()
		return nil, err
	}
	if err := s.Disk.checkStart(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// WatchDisk runs the disk guard until ctx is done.
func (s *Stores) WatchDisk(ctx context.Context) { s.Disk.run(ctx) }

// Paused returns why tasks are paused; nil if they are not.
func (s *Stores) Paused() error { return s.Disk.paused() }

// Release frees the directory of a closed store.
func (s *Stores) Release(id app.TaskID) { s.leases.release(id) }

// Close ends the background work. The caller has closed all stores.
func (s *Stores) Close() error { return s.Host.Close() }

// Source is what restores read from and report to. The restores of a process share it.
type Source struct {
	Client  *kgo.Client
	Leaders *kafka.Leaders // of Client
	Admin   *kadm.Client
	App     *app.App
	Stores  *Stores
	Metrics *Metrics
	// Instance is the name of this process in the refusals that it writes.
	Instance string
	// Explain stores for /readyz why a restoring task makes no progress; why "" removes the
	// explanation.
	Explain func(id app.TaskID, why string)
	// StallAfter is the constant of that name, or a shorter time in tests.
	StallAfter time.Duration
	// Counting is called at each step of a recount. It gets the context whose end stops the recount.
	Counting func(context.Context)

	offsets kafka.OffsetQuestions

	decisionsMu sync.Mutex // not locked while the manifest topic is read
	decisions   *app.Decisions
	decisionsAt time.Time // when the decisions were read, or when a new reading began
}

// Decisions returns the operators' decisions. It reads them at most once in DecisionPoll, because any
// number of partitions may wait for a decision.
func (s *Source) Decisions(ctx context.Context) (*app.Decisions, error) {
	s.decisionsMu.Lock()
	known := s.decisions
	fresh := known != nil && time.Since(s.decisionsAt) < DecisionPoll
	if !fresh {
		s.decisionsAt = time.Now()
	}
	s.decisionsMu.Unlock()
	if fresh {
		return known, nil
	}
	decisions, err := app.ReadDecisions(ctx, s.Client, s.App.Topology, nil)
	if err != nil {
		return nil, err
	}
	s.decisionsMu.Lock()
	s.decisions = decisions
	s.decisionsMu.Unlock()
	return decisions, nil
}

// DirOf returns the directory of a task's store.
func (s *Stores) DirOf(id app.TaskID) string {
	return filepath.Join(s.dir, s.app, id.Topic+"-"+strconv.Itoa(int(id.Partition)))
}

// RemoveFormer removes the directories of tasks whose keys a move has given to other partitions. It
// leaves every other directory, also the quarantine of such a task.
func (s *Stores) RemoveFormer(t *app.Topology, log *slog.Logger) {
	dir := filepath.Join(s.dir, s.app)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		at := strings.LastIndexByte(e.Name(), '-')
		if _, bad := strconv.ParseUint(e.Name()[at+1:], 10, 31); at < 0 || bad != nil || !e.IsDir() || !t.HadTasks(e.Name()[:at]) {
			continue
		}
		log.Info("removes the local state of a task whose keys were moved", "directory", e.Name())
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	if err != nil {
		log.Warn("remove the local state of tasks whose keys were moved: delete it yourself", "error", err)
	}
}

// Positions returns the changelog position of each task that has an open store or files in this process, whoever
// owns the task. The positions are hints: a restore reads the position from the store itself.
func (s *Stores) Positions(t *app.Topology) map[app.TaskID]int64 {
	positions, open := map[app.TaskID]int64{}, s.Host.Positions()
	for _, topic := range t.TaskTopics() {
		for p := range t.Topics[topic].Partitions {
			id := app.TaskID{Topic: topic, Partition: p}
			dir := s.DirOf(id)
			position, isOpen := open[dir]
			if !isOpen {
				position = s.Host.HintedPosition(dir)
			}
			if position > 0 {
				positions[id] = position
			}
		}
	}
	return positions
}

// makeDir creates the state directory, readable by its owner only.
func (s *Stores) makeDir() error {
	dir := filepath.Join(s.dir, s.app)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return refuseMake(err)
	}
	return nil
}

func refuseMake(err error) error {
	return kafka.OperatorErrorf("create the state directory: %w; set ONCEBUS_STATE_DIR to a local disk", err)
}
