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

// A membership is what a worker knows about its membership in the consumer group, above all its assignment. The
// client's callbacks change it; the worker and the board read it.
type membership struct {
	name, stage string

	mu     sync.Mutex
	topics []string // that the worker reads
	// rebalanced reports that partitions were revoked or lost since the last End. franz-go's session then
	// refuses the next commit, and before that End it calls no callback for a further revocation (A8).
	rebalanced bool
	// assignment is the whole assignment in the last sync response; nil before the first response and after the
	// broker removed the member. placed are those partitions of the assignment whose offset is known.
	assignment, placed map[app.TaskID]bool
	// joining reports that the member has asked to join a generation of the group and does not have its
	// assignment in that generation yet.
	joining bool
	// id is the id that the member had in the group when it last got partitions; "" without an assignment.
	id string
	// waits says what the worker waits for before it joins the group; "" if it does not wait.
	waits string
	// hangs are the partitions whose group offset is part of a transaction that no coordinator ends, each with a
	// text that says so. kept are those of them that the group assigned to this member, each with the time since
	// when the worker keeps the partition back from its client. If the client got such a partition, it would
	// wait for the partition's offset before it fetched any other partition of the same assignment.
	hangs map[app.TaskID]string
	kept  map[app.TaskID]time.Time
	// asked reports that the worker was asked to join its group again because hangs has changed, and that it has
	// no new assignment yet.
	asked bool
	// removed is a topic that the sync response assigned although the worker does not read it; "" for none.
	// assignment leaves out such a topic.
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

// assign stores the whole assignment of a sync response, without topics that the worker does not read: the
// client skips these, too.
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

// keepBack takes the partitions with a hanging offset out of an assignment, and returns the rest. It leaves in a
// partition that the worker reads already, because the client knows the offset of that partition.
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

// setHangs stores the partitions with a hanging offset. It reports whether the member has to join its group
// again to get another assignment. That is so if the client waits for the offset of a hanging partition, or if a
// partition that was kept back no longer hangs.
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

// waitingTasks returns a TaskState for each task whose partition is kept back. Only the dedup stage has such
// tasks.
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

// join notes that the member has asked to join the next generation of its group.
func (m *membership) join() {
	m.mu.Lock()
	m.joining = true
	m.mu.Unlock()
}

// joins reports whether the group may be waiting for this member: the member has asked to join a generation, and
// does not have its assignment in that generation yet (A23). If such a member is the group's leader and stops
// without leaving the group, then nobody computes the assignment of that generation. All other members wait
// until the rebalance timeout, and their transactions cannot commit offsets meanwhile.
func (m *membership) joins() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.joining
}

// end drops the assignment, because the client leaves its group or the broker removed the member.
func (m *membership) end() {
	m.mu.Lock()
	m.assignment, m.kept, m.id = nil, nil, ""
	m.mu.Unlock()
}

// got stores the id of the member to which the group has assigned partitions.
func (m *membership) got(id string) {
	m.mu.Lock()
	m.id = id
	m.mu.Unlock()
}

// gotAs returns the member id under which the worker got its partitions; "" for none. If the client has another
// member id by now, the broker has removed the member and taken the same client back as a new member: other
// members may have had the partitions meanwhile.
func (m *membership) gotAs() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

// place notes that the offset of a partition is known.
func (m *membership) place(id app.TaskID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.assignment[id] {
		m.placed[id] = true
	}
}

// assigned returns a copy of the assignment; nil if the member has none.
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

// leave removes a member from its group, so that the group assigns the member's partitions to others at once.
// franz-go sends no such request for a static member. The request has the member id that the broker gave, and
// not only the static name: so it cannot remove another process that has joined under the same name since.
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

// setRebalanced notes that partitions were revoked or lost.
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

// endBlockedMax is how long End may take while a rebalance callback waits for the rebalance lock. If there is no
// deadlock, End takes milliseconds.
const endBlockedMax = 2 * time.Second

// A rebalanceLock observes the rebalance lock of a client, which franz-go does not expose. The worker holds
// that lock from a poll that returned something until AllowRebalance, and rebalance callbacks wait for it.
type rebalanceLock struct {
	mu sync.Mutex
	// blocked reports that a rebalance callback waits for the lock. While an End runs, onBlocked is set,
	// and is called when a callback begins to wait.
	blocked   bool
	onBlocked func()
}

// endContext returns the context for an End that tries to commit, and a function that releases the context. The
// context prevents a deadlock (A15). End waits for a heartbeat, or for the callback onLost to run. After the
// broker has removed this member there is no heartbeat, and onLost waits for the rebalance lock, which the
// worker holds during End: so both would wait for each other. Therefore the context is cancelled if a callback
// waits for longer than endBlockedMax during End. The worker then replaces the client, as it must after a
// removal anyway.
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

// released notes that no callback waits for the lock any more. The worker calls it before AllowRebalance,
// and for a new client.
func (l *rebalanceLock) released() {
	l.mu.Lock()
	l.blocked = false
	l.mu.Unlock()
}
