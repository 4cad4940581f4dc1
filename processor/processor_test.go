package processor

import (
	"context"
	"log/slog"
	"maps"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/restore"
)

// This file exports what the scenarios of package processor_test set and read inside a Processor. They see everything
// else from outside: topics, State, metrics.

const (
	StageRoute = app.StageRoute
	StageDedup = app.StageDedup
)

// States of a task, as State and the metrics print them.
const (
	TaskCreated   = created
	TaskRestoring = restoring
	TaskRunning   = running
	TaskBypassing = bypassing
	TaskWaiting   = waiting
)

// SetIdle sets the time without a transaction after which the workers release their memory, and the function that
// returns free memory to the system.
func (p *Processor) SetIdle(after time.Duration, free func()) {
	p.idle.after, p.idle.free = after, free
}

// SetFree sets the function that returns free memory to the system.
func (p *Processor) SetFree(free func()) { p.idle.free = free }

// SetOwnersInterval sets how often a stage looks for partitions without an owner.
func (p *Processor) SetOwnersInterval(d time.Duration) { p.ownersInterval = d }

// SetProgressInterval sets the time between two observations of outcomes and executors.
func (p *Processor) SetProgressInterval(d time.Duration) { p.progressInterval = d }

// SetInputsInterval sets the time between two looks of a worker at its inputs. A negative time means no looks.
func (p *Processor) SetInputsInterval(d time.Duration) { p.inputsInterval = d }

// PauseRouting keeps the routing stage from fetching records of a topic until end is called.
func (p *Processor) PauseRouting(topic string) (end func()) {
	for _, client := range p.routingClients() {
		client.PauseFetchTopics(topic)
	}
	return func() {
		for _, client := range p.routingClients() {
			client.ResumeFetchTopics(topic)
		}
	}
}

// routingClients returns the clients of the routing workers once all of these poll, because a worker that polls does
// not replace its client. It leaves out workers that have ended.
func (p *Processor) routingClients() (clients []*kgo.Client) {
	for _, w := range p.workers {
		if w.stage != StageRoute {
			continue
		}
		for range 1 << 20 {
			w.mu.Lock()
			polls := w.wakePoll != nil
			if polls {
				clients = append(clients, w.txns.client)
			}
			w.mu.Unlock()
			if polls {
				break
			}
			runtime.Gosched()
		}
	}
	return clients
}

// SetMachine replaces this machine's clocks.
func (p *Processor) SetMachine(read func() app.Instant) { p.clock.Machine = read }

// SetPatience sets how long a worker backs off after an error.
func (p *Processor) SetPatience(d time.Duration) { p.patience = d }

// SetStallAfter sets the time without progress after which a restore counts as stalled.
func (p *Processor) SetStallAfter(d time.Duration) { p.stallAfter = d }

// SetCounting sets a function that runs at each step of a recount.
func (p *Processor) SetCounting(step func(context.Context)) { p.counting = step }

func (p *Processor) App() *app.App           { return p.newest().rt }
func (p *Processor) HasApp() bool            { return p.newest() != nil }
func (p *Processor) Config() Config          { return p.cfg }
func (p *Processor) Stores() *restore.Stores { return p.stores }

// JudgeMetrics and the next three methods return metrics that a test reads by label.
func (p *Processor) JudgeMetrics() *judge.Metrics       { return p.judging }
func (p *Processor) RestoreMetrics() *restore.Metrics   { return p.restores }
func (p *Processor) Fenced() *prometheus.CounterVec     { return p.metrics.fenced }
func (p *Processor) Rejoined() *prometheus.CounterVec   { return p.metrics.rejoined }
func (p *Processor) Rebuilt() *prometheus.CounterVec    { return p.metrics.rebuilt }
func (p *Processor) Oversize() *prometheus.CounterVec   { return p.metrics.oversize }
func (p *Processor) PurgedRecords() prometheus.Counter  { return p.metrics.purged }
func (p *Processor) TrimmedRecords() prometheus.Counter { return p.metrics.trimmed }
func (p *Processor) Refused() *prometheus.CounterVec    { return p.metrics.refused }

// Transactions returns how many of a stage's transactions ended in each way.
func (p *Processor) Transactions(stage string) (committed, aborted, unknown prometheus.Counter) {
	of := func(outcome string) prometheus.Counter { return p.metrics.transactions.WithLabelValues(stage, outcome) }
	return of(outcomeCommitted), of(outcomeAborted), of(outcomeUnknown)
}

// ProcessedOffsets returns the offsets up to which the running tasks have processed the repartition topic.
func (p *Processor) ProcessedOffsets() kadm.Offsets { return p.processedOffsets() }

// HasPartition exports hasPartition.
var HasPartition = hasPartition

// PurgeInterval is the default that SetPurgeInterval replaces.
const PurgeInterval = purgeInterval

// SetPurgeInterval sets the time between two deletions of records.
func (p *Processor) SetPurgeInterval(d time.Duration) { p.purgeInterval = d }

// SetSweepAfter sets the length of a changelog from which its task sweeps, in offsets.
func (p *Processor) SetSweepAfter(n int64) { p.sweepAfter = n }

// SetManifestInterval sets the time between two readings of the manifest topic.
func (p *Processor) SetManifestInterval(d time.Duration) { p.manifestInterval = d }

// SetHangInterval sets the time between two looks for transactions that hang.
func (p *Processor) SetHangInterval(d time.Duration) { p.hangInterval = d }

// ReadManifestNow makes the processor read the manifest topic at once.
func (p *Processor) ReadManifestNow() { p.readManifestNow() }

// Floors returns the committed floors of the changelogs.
func (p *Processor) Floors() kadm.Offsets { return p.floors() }

// Purge deletes the repartition topic's records below the given offsets, as the purger does, and reports whether it
// has the right to.
func (p *Processor) Purge(ctx context.Context, offsets kadm.Offsets) bool {
	return newPurger(&p.shared).deleteBelow(ctx, offsets)
}

// FetchingPaused reports whether a worker of the stage has paused fetching because the disk fills up.
func (p *Processor) FetchingPaused(stage string) bool {
	for _, w := range p.workers {
		if w.stage == stage && w.fetchingPaused.Load() {
			return true
		}
	}
	return false
}

// Polling reports whether every worker polls, which means that it has counted the records of its last commit.
func (p *Processor) Polling() bool {
	for _, w := range p.workers {
		w.mu.Lock()
		polling := w.wakePoll != nil || len(w.member.subscribed()) == 0
		w.mu.Unlock()
		if !polling {
			return false
		}
	}
	return true
}

// Assigned returns the partitions that the group has assigned to the workers of a stage.
func (p *Processor) Assigned(stage string) map[app.TaskID]bool {
	all := map[app.TaskID]bool{}
	for _, w := range p.workers {
		if w.stage != stage {
			continue
		}
		for id := range w.member.assigned() {
			all[id] = true
		}
	}
	return all
}

// LoseInSilence takes an input from the routing workers as the group does in a second rebalance that franz-go's
// session does not report (A8).
func (p *Processor) LoseInSilence(id app.TaskID) {
	for _, w := range p.workers {
		w.member.mu.Lock()
		delete(w.member.assignment, id)
		delete(w.member.placed, id)
		w.member.rebalanced = w.member.rebalanced || w.stage == StageRoute
		w.member.mu.Unlock()
		w.wake()
	}
}

// NextRouted returns, for the inputs of a topic that the process has, the offsets to route next.
func (p *Processor) NextRouted(topic string) map[int32]int64 {
	next := map[int32]int64{}
	for _, w := range p.workers {
		if w.stage == StageRoute {
			maps.Copy(next, w.txns.marks.Positions(topic))
		}
	}
	return next
}

// ToOpen returns the tasks that were assigned to the process and that it has not opened yet.
func (p *Processor) ToOpen() (all []app.TaskID) {
	for _, w := range p.workers {
		if w.stage == StageDedup {
			all = append(all, w.txns.tasks.toOpen()...)
		}
	}
	return all
}

// SetOffsets makes the clients of a stage fetch from these offsets.
func (p *Processor) SetOffsets(stage string, offsets map[string]map[int32]kgo.EpochOffset) {
	for _, w := range p.workers {
		if w.stage == stage {
			w.txns.client.SetOffsets(offsets)
		}
	}
}

// AnnounceOversized makes a worker of the routing stage believe that its client has logged a batch of a partition as
// too large.
func (p *Processor) AnnounceOversized(id app.TaskID) {
	for _, w := range p.workers {
		if w.stage == app.StageRoute {
			w.txns.oversized.announce(id)
			return
		}
	}
}

// ID returns the task's id.
func (s TaskState) ID() app.TaskID { return s.id }

// NewOversizeLogger returns a logger that calls announced for each batch that
// a client logs as too large.
func NewOversizeLogger(to kgo.Logger, announced func(app.TaskID)) kgo.Logger {
	return oversizeLogger{to, announced}
}

// TestManyPartitionsAreNamedAtTheStart protects that the first start warns of many partitions: their number is fixed
// from then on, so an operator should learn early what it costs.
func TestManyPartitionsAreNamedAtTheStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		repartition, input int32
		warns              bool
	}{
		{12, 96, false},
		{partitionsMany, 0, false},
		{partitionsMany - 12, 13, true},
	} {
		var out strings.Builder
		warnOfPartitions(slog.New(slog.NewTextHandler(&out, nil)), &app.Topology{
			Repartition: "app-repartition", Prepartitioned: []string{"in"},
			Topics: map[string]app.Topic{"app-repartition": {Partitions: c.repartition}, "in": {Partitions: c.input}, "raw": {Partitions: 1000}},
		})
		if warns := strings.Contains(out.String(), "partitions=401 sensible=100"); warns != c.warns || strings.Count(out.String(), "\n") > 1 {
			t.Errorf("%d and %d partitions: logs %q", c.repartition, c.input, out.String())
		}
	}
}

// TestOpeningsAreFewerThanProcessors protects that tasks open fewer stores at a time than Go has processors. An
// opening that waits for the kernel keeps its processor, so hundreds of them would stop heartbeats and pings.
func TestOpeningsAreFewerThanProcessors(t *testing.T) {
	for processors, want := range map[int]int{1: 1, 2: 2, 3: 2, 4: 3, 64: 63} {
		if got := openingsMax(processors); got != want {
			t.Errorf("%d processors: %d openings, want %d", processors, got, want)
		}
	}
}
