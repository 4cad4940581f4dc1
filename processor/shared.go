package processor

import (
	"context"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/kafka"
	"oncebus/processor/restore"
)

// shared has the values that all workers of a process share. None of them changes
// after the first worker has started.
type shared struct {
	cfg         Config
	routes      *rules.Routes
	log         *slog.Logger
	baseOptions []kgo.Opt // of every client
	budget      *kafka.Budget
	admin       *kadm.Client
	rt          *app.App
	clock       *app.BrokerClock
	source      *restore.Source // of all restores
	stores      *restore.Stores
	idle        *idleMemory
	board       *board

	metrics  *metrics
	judging  *judge.Metrics
	restores *restore.Metrics

	patience time.Duration // with refused credentials, while running
	// stallAfter, ownersInterval and purgeInterval are the constants of those names;
	// tests set shorter times.
	stallAfter, ownersInterval, purgeInterval time.Duration
	sweepAfter                                int64 // judge.State.SweepAfter

	limits chan struct{} // has a value while a worker reads the topics' limits
}

// limitsChanged reads the topics' limits again after a broker refused a record that
// should fit. If an operator changed a setting, the next attempt emits a dead letter.
func (s *shared) limitsChanged(err error) {
	s.limits <- struct{}{}
	defer func() { <-s.limits }()
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.TransactionTimeout/3)
	defer cancel()
	if _, failed := s.rt.RereadLimits(ctx, s.admin, s.rt.Topology.Written()); failed != nil {
		s.log.Error("read topic settings failed after a broker refused a record", "error", failed)
		return
	}
	s.log.Warn("read topic settings again after a broker refused a record", "error", err)
}

// floors returns the floor of the changelog of each running task, as committed. Only a
// changelog that states its floor may lose the records below it.
func (s *shared) floors() kadm.Offsets {
	offsets := kadm.Offsets{}
	for _, t := range s.board.allTasks() {
		if t.floor > 0 {
			offsets.AddOffset(s.rt.ChangelogOf(t.id.Topic), t.id.Partition, t.floor, -1)
		}
	}
	return offsets
}

// processedOffsets returns how far each running task of the repartition topic
// has committed.
func (s *shared) processedOffsets() kadm.Offsets {
	offsets := kadm.Offsets{}
	for _, t := range s.board.allTasks() {
		if t.id.Topic == s.rt.Topology.Repartition && t.NextOffset > 0 {
			offsets.AddOffset(t.id.Topic, t.id.Partition, t.NextOffset, -1)
		}
	}
	return offsets
}
