package processor

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/kafka"
	"oncebus/processor/restore"
	"oncebus/processor/tracing"
)

// shared holds the values that all workers of a process share. No field is assigned after the first worker has
// started, except current and anyLiveAt.
type shared struct {
	cfg         Config
	log         *slog.Logger
	baseOptions []kgo.Opt          // of every client
	counted     map[string]kgo.Opt // the metrics hook of a client, by the client's kind
	budget      *kafka.Budget
	admin       *kadm.Client
	current     atomic.Pointer[edition]
	renewing    chan struct{} // has a value while a worker goes over to a new edition
	taken       takenSets
	twins       twins
	workersMax  int                        // number of workers, both stages together
	wakeAll     func()                     // wakes all workers
	newEdition  func(rt *app.App) *edition // with the clients of the process
	clock       *app.BrokerClock
	stores      *restore.Stores
	standbys    *restore.Standbys
	erasures    *erasures     // requests of operators that are not applied yet
	holds       *app.Holds    // as read from the manifest topic
	manifestDue chan struct{} // has a value if the manifest topic has to be read at once
	followDue   chan struct{} // has a value if the followed tasks have to be chosen at once
	idle        *idleMemory
	board       *board
	tracer      *tracing.Tracer // nil if no spans are exported

	metrics  *metrics
	judging  *judge.Metrics
	restores *restore.Metrics

	patience time.Duration // how long a running process bears refused credentials
	// These are the constants of the same names; tests set shorter times.
	stallAfter, ownersInterval, purgeInterval, progressInterval, manifestInterval, hangInterval time.Duration
	inputsInterval                                                                              time.Duration         // tests replace progress.InputsInterval; 0 to keep it
	sweepAfter                                                                                  int64                 // see judge.State.SweepAfter
	pacing                                                                                      pacing                // of the routing stage
	counting                                                                                    func(context.Context) // see restore.Source.Counting

	// anyLiveAt is the time at which a worker last polled records of a partition without a backlog, in Unix
	// nanoseconds. The pacers of all workers write and read it.
	anyLiveAt atomic.Int64

	alignment alignment // of the workers of the routing stage

	limits chan struct{} // has a value while a worker reads the topics' limits
}

// limitsChanged makes the worker read the topics' limits again after a broker refused a record that should fit:
// an operator may have changed a setting of the topic. If so, the next attempt emits a dead letter.
func (s *shared) limitsChanged(err error) {
	s.limits <- struct{}{}
	defer func() { <-s.limits }()
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.TransactionTimeout/3)
	defer cancel()
	rt := s.newest().rt
	if _, failed := rt.RereadLimits(ctx, s.admin, rt.Topology.Written()); failed != nil {
		s.log.Error("read topic settings failed after a broker refused a record", "error", failed)
		return
	}
	s.log.Warn("read topic settings again after a broker refused a record", "error", err)
}

// floors returns the floor of the changelog of each running task, as the task's last committed checkpoint states
// it. Records of a changelog may only be deleted below that floor.
func (s *shared) floors() kadm.Offsets {
	offsets, rt := kadm.Offsets{}, s.newest().rt
	for _, t := range s.board.allTasks() {
		if t.floor > 0 {
			offsets.AddOffset(rt.ChangelogOf(t.id.Topic), t.id.Partition, t.floor, -1)
		}
	}
	return offsets
}

// processedOffsets returns up to which offset each running task of the repartition topic has committed.
func (s *shared) processedOffsets() kadm.Offsets {
	offsets, rt := kadm.Offsets{}, s.newest().rt
	for _, t := range s.board.allTasks() {
		if t.id.Topic == rt.Topology.Repartition && t.NextOffset > 0 {
			offsets.AddOffset(t.id.Topic, t.id.Partition, t.NextOffset, -1)
		}
	}
	return offsets
}

// newestMax is how many offsets may follow the newest record of a partition: these are offsets of control
// records and of aborted transactions. A reader that is within newestMax of the end has read the newest record.
const newestMax = 64

// observeClock asks a broker for its time, and corrects the estimate of broker time.
func (s *shared) observeClock() error {
	on := s.newest()
	if err := on.rt.ObserveClock(context.Background(), on.source.Client, s.cfg.InstanceID); err != nil {
		return fmt.Errorf("observe broker time: %w", err)
	}
	return nil
}

// idleAfter is how long a worker must have had no transaction before it releases the memory that it reuses
// from one transaction to the next.
const idleAfter = 5 * time.Second

// idleMemory returns the free memory of a process to the system when all of its workers are idle. The Go runtime
// alone would keep the memory that a burst of events needed: after half a million events a process held 220 MiB
// and used 60 MiB.
type idleMemory struct {
	after  time.Duration
	active atomic.Int32 // workers that are not idle
	free   func()       // returns free memory to the system; tests replace it
}

func newIdleMemory() *idleMemory { return &idleMemory{after: idleAfter, free: debug.FreeOSMemory} }

// memoryUse tells idleMemory when one worker uses memory for transactions.
type memoryUse struct {
	shared *idleMemory
	active bool
	usedAt time.Time // when the worker last began a transaction or made a client
}

// use marks the worker as active: it has records, or a new client.
func (m *memoryUse) use() {
	if !m.active {
		m.active = true
		m.shared.active.Add(1)
	}
	m.usedAt = time.Now()
}

// releaseIfIdle calls release if the worker had no transaction for idleAfter. When the last active worker
// becomes idle, it also returns the free memory to the system.
func (m *memoryUse) releaseIfIdle(release func()) {
	if !m.active || time.Since(m.usedAt) < m.shared.after {
		return
	}
	m.active = false
	release()
	if m.shared.active.Add(-1) == 0 {
		m.shared.free()
	}
}
