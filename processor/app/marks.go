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

// markInterval is the time between two marks of a busy partition. After a kill and the
// loss of the group's offsets, an operator can go on at most this far back.
const markInterval = time.Minute

// Marks writes the marks of the partitions that a worker of the routing stage has. A mark
// is part of a routing transaction, so it is never ahead of the group's offset.
//
// It also writes the rows of held partitions. Such a row is part of a transaction with the
// partition's offset, so its writer owned the partition when it was committed.
type Marks struct {
	rt    *App
	holds *Holds

	mu   sync.Mutex // the group's goroutine calls assign
	held map[TaskID]*heldMark
}

// heldMark is a partition with its newest mark.
type heldMark struct {
	position int64 // offset to route next, as committed
	open     int64 // the same in the open transaction; -1 if it has no records
	// epoch and openEpoch are the leader epochs of the records before position and open;
	// -1 if unknown.
	epoch, openEpoch int32
	mark             Mark
	pending          *Mark     // in the open transaction
	at               time.Time // when mark was written; zero if not by this client
	// held is the id of the hold of which the row is committed, pendingHeld that of one in
	// the open transaction. refuses is the id of the hold under which no record may be routed.
	held, pendingHeld, refuses string
	// fronts are the highest event times of the routed records, openFronts those with the open
	// transaction. Those of an owner before are not known.
	fronts, openFronts []wire.Front
}

// NewMarks returns the marks of a worker without partitions.
func NewMarks(rt *App, holds *Holds) *Marks {
	return &Marks{rt: rt, holds: holds, held: map[TaskID]*heldMark{}}
}

// Assign adds a partition with the offset to route next, the leader epoch of the record
// before it, -1 if unknown, and its mark, nil for none. A partition that waits for a
// decision is not held: its mark must stay as it is.
func (m *Marks) Assign(id TaskID, position int64, epoch int32, mark *Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := &heldMark{position: position, open: -1, epoch: epoch, openEpoch: -1}
	if mark != nil {
		h.mark = *mark
	}
	if hold := m.holds.InForce(); hold != nil {
		h.refuses = hold.ID // the owner before may have written the row
	}
	m.held[id] = h
}

// Of returns the offset to route next in a partition and its mark, nil for none.
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

// Revoke removes partitions.
func (m *Marks) Revoke(gone map[string][]int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for topic, partitions := range gone {
		for _, p := range partitions {
			delete(m.held, TaskID{Topic: topic, Partition: p})
		}
	}
}

// IDs returns the partitions, in no order.
func (m *Marks) IDs() []TaskID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.held))
}

// Routed notes that the open transaction has the records of a partition up to last, with their
// highest event times.
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

// Admits reports whether the records of a partition from an offset on may be routed: the worker has
// the partition, and has not routed them.
func (m *Marks) Admits(id TaskID, offset int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.held[id]
	return h != nil && offset >= max(h.position, h.open)
}

// AddFronts adds to what was observed of inputs the highest event times of the partitions that
// the worker still has, as of the open transaction. It drops what was observed of others: their
// records may be routed again.
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

// Behind reports whether a clean stop has marks to write.
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

// next returns the mark of a partition as of the open transaction.
func (m *Marks) next(id TaskID, h *heldMark, clean bool) Mark {
	return Mark{TopicID: TopicIDText(m.rt.Topology.Topics[id.Topic].ID), Offset: max(h.position, h.open), Clean: clean}
}

// Write produces the marks that are due into the open transaction. With clean it
// produces those of all partitions whose mark is behind.
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

// HoldsAll reports whether the rows of all partitions are committed for a hold.
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

// WriteHeld produces the missing rows of held partitions into the open transaction, which is
// the last one until the hold is released.
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

// Refuses reports whether no record of a partition may be routed under a hold.
func (m *Marks) Refuses(id TaskID, hold *Hold) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.held[id]
	return h != nil && h.refuses == hold.ID
}

// Positions returns the offsets to route next in the partitions of a topic, as committed.
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

// Skipped notes that the open transaction goes on after a batch of a partition that it skips.
func (m *Marks) Skipped(id TaskID, next int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.held[id]; h != nil {
		h.open, h.openEpoch = next, -1
	}
}

// Offsets returns where those of some partitions go on that are held.
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

// LimitOffsets takes from a commit what the client has polled and the open transaction has not
// routed.
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

// AddOffsets adds the offsets of pending marks to a commit that lacks them, and with progress
// those of the outcomes topics, or of one partition if there is no other. A commit without an
// offset is not fenced by the group (A7).
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
		case h.open >= 0: // polled for an earlier transaction
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

// End concludes the open transaction.
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
