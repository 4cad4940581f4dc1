package app

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/switchover"
)

// TestStaleRouterIsHeld: a process that has read that a switch has acted, and of the release, may
// route nothing to the partitions of before.
func TestStaleRouterIsHeld(t *testing.T) {
	h := NewHolds()
	for n, c := range []struct {
		phase switchover.Phase
		held  bool
	}{{switchover.Preparing, false}, {switchover.Aborted, false}, {switchover.Done, true}} {
		value, err := json.Marshal(Switch{Number: 2, Phase: c.phase})
		if err != nil {
			t.Fatal(err)
		}
		if changed, err := h.Take(&kgo.Record{Key: []byte(switchKey), Value: value, Offset: int64(n)}); !changed || err != nil {
			t.Fatalf("%v: changed %v, %v", c.phase, changed, err)
		}
		if held := h.For(1) != nil; held != c.held {
			t.Errorf("%v: generation 1 is held %v", c.phase, held)
		}
		if h.For(2) != nil || h.InForce() != nil {
			t.Errorf("%v: generation 2 is held", c.phase)
		}
	}
	value, err := json.Marshal(Switch{Number: 3, Base: 2, Phase: switchover.Preparing}) // the act of the second one was missed
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Take(&kgo.Record{Key: []byte(switchKey), Value: value, Offset: 3}); err != nil || h.For(1) == nil || h.For(2) != nil {
		t.Errorf("a further switch: %v, generation 1 is held %v, generation 2 %v", err, h.For(1), h.For(2))
	}
}

// TestGenerationOf: the name of a repartition topic says its generation, and no other topic has
// one.
func TestGenerationOf(t *testing.T) {
	for topic, want := range map[string]int64{
		"a-repartition": 1, "a-repartition-2": 2, "a-repartition-17": 17, "a-repartition-1": 0, "a-repartition-02": 0, "a-repartition2": 0,
		"a-repartition-changelog": 0, "a-repartition-2-changelog": 0, "a-repartition-": 0, "b-repartition": 0, "a": 0,
	} {
		if got := GenerationOf("a", topic); got != want {
			t.Errorf("%s has generation %d, expected %d", topic, got, want)
		}
		if want > 0 && RepartitionName("a", want) != topic {
			t.Errorf("generation %d has topic %s", want, RepartitionName("a", want))
		}
	}
}

// TestManifestRoutesInput: a topic that becomes routed keeps its number, is routed from the closed
// checkpoints on and, in a partition that was added since, from its start.
func TestManifestRoutesInput(t *testing.T) {
	m := &Manifest{Topics: []manifestTopic{{Name: "raw", Role: rolePrepartitioned, Partitions: 2, ChangelogID: "x", Starts: []int64{0, 5}}}}
	in := SwitchInput{"raw", 2}
	for _, wrong := range []SwitchInput{{"other", 2}, {"raw", 3}} {
		if err := m.routeInput(wrong, []int64{7, 9}); err == nil {
			t.Errorf("routed %+v", wrong)
		}
	}
	if err := m.routeInput(in, []int64{7}); err == nil {
		t.Error("routed with one start for two partitions")
	}
	if err := errors.Join(m.moveTo(manifestTopic{Name: "a-repartition-2", Partitions: 4}, nil), m.routeInput(in, []int64{7, 9})); err != nil {
		t.Fatal(err)
	}
	if on := m.generation(); on.number != 2 || len(on.forwarded) > 0 || !slices.Equal(on.moved, []string{"raw"}) {
		t.Errorf("generation %+v", on)
	}
	for partition, want := range []int64{7, 9, 0} {
		if start, pinned := m.Start("raw", [16]byte{}, int32(partition)); start != want || !pinned {
			t.Errorf("partition %d is routed from %d, pinned %v", partition, start, pinned)
		}
	}
	if m.TopicNumber("raw") != 0 || m.routeInput(in, []int64{7, 9}) == nil {
		t.Error("the topic has another number, or is routed twice")
	}
}

// TestManifestMoves: a move keeps the numbers of topics, forwards the former repartition topic
// from the closed checkpoints on, and puts the new one in force.
func TestManifestMoves(t *testing.T) {
	m := &Manifest{Topics: []manifestTopic{{Name: "raw", Role: roleRouted}, {Name: "a-repartition", Role: roleRepartition, Partitions: 2, Starts: []int64{0, 0}}}}
	if err := m.moveTo(manifestTopic{Name: "a-repartition-3", Partitions: 4}, []int64{7}); err == nil {
		t.Error("moved with one start for two partitions")
	}
	if err := m.moveTo(manifestTopic{Name: "a-repartition-3", Partitions: 4}, []int64{7, 9}); err != nil {
		t.Fatal(err)
	}
	on := m.generation()
	if on.number != 3 || !slices.Equal(on.forwarded, []string{"a-repartition"}) {
		t.Errorf("generation %+v", on)
	}
	if start, pinned := m.Start("a-repartition", [16]byte{}, 1); start != 9 || !pinned {
		t.Errorf("forwarded from %d, pinned %v", start, pinned)
	}
	if m.TopicNumber("a-repartition-3") != 2 || m.TopicNumber("a-repartition") != 1 {
		t.Error("topics have other numbers")
	}
}
