package app

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

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
