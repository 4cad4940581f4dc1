package app

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/wire"
)

// TestFrontsAreOfRoutedRecords: the highest event times of an aborted transaction are not said of
// a partition, nor those of a partition that the worker has lost.
func TestFrontsAreOfRoutedRecords(t *testing.T) {
	t.Parallel()
	m := NewMarks(&App{TopicNumbers: map[string]uint16{"raw": 3}}, NewHolds())
	id, other := TaskID{Topic: "raw", Partition: 0}, TaskID{Topic: "raw", Partition: 1}
	m.Assign(id, 0, -1, nil)
	m.Assign(other, 0, -1, nil)
	want := func(when string, fronts ...wire.Front) {
		t.Helper()
		said := m.AddFronts([]wire.InputProgress{{Topic: 3, Partitions: 2, Read: []wire.ReadProgress{{Partition: 0}, {Partition: 1}}}})
		if got := said[0].Read[0].Fronts; !slices.Equal(got, fronts) {
			t.Errorf("%s: %v, want %v", when, got, fronts)
		}
	}
	routed := func(next int64, fronts ...wire.Front) { m.Routed(id, &kgo.Record{Offset: next - 1}, fronts) }
	want("nothing routed")
	routed(5, wire.Front{NamespaceID: 1, At: 50}, wire.Front{NamespaceID: 2, At: 10})
	want("in the open transaction", wire.Front{NamespaceID: 1, At: 50}, wire.Front{NamespaceID: 2, At: 10})
	m.End(false, time.Time{})
	want("aborted")
	routed(5, wire.Front{NamespaceID: 1, At: 50})
	m.End(true, time.Time{})
	routed(7, wire.Front{NamespaceID: 1, At: 40})
	routed(9, wire.Front{NamespaceID: 1, At: 60})
	want("a second transaction", wire.Front{NamespaceID: 1, At: 60})
	m.End(false, time.Time{})
	want("the second one aborted", wire.Front{NamespaceID: 1, At: 50})
	m.Revoke(map[string][]int32{"raw": {1}})
	if said := m.AddFronts([]wire.InputProgress{{Topic: 3, Partitions: 2, Read: []wire.ReadProgress{{Partition: 0}, {Partition: 1}}}}); len(said[0].Read) != 1 {
		t.Errorf("%+v is said of a partition that was lost", said)
	}
}

// TestOffsetsAreOfRoutedRecords: a client has polled more than was routed, or what is routed now in
// an earlier transaction. A commit has the offsets after the routed records, and no others.
func TestOffsetsAreOfRoutedRecords(t *testing.T) {
	t.Parallel()
	m := NewMarks(&App{Topology: &Topology{}}, NewHolds())
	part := func(p int32) TaskID { return TaskID{Topic: "raw", Partition: p} }
	for p := range int32(4) {
		m.Assign(part(p), 10, 3, nil)
	}
	for p, next := range map[int32]int64{0: 15, 1: 20, 2: 12} {
		m.Routed(part(p), &kgo.Record{Offset: next - 1, LeaderEpoch: 7}, nil)
	}
	for id, admitted := range map[TaskID]bool{part(0): true, part(9): false} {
		if m.Admits(id, 15) != admitted || m.Admits(id, 14) {
			t.Errorf("%v: from 15 on %v, from 14 on %v, want %v and false", id, m.Admits(id, 15), m.Admits(id, 14), admitted)
		}
	}
	polled := kmsg.NewTxnOffsetCommitRequestTopic()
	polled.Topic = "raw"
	for p, next := range map[int32]int64{0: 30, 1: 20, 3: 40, 9: 50} {
		one := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		one.Partition, one.Offset, one.LeaderEpoch = p, next, 8
		polled.Partitions = append(polled.Partitions, one)
	}
	req := &kmsg.TxnOffsetCommitRequest{Topics: []kmsg.TxnOffsetCommitRequestTopic{polled}}
	m.LimitOffsets(req)
	m.AddOffsets(req, false)
	want := map[int32]kgo.EpochOffset{0: {Epoch: 7, Offset: 15}, 1: {Epoch: 8, Offset: 20}, 2: {Epoch: 7, Offset: 12}}
	got := map[int32]kgo.EpochOffset{}
	for _, topic := range req.Topics {
		for _, p := range topic.Partitions {
			got[p.Partition] = kgo.EpochOffset{Epoch: p.LeaderEpoch, Offset: p.Offset}
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("committed %v, want %v", got, want)
	}
	m.End(false, time.Time{})
	back := m.Offsets([]TaskID{part(0), part(9)})
	if len(back["raw"]) != 1 || back["raw"][0] != (kgo.EpochOffset{Epoch: 3, Offset: 10}) {
		t.Errorf("after an abort the client goes back to %v", back)
	}
}
