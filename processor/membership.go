package processor

import (
	"maps"
	"sync"

	"oncebus/processor/app"
)

// A membership is a worker's place in its group. The group's callbacks change it,
// the worker and the board read it.
type membership struct {
	name, stage string

	mu sync.Mutex
	// rebalanced says that partitions went since the last End: the session
	// then refuses to commit and passes no further revocation on (A8).
	rebalanced bool
	// assignment is what the group's last answer gave this member; nil before the
	// first one and after the broker removed the member. placed are those of it
	// whose offsets are known.
	assignment, placed map[app.TaskID]bool
}

// reset begins the membership of a new client.
func (m *membership) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rebalanced = false
	m.assignment, m.placed = nil, map[app.TaskID]bool{}
}

// assign stores an answer of the group, which is the whole assignment.
func (m *membership) assign(partitions map[string][]int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.assignment = map[app.TaskID]bool{}
	for topic, ps := range partitions {
		for _, p := range ps {
			m.assignment[app.TaskID{Topic: topic, Partition: p}] = true
		}
	}
	maps.DeleteFunc(m.placed, func(id app.TaskID, _ bool) bool { return !m.assignment[id] })
}

// end ends the membership.
func (m *membership) end() {
	m.mu.Lock()
	m.assignment = nil
	m.mu.Unlock()
}

// place notes that the offset of a partition is known.
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

// partitionsGone notes a revocation or a loss.
func (m *membership) partitionsGone() {
	m.mu.Lock()
	m.rebalanced = true
	m.mu.Unlock()
}

// takeRebalanced reports whether partitions went since the last End, once.
func (m *membership) takeRebalanced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	rebalanced := m.rebalanced
	m.rebalanced = false
	return rebalanced
}
