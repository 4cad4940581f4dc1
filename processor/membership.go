package processor

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
)

// A membership is a worker's assignment in its group. The client's callbacks change it.
// The worker and the board read it.
type membership struct {
	name, stage string
	topics      []string // that the worker reads

	mu sync.Mutex
	// rebalanced reports a revocation since the last End. The session then refuses
	// to commit, and calls no callback for a further revocation (A8).
	rebalanced bool
	// assignment is that of the last sync response; nil before the first one and
	// after the broker removed the member. placed has its partitions with a known
	// offset.
	assignment, placed map[app.TaskID]bool
	// removed is a topic in the sync response that the worker does not read; "" for
	// none. The assignment does not have it.
	removed string
}

// reset begins the membership of a new client.
func (m *membership) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rebalanced = false
	m.assignment, m.placed, m.removed = nil, map[app.TaskID]bool{}, ""
}

// assign stores the whole assignment of a sync response, without topics that the worker
// does not read: the client skips them.
func (m *membership) assign(partitions map[string][]int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.assignment, m.removed = map[app.TaskID]bool{}, ""
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

// end drops the assignment: the client leaves its group, or the broker removed it.
func (m *membership) end() {
	m.mu.Lock()
	m.assignment = nil
	m.mu.Unlock()
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
