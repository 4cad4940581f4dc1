package processor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/processor/app"
	"oncebus/state"
)

// State is the processor as /state shows it. Its field names are an interface.
type State struct {
	App      string        `json:"app"`
	Instance string        `json:"instance"`
	Ready    bool          `json:"ready"`
	Reason   string        `json:"reason,omitempty"` // why it is not ready
	BrokerUp bool          `json:"broker_up"`
	Workers  []WorkerState `json:"workers"`
	Tasks    []TaskState   `json:"tasks"`
}

// WorkerState is one worker's place in its group.
type WorkerState struct {
	Name   string `json:"name"`
	Stage  string `json:"stage"`
	Joined bool   `json:"joined"`
}

// TaskState is one task, at most a second old while it is busy.
type TaskState struct {
	Task       string    `json:"task"`
	Worker     string    `json:"worker"`
	State      string    `json:"state"`
	Reason     string    `json:"reason,omitempty"` // why it gets no further, if it does not
	Since      time.Time `json:"since"`            // of the state, or of the last commit
	NextOffset int64     `json:"next_offset"`      // of the input; -1 while not known
	Lag        int64     `json:"lag_records"`      // -1 while not known
	// Keys is what the task remembers, by namespace and status; absent while
	// it is being restored.
	Keys []app.KeyCount `json:"keys,omitempty"`
	// Store is the local state; absent while it is being restored.
	Store *state.Stats `json:"store,omitempty"`

	id app.TaskID
}

func (t *task) describe(worker string) TaskState {
	d := TaskState{Task: t.ID.String(), Worker: worker, State: t.state.String(), Since: t.since, NextOffset: -1, Lag: t.lag(), id: t.ID}
	if t.state == running {
		stats := t.Store.Stats()
		d.NextOffset, d.Store, d.Keys = t.Committed.Next, &stats, t.Counts.List(t.App, &t.Committed)
	}
	return d
}

// snapshot is the copy of what workers know that others may read.
type snapshot struct {
	mu    sync.Mutex
	tasks map[string][]TaskState // by worker
	stuck map[app.TaskID]string  // why a restoring task gets no further
}

// explain notes why a restoring task gets no further; "" takes it back.
func (s *snapshot) explain(id app.TaskID, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why == "" {
		delete(s.stuck, id)
		return
	}
	if s.stuck == nil {
		s.stuck = map[app.TaskID]string{}
	}
	s.stuck[id] = why
}

func (s *snapshot) setTasks(worker string, states []TaskState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tasks == nil {
		s.tasks = map[string][]TaskState{}
	}
	s.tasks[worker] = states
}

func (s *snapshot) allTasks() []TaskState {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []TaskState{}
	for _, states := range s.tasks {
		all = append(all, states...)
	}
	for i := range all {
		if all[i].State != running.String() {
			all[i].Reason = s.stuck[all[i].id]
		}
	}
	slices.SortFunc(all, func(a, b TaskState) int { return strings.Compare(a.Task, b.Task) })
	return all
}

// Ready returns nil if every worker is in its group and every task assigned
// to it runs, else the reason why not.
func (p *Processor) Ready() error {
	if !p.brokerUp.Load() {
		return errors.New("no broker answers")
	}
	p.startedMu.Lock()
	workers := p.workers
	p.startedMu.Unlock()
	if len(workers) == 0 {
		return errors.New("topics and manifest are not set up yet")
	}
	if err := p.stores.Paused(); err != nil {
		return err
	}
	runs := map[app.TaskID]bool{}
	for _, t := range p.snapshot.allTasks() {
		if t.State != running.String() {
			if t.Reason != "" {
				return fmt.Errorf("task %s is %s: %s", t.Task, t.State, t.Reason)
			}
			return fmt.Errorf("task %s is %s", t.Task, t.State)
		}
		runs[t.id] = true
	}
	for _, w := range workers {
		assignment := w.assigned()
		if assignment == nil {
			return fmt.Errorf("worker %s has no place in its group yet", w.name)
		}
		if id, waits := w.unplaced(); waits {
			return fmt.Errorf("worker %s has no offset for %v yet", w.name, id)
		}
		for id := range assignment {
			if w.stage == stageDedup && !runs[id] {
				return fmt.Errorf("task %v is %s", id, created)
			}
		}
	}
	return nil
}

// State returns a snapshot of the process for people and scripts.
func (p *Processor) State() State {
	s := State{App: p.cfg.AppID, Instance: p.cfg.InstanceID, Ready: true, BrokerUp: p.brokerUp.Load(), Workers: []WorkerState{}, Tasks: p.snapshot.allTasks()}
	if err := p.Ready(); err != nil {
		s.Ready, s.Reason = false, err.Error()
	}
	p.startedMu.Lock()
	defer p.startedMu.Unlock()
	for _, w := range p.workers {
		s.Workers = append(s.Workers, WorkerState{Name: w.name, Stage: w.stage, Joined: w.assigned() != nil})
	}
	return s
}

// processedOffsets returns how far each running task of the repartition topic
// has committed.
func (p *Processor) processedOffsets() kadm.Offsets {
	offsets := kadm.Offsets{}
	for _, t := range p.snapshot.allTasks() {
		if t.id.Topic == p.rt.Topology.Repartition && t.NextOffset > 0 {
			offsets.AddOffset(t.id.Topic, t.id.Partition, t.NextOffset, -1)
		}
	}
	return offsets
}
