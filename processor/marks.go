package processor

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
)

// markInterval is the time between two marks of a busy partition. After a kill and the
// loss of the group's offsets, an operator can go on at most this far back.
const markInterval = time.Minute

// marks writes the marks of the partitions that a worker of the routing stage has. A mark
// is part of a routing transaction, so it is never ahead of the group's offset.
type marks struct {
	rt *app.App

	mu   sync.Mutex // the group's goroutine calls assign
	held map[app.TaskID]*heldMark
}

// heldMark is a partition with its newest mark.
type heldMark struct {
	position int64 // offset to route next, as committed
	open     int64 // the same in the open transaction; -1 if it has no records
	mark     app.Mark
	pending  *app.Mark // in the open transaction
	at       time.Time // when mark was written; zero if not by this client
}

func newMarks(rt *app.App) *marks { return &marks{rt: rt, held: map[app.TaskID]*heldMark{}} }

// assign adds a partition with the offset to route next and its mark, nil for none. A
// partition that waits for a decision is not held: its mark must stay as it is.
func (m *marks) assign(id app.TaskID, position int64, mark *app.Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := &heldMark{position: position, open: -1}
	if mark != nil {
		h.mark = *mark
	}
	m.held[id] = h
}

// of returns the offset to route next in a partition and its mark, nil for none.
func (m *marks) of(id app.TaskID) (position int64, mark *app.Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.held[id]
	if h == nil {
		return -1, nil
	}
	if h.mark != (app.Mark{}) {
		newest := h.mark
		mark = &newest
	}
	return h.position, mark
}

// revoke removes partitions.
func (m *marks) revoke(gone map[string][]int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for topic, partitions := range gone {
		for _, p := range partitions {
			delete(m.held, app.TaskID{Topic: topic, Partition: p})
		}
	}
}

// routed notes that the open transaction has the records of a partition before an offset.
func (m *marks) routed(id app.TaskID, next int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.held[id]; h != nil {
		h.open = next
	}
}

// behind reports whether a clean stop has marks to write.
func (m *marks) behind() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, h := range m.held {
		if m.next(id, h, true) != h.mark {
			return true
		}
	}
	return false
}

// next returns the mark of a partition as of the open transaction.
func (m *marks) next(id app.TaskID, h *heldMark, clean bool) app.Mark {
	return app.Mark{TopicID: app.TopicIDText(m.rt.Topology.Topics[id.Topic].ID), Offset: max(h.position, h.open), Clean: clean}
}

// write produces the marks that are due into the open transaction. With clean it
// produces those of all partitions whose mark is behind.
func (m *marks) write(send func(*kgo.Record), now time.Time, clean bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, h := range m.held {
		next := m.next(id, h, clean)
		due := h.open >= 0 && (h.at.IsZero() || now.Sub(h.at) >= markInterval)
		if clean {
			due = next != h.mark
		}
		if due {
			h.pending = &next
			send(next.Record(m.rt.Topology, id))
		}
	}
}

// addOffsets adds the offsets of pending marks to a commit that lacks them. A commit
// without an offset is not fenced by the group (A7).
func (m *marks) addOffsets(req *kmsg.TxnOffsetCommitRequest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	present := map[app.TaskID]bool{}
	for _, topic := range req.Topics {
		for _, p := range topic.Partitions {
			present[app.TaskID{Topic: topic.Topic, Partition: p.Partition}] = true
		}
	}
	for id, h := range m.held {
		if h.pending == nil || present[id] {
			continue
		}
		topic := kmsg.NewTxnOffsetCommitRequestTopic()
		topic.Topic, topic.TopicID = id.Topic, m.rt.Topology.Topics[id.Topic].ID
		partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		partition.Partition, partition.Offset = id.Partition, h.pending.Offset
		topic.Partitions = append(topic.Partitions, partition)
		req.Topics = append(req.Topics, topic)
	}
}

// end concludes the open transaction.
func (m *marks) end(committed bool, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.held {
		if committed {
			h.position = max(h.position, h.open)
			if h.pending != nil {
				h.mark, h.at = *h.pending, now
			}
		}
		h.open, h.pending = -1, nil
	}
}
