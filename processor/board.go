package processor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/restore"
	"oncebus/processor/security"
	"oncebus/processor/wire"
	"oncebus/state"
)

// State is the state of the processor as /state shows it. Its JSON field names are an interface.
type State struct {
	App      string    `json:"app"`
	Instance string    `json:"instance"`
	Ready    bool      `json:"ready"`
	Reason   string    `json:"reason,omitempty"` // why it is not ready
	BrokerUp bool      `json:"broker_up"`
	Routes   *SetState `json:"routes,omitempty"` // absent at level 1
	// RoutesOff are the routes that are switched off (enabled: false).
	RoutesOff []string `json:"routes_off,omitempty"`
	// Hold is the hold in force, as this process has read it; absent without one.
	Hold    *app.Hold     `json:"hold,omitempty"`
	Workers []WorkerState `json:"workers"`
	// Keys sums the key counts of the tasks, by namespace and status. OldestMS is the highest OldestMS of the
	// tasks.
	Keys  []app.KeyCount `json:"keys"`
	Tasks []TaskState    `json:"tasks"`
	// Standbys are the tasks of other processes that this one follows (ONCEBUS_STANDBY).
	Standbys []restore.StandbyState `json:"standbys,omitempty"`
	// TimeHeld are the namespaces whose stream time stays behind by more than the grace because of an input. The
	// values of a namespace are those of the task that is furthest behind.
	TimeHeld []app.HeldTime `json:"time_held,omitempty"`
	// Inputs are the partitions of the inputs that this process routes.
	Inputs []InputState `json:"inputs,omitempty"`
	// SchemaWaits are the partitions that wait until a schema was fetched from the registry, in order.
	SchemaWaits []SchemaWait `json:"schema_waits,omitempty"`
}

// SchemaWait is a partition that waits until the schema of a record was fetched from the registry. The process
// counts as ready nevertheless. To move the partition to another process would not help, because that process
// could not reach the registry either, and all other partitions of this process are processed.
type SchemaWait struct {
	Partition string `json:"partition"`
	Reason    string `json:"reason"` // names the record and the schema
}

// Brief returns the state without the key counts of each task. They are most of the state, because their
// number is the number of namespaces times the number of tasks.
func (s State) Brief() State {
	s.Tasks = slices.Clone(s.Tasks)
	for i := range s.Tasks {
		s.Tasks[i].Keys = nil
	}
	return s
}

// sumKeys sums the key counts of tasks.
func sumKeys(tasks []TaskState) []app.KeyCount {
	type kind struct{ namespace, status string }
	at := map[kind]int{}
	all := []app.KeyCount{}
	for _, t := range tasks {
		for _, k := range t.Keys {
			i, known := at[kind{k.Namespace, k.Status}]
			if !known {
				i = len(all)
				at[kind{k.Namespace, k.Status}] = i
				all = append(all, app.KeyCount{Namespace: k.Namespace, Routes: k.Routes, Status: k.Status})
			}
			all[i].Add(&k)
		}
	}
	return all
}

// WorkerState is one worker's membership of its group.
type WorkerState struct {
	Name   string `json:"name"`
	Stage  string `json:"stage"`
	Joined bool   `json:"joined"`
}

// TaskState is the state of one task, at most a second old while the task is busy.
type TaskState struct {
	Task       string    `json:"task"`
	Worker     string    `json:"worker"`
	State      string    `json:"state"`
	Reason     string    `json:"reason,omitempty"` // why it makes no progress; "" if it does
	Since      time.Time `json:"since"`            // time of the last change of state, or of the last commit
	NextOffset int64     `json:"next_offset"`      // offset in the input; -1 while not known
	Lag        int64     `json:"lag_records"`      // -1 while not known
	// LagSeconds is how long the oldest unprocessed record has waited, in broker time. It may be measured from
	// the append time of the record before that one. 0 without lag, -1 while not known.
	LagSeconds float64 `json:"lag_seconds"`
	// Keys counts the task's keys, by namespace and status; absent in a brief state, and
	// while the task restores.
	Keys []app.KeyCount `json:"keys,omitempty"`
	// Store is the local state; absent while the task restores.
	Store *state.Stats `json:"store,omitempty"`
	// Senders holds the duplicates by sender, for the metrics.
	Senders []wire.RouteSenders `json:"-"`
	// Tenants holds the sums of the tenants of each route, for the metrics.
	Tenants []app.TenantSums `json:"-"`
	// Shadows holds the counts of the shadows in force, for the metrics.
	Shadows []wire.ShadowCounts `json:"-"`

	held   []app.HeldTime // how far stream time is behind, by namespace, including namespaces that are up to date
	id     app.TaskID
	unread bool // the task waits for a schema
	clock  *lagClock
	floor  int64 // the changelog's floor in the committed checkpoint
}

// describe returns the state of the task for the board.
func (t *task) describe(worker string) TaskState {
	d := TaskState{Task: t.ID.String(), Worker: worker, State: t.state.String(), Since: t.since, NextOffset: -1, Lag: t.lag(), id: t.ID, clock: t.lagClock}
	switch {
	case t.unknown != nil:
		d.Reason = t.unknown.Error()
	case t.unread != nil:
		d.Reason, d.unread = t.unread.Error(), t.state == waiting
	case t.ahead():
		d.Reason = fmt.Sprintf("its checkpoint is of route set %d, and this process has route set %d: it waits until the process has taken the newer one", t.Committed.Set, t.App.Set)
	}
	if t.judges() {
		stats := t.Store.Stats()
		d.NextOffset, d.Store, d.Keys = t.Committed.Next, &stats, t.Counts.List(t.App, &t.Committed)
		d.floor = t.TrimTo()
		d.Senders, d.Tenants = t.Counts.ListSenders(), t.Counts.ListTenants()
		d.Shadows, d.held = t.Committed.Shadows, t.App.HeldTimes(&t.Committed, &t.Counts)
	}
	return d
}

// board holds what the workers publish about themselves. Ready, State and the metrics read it.
type board struct {
	brokerUp  atomic.Bool
	responded atomic.Int64 // Unix nanoseconds of the last response to any client of the process

	mu      sync.Mutex
	members []*membership           // one for each worker
	tasks   map[string][]TaskState  // by worker
	inputs  map[string][]InputState // by name of a worker of the routing stage
	stuck   reasons                 // why a task or a routed partition makes no progress, by task or partition
	unread  reasons                 // the schema for which a task or a routed partition waits
	// hanging names the hanging transactions that no process of the app can close; "" for none.
	hanging string
	// notTaken says why this process does not use the newest route set; "" if it uses that set.
	notTaken string
	// setup is the error that prevents the setup of topics and manifest; there is no worker before the setup has
	// succeeded. nil while no error is known.
	setup error
}

// reasons says of each waiting task or partition why it waits.
type reasons map[app.TaskID]string

// set stores the reason why a task or partition waits; "" removes the reason.
func (r reasons) set(id app.TaskID, why string) {
	if why == "" {
		delete(r, id)
		return
	}
	r[id] = why
}

func newBoard() *board {
	return &board{tasks: map[string][]TaskState{}, inputs: map[string][]InputState{}, stuck: reasons{}, unread: reasons{}}
}

func (b *board) setNotTaken(reason string) {
	b.mu.Lock()
	b.notTaken = reason
	b.mu.Unlock()
}

func (b *board) setHanging(what string) {
	b.mu.Lock()
	b.hanging = what
	b.mu.Unlock()
}

func (b *board) hangingTransactions() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hanging
}

func (b *board) setUpFails(err error) {
	b.mu.Lock()
	b.setup = err
	b.mu.Unlock()
}

// notSetUp returns an error that says that topics and manifest are not set up yet, and why.
func (b *board) notSetUp() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	const text = "topics and manifest are not set up yet"
	if b.setup == nil {
		return errors.New(text)
	}
	return fmt.Errorf("%s: %w", text, b.setup)
}

func (b *board) notTakenReason() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.notTaken
}

func (b *board) addMember(m *membership) {
	b.mu.Lock()
	b.members = append(b.members, m)
	b.mu.Unlock()
}

func (b *board) allMembers() []*membership {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.members)
}

// reason returns the reason that explain stored; "" for none.
func (b *board) reason(id app.TaskID) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stuck[id]
}

// explain stores why a task or a routed partition makes no progress; "" removes the reason.
func (b *board) explain(id app.TaskID, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stuck.set(id, why)
}

// replace stores the reason to, unless the present reason is neither from nor "". Any other reason stays.
func (b *board) replace(id app.TaskID, from, to string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.stuck[id]; now == "" || now == from {
		b.stuck.set(id, to)
	}
}

// awaitsSchema stores for which schema a partition waits; "" for none.
func (b *board) awaitsSchema(id app.TaskID, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unread.set(id, why)
}

func (b *board) schemaWaits() (all []SchemaWait) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, why := range b.unread {
		all = append(all, SchemaWait{id.String(), why})
	}
	slices.SortFunc(all, func(a, b SchemaWait) int { return strings.Compare(a.Partition, b.Partition) })
	return all
}

func (b *board) setTasks(worker string, states []TaskState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tasks[worker] = states
}

// allTasks returns the states of all tasks, sorted by task.
func (b *board) allTasks() []TaskState {
	all := b.unsortedTasks()
	slices.SortFunc(all, func(a, b TaskState) int { return strings.Compare(a.Task, b.Task) })
	return all
}

func (b *board) unsortedTasks() []TaskState {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := []TaskState{}
	for _, states := range b.tasks {
		all = append(all, states...)
	}
	for _, m := range b.members {
		all = append(all, m.waitingTasks()...)
	}
	for i := range all {
		if all[i].Reason == "" {
			all[i].Reason = b.stuck[all[i].id]
		}
	}
	return all
}

// ready returns nil if every worker is a member of its group and every task assigned to it runs; otherwise it
// returns the reason. paused is the reason why fetching is paused, nil if fetching is not paused.
func (b *board) ready(paused error) error {
	if !b.brokerUp.Load() {
		return errors.New("no broker responds")
	}
	members := b.allMembers()
	if len(members) == 0 {
		return b.notSetUp()
	}
	if paused != nil {
		return paused
	}
	if what := b.hangingTransactions(); what != "" {
		return errors.New(what)
	}
	all := b.unsortedTasks() // unsorted, because a start with many tasks polls ready often
	runs := runningTasks(all)
	if len(runs) < len(all) {
		return notRunning(all, len(all)-len(runs))
	}
	for _, m := range members {
		if err := b.memberReady(m, runs); err != nil {
			return err
		}
	}
	return unsettled(members)
}

// unsettled returns an error if a worker has no partition while another worker of its stage and process has
// several. In that case the group is about to move some of these partitions to the first worker, as soon as the
// second one has revoked them. The events of those partitions wait until then.
func unsettled(members []*membership) error {
	for _, m := range members {
		if m.partitions() > 0 {
			continue
		}
		for _, other := range members {
			if n := other.partitions(); n > 1 && other.stage == m.stage {
				return fmt.Errorf("worker %s has no partition until worker %s gives up some of its %d", m.name, other.name, n)
			}
		}
	}
	return nil
}

// runningTasks returns the tasks that run.
func runningTasks(all []TaskState) map[app.TaskID]bool {
	runs := map[app.TaskID]bool{}
	for i := range all {
		if all[i].runs() {
			runs[all[i].id] = true
		}
	}
	return runs
}

// runs reports whether the process has done its part for a task: the task runs, or waits only for a schema.
func (s *TaskState) runs() bool { return s.State == running.String() || s.unread }

// isReportedBefore orders the tasks that do not run: tasks with a reason come first, and otherwise the task id
// decides.
func (s *TaskState) isReportedBefore(other *TaskState) bool {
	if (s.Reason == "") != (other.Reason == "") {
		return s.Reason != ""
	}
	return s.Task < other.Task
}

// notRunning describes the first of the n tasks that do not run, and says how many there are if there are
// several.
func notRunning(all []TaskState, n int) error {
	var first *TaskState
	for i := range all {
		t := &all[i]
		if !t.runs() && (first == nil || t.isReportedBefore(first)) {
			first = t
		}
	}
	text := fmt.Sprintf("task %s is %s", first.Task, first.State)
	if n > 1 {
		text += fmt.Sprintf(", one of %d that do not run, of %d", n, len(all))
	}
	if first.Reason != "" {
		text += ": " + first.Reason
	}
	return errors.New(text)
}

// OnBrokerRead implements kgo.HookBrokerRead: it notes a response to a client of the process.
func (b *board) OnBrokerRead(_ kgo.BrokerMetadata, _ int16, _ int, _, _ time.Duration, err error) {
	if err == nil {
		b.responded.Store(time.Now().UnixNano())
	}
}

// brokerResponds reports whether a broker responds. The caller has sent a ping at began, which ended with the
// error ping, nil for a response. If the ping failed, but another client of the process has got a response since
// began, then the brokers or this process are only busy, and a broker does respond. A ping that failed because
// the brokers refused the credentials never counts as busy.
func (b *board) brokerResponds(ping error, began time.Time) bool {
	return ping == nil || !security.CredentialsRefused(ping) && b.responded.Load() >= began.UnixNano()
}

// memberReady returns why a worker is not ready; nil if it is. runs holds the tasks that run.
func (b *board) memberReady(m *membership, runs map[app.TaskID]bool) error {
	if len(m.subscribed()) == 0 {
		return nil // no route needs this stage
	}
	if why := m.waitsFor(); why != "" {
		return fmt.Errorf("worker %s waits until its last transaction is closed: %s", m.name, why)
	}
	assignment := m.assigned()
	if assignment == nil {
		return fmt.Errorf("worker %s is not in its group yet", m.name)
	}
	for id := range assignment {
		if why := b.reason(id); why != "" {
			return errors.New(why)
		}
	}
	if id, unplaced := m.unplaced(); unplaced {
		return fmt.Errorf("worker %s has no offset for %v yet", m.name, id)
	}
	for id := range assignment {
		if m.stage == app.StageDedup && !runs[id] {
			return fmt.Errorf("task %v is %s", id, created)
		}
	}
	return nil
}

// workers returns the state of every worker.
func (b *board) workers() []WorkerState {
	workers := []WorkerState{}
	for _, m := range b.allMembers() {
		if len(m.subscribed()) == 0 {
			continue
		}
		workers = append(workers, WorkerState{Name: m.name, Stage: m.stage, Joined: m.assigned() != nil})
	}
	return workers
}
