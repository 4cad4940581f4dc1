package processor

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
)

// A membership is a worker's assignment in its group. The client's callbacks change it.
// The worker and the board read it.
type membership struct {
	name, stage string

	mu     sync.Mutex
	topics []string // that the worker reads
	// rebalanced reports a revocation since the last End. The session then refuses
	// to commit, and calls no callback for a further revocation (A8).
	rebalanced bool
	// assignment is that of the last sync response; nil before the first one and
	// after the broker removed the member. placed has its partitions with a known
	// offset.
	assignment, placed map[app.TaskID]bool
	// joining says that the member has asked to join a generation of the group whose assignment it
	// does not have yet.
	joining bool
	// id is that of the member in the group when it last got partitions; "" without an assignment.
	id string
	// waits is what the worker waits for before it joins the group; "" if it does not wait.
	waits string
	// hangs are the partitions whose offset is part of a transaction that no coordinator ends, with
	// the reason. kept are those of them that the group assigned, and since when they are kept back. The client
	// would wait for their offsets before it fetches any other partition that it gets with them.
	hangs map[app.TaskID]string
	kept  map[app.TaskID]time.Time
	// asked says that a change of hangs needs another assignment.
	asked bool
	// removed is a topic in the sync response that the worker does not read; "" for
	// none. The assignment does not have it.
	removed string
}

// reset begins the membership of a new client.
func (m *membership) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rebalanced, m.joining, m.asked, m.kept = false, false, false, nil
	m.assignment, m.placed, m.removed, m.id = nil, map[app.TaskID]bool{}, "", ""
}

// setWaits publishes what the worker waits for before it joins the group; "" for nothing.
func (m *membership) setWaits(reason string) {
	m.mu.Lock()
	m.waits = reason
	m.mu.Unlock()
}

// waitsFor returns what the worker waits for; "" for nothing.
func (m *membership) waitsFor() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waits
}

// subscribe sets the topics that the worker reads.
func (m *membership) subscribe(topics []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.topics = topics
}

// subscribed returns the topics that the worker reads.
func (m *membership) subscribed() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.topics
}

// assign stores the whole assignment of a sync response, without topics that the worker
// does not read: the client skips them.
func (m *membership) assign(partitions map[string][]int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.assignment, m.removed, m.joining, m.asked = map[app.TaskID]bool{}, "", false, false
	for topic, ps := range partitions {
		if !slices.Contains(m.topics, topic) {
			m.removed = topic
			continue
		}
		for _, p := range ps {
			m.assignment[app.TaskID{Topic: topic, Partition: p}] = true
		}
	}
	maps.DeleteFunc(m.placed, func(id app.TaskID, _ bool) bool { return !m.assignment[id] })
}

// keepBack takes the partitions out of an assignment whose offset hangs. One that the worker has
// already goes on.
func (m *membership) keepBack(partitions map[string][]int32) map[string][]int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.kept
	m.kept = map[app.TaskID]time.Time{}
	left := map[string][]int32{}
	for topic, ps := range partitions {
		for _, p := range ps {
			id := app.TaskID{Topic: topic, Partition: p}
			if _, hangs := m.hangs[id]; hangs && !m.placed[id] {
				m.kept[id] = time.Now()
				if since, known := before[id]; known {
					m.kept[id] = since
				}
				continue
			}
			left[topic] = append(left[topic], p)
		}
	}
	return left
}

// setHangs sets the partitions whose offset hangs, and reports whether the member has to join its
// group again: it waits for the offset of one, or one that is kept back no longer hangs.
func (m *membership) setHangs(hangs map[app.TaskID]string) (joins bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hangs = hangs
	for id := range m.kept {
		_, still := hangs[id]
		joins = joins || !still
	}
	for id := range hangs {
		joins = joins || m.assignment[id] && !m.placed[id]
	}
	if m.asked {
		return false
	}
	m.asked = joins
	return joins
}

// waitingTasks returns the tasks that are kept back of a worker of the dedup stage.
func (m *membership) waitingTasks() (all []TaskState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stage != app.StageDedup {
		return nil
	}
	for id, since := range m.kept {
		all = append(all, TaskState{Task: id.String(), Worker: m.name, State: waiting.String(), Reason: m.hangs[id], Since: since, NextOffset: -1, Lag: -1, LagSeconds: -1, id: id, clock: &lagClock{lag: -1}})
	}
	return all
}

// join marks that the member asks to join the next generation of its group.
func (m *membership) join() {
	m.mu.Lock()
	m.joining = true
	m.mu.Unlock()
}

// joins reports whether the group may wait for this member: it has asked to join a generation, and
// has no assignment of it. If such a member stops without leaving the group, and leads it, then no
// member assigns the partitions of that generation. All other members wait until the rebalance timeout,
// and their transactions cannot commit offsets meanwhile.
func (m *membership) joins() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.joining
}

// end drops the assignment: the client leaves its group, or the broker removed it.
func (m *membership) end() {
	m.mu.Lock()
	m.assignment, m.kept, m.id = nil, nil, ""
	m.mu.Unlock()
}

// got notes the member that gets partitions.
func (m *membership) got(id string) {
	m.mu.Lock()
	m.id = id
	m.mu.Unlock()
}

// gotAs returns the id of the member that got the partitions; "" for none. The broker removes a member
// and gives another id to the same client, whose partitions others may have had meanwhile.
func (m *membership) gotAs() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

// place marks a partition whose offset is known.
func (m *membership) place(id app.TaskID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.assignment[id] {
		m.placed[id] = true
	}
}

// assigned returns the assignment; nil without one.
func (m *membership) assigned() map[app.TaskID]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.assignment)
}

// partitions returns how many partitions are assigned.
func (m *membership) partitions() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.assignment)
}

// removedTopic returns a topic that the group assigned to the worker although it does not
// read it; "" for none.
func (m *membership) removedTopic() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.removed
}

// unplaced returns a partition of the assignment whose offset is not known yet.
func (m *membership) unplaced() (app.TaskID, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.assignment {
		if !m.placed[id] {
			return id, true
		}
	}
	return app.TaskID{}, false
}

// leave removes a member from its group, so that the group assigns its partitions at once.
// kgo sends no such request for a static member. The request has the id that the broker gave
// the member: it does not remove another process that joined under the same name.
func (m *membership) leave(ctx context.Context, client *kgo.Client, group, memberID string) error {
	if memberID == "" {
		return nil // it never joined
	}
	member := kmsg.NewLeaveGroupRequestMember()
	member.MemberID, member.InstanceID = memberID, &m.name
	member.Reason = kmsg.StringPtr("the process stops")
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.Members = group, append(req.Members, member)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return err
	}
	for i := range resp.Members {
		if err := kerr.ErrorForCode(resp.Members[i].ErrorCode); err != nil {
			return err
		}
	}
	return nil
}

// setRebalanced marks a revocation or a loss of partitions.
func (m *membership) setRebalanced() {
	m.mu.Lock()
	m.rebalanced = true
	m.mu.Unlock()
}

// takeRebalanced returns rebalanced and resets it.
func (m *membership) takeRebalanced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	rebalanced := m.rebalanced
	m.rebalanced = false
	return rebalanced
}

// endBlockedMax is how long End may take while a rebalance callback waits for the lock.
// Without a deadlock it takes milliseconds.
const endBlockedMax = 2 * time.Second

// A rebalanceLock observes the rebalance lock of a client. The worker holds it from a
// poll that returned something to AllowRebalance, and rebalance callbacks wait for it.
type rebalanceLock struct {
	mu sync.Mutex
	// blocked says that a rebalance callback waits for the lock. onBlocked is
	// called then, while an End runs.
	blocked   bool
	onBlocked func()
}

// endContext returns the context of an End that tries to commit, and a function that
// releases it. End waits for a heartbeat, or for the callback onLost. After the broker
// removed this member there is no heartbeat, and onLost waits for the rebalance lock,
// which the worker holds. So if a callback waits for longer than endBlockedMax during
// End, the context is cancelled. The worker then replaces the client, as it must after
// a removal.
func (l *rebalanceLock) endContext() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onBlocked = func() { time.AfterFunc(endBlockedMax, cancel) }
	if l.blocked {
		l.onBlocked()
	}
	return ctx, func() {
		l.mu.Lock()
		l.onBlocked = nil
		l.mu.Unlock()
		cancel()
	}
}

// callbackBlocked runs when a rebalance callback begins to wait for the lock.
func (l *rebalanceLock) callbackBlocked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocked = true
	if l.onBlocked != nil {
		l.onBlocked()
	}
}

// released resets blocked. The worker calls it before AllowRebalance, and for a new client.
func (l *rebalanceLock) released() {
	l.mu.Lock()
	l.blocked = false
	l.mu.Unlock()
}
