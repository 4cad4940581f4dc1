package app

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/wire"
)

// markInterval is the time between two marks of a busy partition. If a process is killed and the group's offsets
// are lost, an operator can let the app continue from the last mark: then at most the records of one interval
// are routed again.
const markInterval = time.Minute

// Marks writes the marks of the partitions that a worker of the routing stage has. A mark is part of a routing
// transaction, so it is never ahead of the group's committed offset.
//
// Marks also writes the rows of held partitions. Such a row is part of a transaction that commits the
// partition's offset, so that the coordinator fences a worker that no longer owns the partition.
type Marks struct {
	rt    *App
	holds *Holds

	mu   sync.Mutex // because the group's goroutine calls Assign
	held map[TaskID]*heldMark
}

// heldMark is a partition that the worker has, with its newest mark.
type heldMark struct {
	position int64 // offset to route next, as of the last commit
	open     int64 // the same as of the open transaction; -1 if it has no records of the partition
	// epoch and openEpoch are the leader epochs of the records just before position and open; -1 if unknown.
	epoch, openEpoch int32
	mark             Mark
	pending          *Mark     // the mark in the open transaction; nil for none
	at               time.Time // when mark was written; zero if another client wrote it
	// held is the id of the hold whose row for the partition is committed, pendingHeld the id of the hold whose
	// row is in the open transaction. refuses is the id of the hold under which no record of the partition may
	// be routed.
	held, pendingHeld, refuses string
	// fronts are the highest event times of the routed records by namespace, as of the last commit; openFronts
	// include the open transaction. The event times of records that an earlier owner routed are unknown.
	fronts, openFronts []wire.Front
}

// NewMarks returns the Marks of a worker that has no partitions yet.
func NewMarks(rt *App, holds *Holds) *Marks {
	return &Marks{rt: rt, holds: holds, held: map[TaskID]*heldMark{}}
}

// Assign adds a partition: position is the offset to route next, epoch the leader epoch of the record before it
// (-1 if unknown), mark the partition's mark (nil for none). The caller must not add a partition that waits for
// an operator's decision, because the mark of such a partition must not change.
func (m *Marks) Assign(id TaskID, position int64, epoch int32, mark *Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := &heldMark{position: position, open: -1, epoch: epoch, openEpoch: -1}
	if mark != nil {
		h.mark = *mark
	}
	if hold := m.holds.InForce(); hold != nil {
		h.refuses = hold.ID // the earlier owner may have written the hold's row already
	}
	m.held[id] = h
}

// Of returns the offset to route next in a partition (-1 for an unknown one) and its mark (nil for none).
func (m *Marks) Of(id TaskID) (position int64, mark *Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.held[id]
	if h == nil {
		return -1, nil
	}
	if h.mark != (Mark{}) {
		newest := h.mark
		mark = &newest
	}
	return h.position, mark
}

// Revoke removes partitions that the worker has lost.
func (m *Marks) Revoke(gone map[string][]int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for topic, partitions := range gone {
		for _, p := range partitions {
			delete(m.held, TaskID{Topic: topic, Partition: p})
		}
	}
}

// IDs returns the partitions of the worker, in no order.
func (m *Marks) IDs() []TaskID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.held))
}

// Routed tells Marks that the open transaction contains the records of a partition up to last. fronts are the
// highest event times of these records.
func (m *Marks) Routed(id TaskID, last *kgo.Record, fronts []wire.Front) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.held[id]
	if h == nil {
		return
	}
	h.open, h.openEpoch = last.Offset+1, last.LeaderEpoch
	for _, f := range fronts {
		at := slices.IndexFunc(h.openFronts, func(o wire.Front) bool { return o.NamespaceID == f.NamespaceID })
		if at < 0 {
			h.openFronts = append(h.openFronts, f)
			continue
		}
		h.openFronts[at].At = max(h.openFronts[at].At, f.At)
	}
}

// Admits reports whether the records of a partition from an offset on may be routed: the worker has the
// partition, and has not routed these records yet.
func (m *Marks) Admits(id TaskID, offset int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.held[id]
	return h != nil && offset >= max(h.position, h.open)
}

// AddFronts adds the highest routed event times, as of the open transaction, to an observation of the inputs.
// It drops what was observed of partitions that the worker has lost since: their new owner may route the same
// records again.
func (m *Marks) AddFronts(inputs []wire.InputProgress) []wire.InputProgress {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := map[uint16]string{}
	for id := range m.held {
		names[m.rt.TopicNumbers[id.Topic]] = id.Topic
	}
	added := slices.Clone(inputs)
	for i := range added {
		in := &added[i]
		in.Read = slices.Clone(in.Read)
		in.Read = slices.DeleteFunc(in.Read, func(r wire.ReadProgress) bool {
			return m.held[TaskID{Topic: names[in.Topic], Partition: r.Partition}] == nil
		})
		for n := range in.Read {
			in.Read[n].Fronts = slices.Clone(m.held[TaskID{Topic: names[in.Topic], Partition: in.Read[n].Partition}].openFronts)
		}
	}
	return added
}

// Behind reports whether a clean stop would have marks to write, because positions are after their marks.
func (m *Marks) Behind() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, h := range m.held {
		if m.next(id, h, true) != h.mark {
			return true
		}
	}
	return false
}

// next returns the mark of a partition as it would be after the open transaction.
func (m *Marks) next(id TaskID, h *heldMark, clean bool) Mark {
	return Mark{TopicID: TopicIDText(m.rt.Topology.Topics[id.Topic].ID), Offset: max(h.position, h.open), Clean: clean}
}

// Write produces the marks that are due into the open transaction. If clean is true, it produces the mark of
// every partition whose mark is behind its position.
func (m *Marks) Write(send func(*kgo.Record), now time.Time, clean bool) {
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

// HoldsAll reports whether the hold's rows of all partitions are committed.
func (m *Marks) HoldsAll(hold *Hold) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.held {
		if h.held != hold.ID {
			return false
		}
	}
	return true
}

// WriteHeld produces the rows of held partitions that have no row yet into the open transaction. That
// transaction is the worker's last one until the hold is released.
func (m *Marks) WriteHeld(send func(*kgo.Record), hold *Hold) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, h := range m.held {
		if h.held != hold.ID {
			h.pendingHeld = hold.ID
			send(Held{hold.ID, max(h.position, h.open)}.Record(m.rt.Topology, id))
		}
	}
}

// Refuses reports whether the hold forbids to route any record of a partition.
func (m *Marks) Refuses(id TaskID, hold *Hold) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.held[id]
	return h != nil && h.refuses == hold.ID
}

// Positions returns the committed offsets to route next, for the partitions of a topic.
func (m *Marks) Positions(topic string) map[int32]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	positions := map[int32]int64{}
	for id, h := range m.held {
		if id.Topic == topic {
			positions[id.Partition] = h.position
		}
	}
	return positions
}

// Skipped tells Marks that the open transaction skips a batch of a partition, so that next is the next offset to
// route.
func (m *Marks) Skipped(id TaskID, next int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.held[id]; h != nil {
		h.open, h.openEpoch = next, -1
	}
}

// Offsets returns the committed positions of those of the partitions that the worker has.
func (m *Marks) Offsets(ids []TaskID) map[string]map[int32]kgo.EpochOffset {
	m.mu.Lock()
	defer m.mu.Unlock()
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for _, id := range ids {
		h := m.held[id]
		if h == nil {
			continue
		}
		if offsets[id.Topic] == nil {
			offsets[id.Topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[id.Topic][id.Partition] = kgo.EpochOffset{Epoch: h.epoch, Offset: h.position}
	}
	return offsets
}

// LimitOffsets removes from a commit the offsets of records that the client has polled but the open transaction
// has not routed.
func (m *Marks) LimitOffsets(req *kmsg.TxnOffsetCommitRequest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range req.Topics {
		t := &req.Topics[i]
		t.Partitions = slices.DeleteFunc(t.Partitions, func(p kmsg.TxnOffsetCommitRequestTopicPartition) bool {
			h := m.held[TaskID{Topic: t.Topic, Partition: p.Partition}]
			return h == nil || h.open < 0
		})
		for n := range t.Partitions {
			p := &t.Partitions[n]
			if h := m.held[TaskID{Topic: t.Topic, Partition: p.Partition}]; p.Offset > h.open {
				p.Offset, p.LeaderEpoch = h.open, h.openEpoch
			}
		}
	}
	req.Topics = slices.DeleteFunc(req.Topics, func(t kmsg.TxnOffsetCommitRequestTopic) bool { return len(t.Partitions) == 0 })
}

// AddOffsets adds the offsets of pending marks and hold rows to a commit that lacks these offsets. If progress
// is true, it also adds the offsets of outcomes topics. If the commit would still be empty, it adds the offset
// of any one partition, because the group cannot fence a commit without an offset (A7).
func (m *Marks) AddOffsets(req *kmsg.TxnOffsetCommitRequest, progress bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	present := map[TaskID]bool{}
	for _, topic := range req.Topics {
		for _, p := range topic.Partitions {
			present[TaskID{Topic: topic.Topic, Partition: p.Partition}] = true
		}
	}
	for id, h := range m.held {
		next := max(h.position, h.open)
		switch {
		case present[id]:
			continue
		case h.open >= 0: // records polled before an earlier transaction were routed in this one
		case h.pending != nil:
			next = h.pending.Offset
		case h.pendingHeld != "":
		case !progress || m.rt.Outcomes[id.Topic] == nil && len(req.Topics) > 0:
			continue
		}
		topic := kmsg.NewTxnOffsetCommitRequestTopic()
		topic.Topic, topic.TopicID = id.Topic, m.rt.Topology.Topics[id.Topic].ID
		partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		partition.Partition, partition.Offset, partition.LeaderEpoch = id.Partition, next, h.epoch
		if h.open > h.position {
			partition.LeaderEpoch = h.openEpoch
		}
		topic.Partitions = append(topic.Partitions, partition)
		req.Topics = append(req.Topics, topic)
	}
}

// End tells Marks how the open transaction ended.
func (m *Marks) End(committed bool, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.held {
		if committed {
			if h.open > h.position {
				h.position, h.epoch = h.open, h.openEpoch
			}
			h.fronts = append(h.fronts[:0], h.openFronts...)
			if h.pending != nil {
				h.mark, h.at = *h.pending, now
			}
			if h.pendingHeld != "" {
				h.held, h.refuses = h.pendingHeld, h.pendingHeld
			}
		}
		h.open, h.openEpoch, h.pending, h.pendingHeld = -1, -1, nil, ""
		h.openFronts = append(h.openFronts[:0], h.fronts...)
	}
}
