package assign

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"oncebus/processor/app"
)

func tasks(topic string, partitions ...int32) []app.TaskID {
	var ids []app.TaskID
	for _, p := range partitions {
		ids = append(ids, app.TaskID{Topic: topic, Partition: p})
	}
	return ids
}

func at(position int64, ids ...app.TaskID) map[app.TaskID]int64 {
	positions := map[app.TaskID]int64{}
	for _, id := range ids {
		positions[id] = position
	}
	return positions
}

func TestAssign(t *testing.T) {
	routed := []string{"routed"}
	for name, c := range map[string]struct {
		members    []Member
		partitions map[string]int32
		want       [][]app.TaskID
	}{
		"no member":    {nil, map[string]int32{"routed": 4}, nil},
		"no partition": {[]Member{{Name: "a", Topics: routed}}, nil, [][]app.TaskID{nil}},
		"first start": {
			[]Member{{Name: "a", Topics: routed}, {Name: "b", Topics: routed}},
			map[string]int32{"routed": 4},
			[][]app.TaskID{tasks("routed", 0, 2), tasks("routed", 1, 3)},
		},
		"owners keep": {
			[]Member{{Name: "a", Topics: routed, Owned: tasks("routed", 1, 3), Generation: 7}, {Name: "b", Topics: routed, Owned: tasks("routed", 0, 2), Generation: 7}},
			map[string]int32{"routed": 4},
			[][]app.TaskID{tasks("routed", 1, 3), tasks("routed", 0, 2)},
		},
		"an owner keeps also against a warmer member": {
			[]Member{{Name: "a", Topics: routed, Owned: tasks("routed", 0)}, {Name: "b", Topics: routed, Owned: tasks("routed", 1), Positions: at(900, tasks("routed", 0, 1)...)}},
			map[string]int32{"routed": 2},
			[][]app.TaskID{tasks("routed", 0), tasks("routed", 1)},
		},
		"a process that comes back gets what it had": {
			[]Member{
				{Name: "a", Topics: routed, Owned: tasks("routed", 0, 1, 2, 3, 4, 5), Positions: at(1000, tasks("routed", 0, 1, 2, 3, 4, 5)...)},
				{Name: "b", Topics: routed, Positions: at(900, tasks("routed", 1, 4, 5)...)},
			},
			map[string]int32{"routed": 6},
			[][]app.TaskID{tasks("routed", 0, 2, 3), tasks("routed", 1, 4, 5)},
		},
		"its workers share the directories": {
			[]Member{
				{Name: "a", Topics: routed, Owned: tasks("routed", 0, 1, 2, 3, 4, 5), Positions: at(1000, tasks("routed", 0, 1, 2, 3, 4, 5)...)},
				{Name: "b-0", Topics: routed, Positions: at(900, tasks("routed", 0, 1, 4, 5)...)},
				{Name: "b-1", Topics: routed, Positions: at(900, tasks("routed", 0, 1, 4, 5)...)},
			},
			map[string]int32{"routed": 6},
			[][]app.TaskID{tasks("routed", 2, 3), tasks("routed", 1, 4), tasks("routed", 0, 5)},
		},
		"the least lag wins": {
			[]Member{
				{Name: "a", Topics: routed, Positions: map[app.TaskID]int64{tasks("routed", 0)[0]: 10, tasks("routed", 1)[0]: 500}},
				{Name: "b", Topics: routed, Positions: map[app.TaskID]int64{tasks("routed", 0)[0]: 400, tasks("routed", 1)[0]: 490}},
			},
			map[string]int32{"routed": 2},
			[][]app.TaskID{tasks("routed", 1), tasks("routed", 0)},
		},
		"a chain: an unowned task goes to the warm one of two with room": {
			[]Member{{Name: "a", Topics: routed, Positions: at(5, tasks("routed", 0, 1)...)}, {Name: "b", Topics: routed, Positions: at(5, tasks("routed", 0)...)}},
			map[string]int32{"routed": 2},
			[][]app.TaskID{tasks("routed", 1), tasks("routed", 0)},
		},
		"an old claim loses": {
			[]Member{{Name: "a", Topics: routed, Owned: tasks("routed", 0, 1), Generation: 3}, {Name: "b", Topics: routed, Owned: tasks("routed", 1), Generation: 9}},
			map[string]int32{"routed": 2},
			[][]app.TaskID{tasks("routed", 0), tasks("routed", 1)},
		},
		"an old claim loses the only task of both": {
			[]Member{{Name: "a", Topics: routed, Owned: tasks("routed", 0), Generation: 3}, {Name: "b", Topics: routed, Owned: tasks("routed", 0), Generation: 9}},
			map[string]int32{"routed": 2},
			[][]app.TaskID{tasks("routed", 1), tasks("routed", 0)},
		},
		"a topic of a route that only new processes know": {
			[]Member{{Name: "new", Topics: []string{"routed", "keyed"}}, {Name: "old", Topics: routed, Owned: tasks("routed", 0, 1, 2, 3)}},
			map[string]int32{"routed": 4, "keyed": 2},
			[][]app.TaskID{append(tasks("keyed", 0, 1), tasks("routed", 3)...), tasks("routed", 0, 1, 2)},
		},
		"a topic that no member reads, an owner of a partition that is gone": {
			[]Member{{Name: "a", Topics: routed, Owned: tasks("routed", 0, 9)}},
			map[string]int32{"routed": 1, "other": 3},
			[][]app.TaskID{tasks("routed", 0)},
		},
		"the owner of a topic no longer reads it": {
			[]Member{{Name: "a", Topics: routed, Owned: tasks("keyed", 0)}, {Name: "b", Topics: []string{"routed", "keyed"}}},
			map[string]int32{"routed": 1, "keyed": 1},
			[][]app.TaskID{tasks("routed", 0), tasks("keyed", 0)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Assign(c.members, c.partitions)
			if len(c.members) > 0 && !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v\nwant %v", got, c.want)
			}
		})
	}
}

// TestLargeGroup: 1,000 tasks over 64 workers, of which four come back.
func TestLargeGroup(t *testing.T) {
	members := make([]Member, 64)
	for i := range members {
		members[i] = Member{Name: fmt.Sprintf("m-%02d", i), Topics: []string{"routed"}, Positions: map[app.TaskID]int64{}}
	}
	for p := range int32(1000) {
		id := app.TaskID{Topic: "routed", Partition: p}
		former, owner := int(p)%64, int(p)%60
		members[owner].Owned = append(members[owner].Owned, id)
		members[owner].Positions[id] = 1000
		members[former].Positions[id] = max(900, members[former].Positions[id])
	}
	assigned := Assign(members, map[string]int32{"routed": 1000})
	for _, ids := range assigned {
		if len(ids) != 15 && len(ids) != 16 {
			t.Errorf("a member gets %d tasks, want 15 or 16", len(ids))
		}
	}
	for i := range assigned[:60] {
		for _, id := range assigned[i] {
			if !slices.Contains(members[i].Owned, id) {
				t.Errorf("%v moves to %s, which had its share", id, members[i].Name)
			}
		}
	}
	for i := 60; i < 64; i++ {
		for _, id := range assigned[i] {
			if members[i].Positions[id] == 0 {
				t.Errorf("%v moves to %s, which has none of its rows", id, members[i].Name)
			}
		}
	}
}

// drawGroup draws members with any subscriptions, claims of any generation and positions.
func drawGroup(t *rapid.T, most int, partitionsMax int32) ([]Member, map[string]int32) {
	partitions := map[string]int32{}
	for _, topic := range []string{"routed", "keyed"} {
		partitions[topic] = rapid.Int32Range(0, partitionsMax).Draw(t, "partitions")
	}
	members := make([]Member, rapid.IntRange(1, most).Draw(t, "members"))
	for i := range members {
		m := Member{Name: fmt.Sprintf("m%d", i), Generation: rapid.Int32Range(-1, 3).Draw(t, "generation"), Positions: map[app.TaskID]int64{}}
		m.Topics = rapid.SampledFrom([][]string{{"routed", "keyed"}, {"routed", "keyed"}, {"routed"}, {"keyed"}}).Draw(t, "topics")
		for _, id := range append(tasksOf(partitions), app.TaskID{Topic: "gone", Partition: 1}) {
			if rapid.Bool().Draw(t, "claims") {
				m.Owned = append(m.Owned, id)
			}
			m.Positions[id] = rapid.SampledFrom([]int64{0, 0, 3, 7, 50, -5, 1<<63 - 1}).Draw(t, "position")
		}
		members[i] = m
	}
	return members, partitions
}

// checkOnce checks that each task has one member that reads its topic, if there is one.
func checkOnce(t *rapid.T, members []Member, partitions map[string]int32, assigned [][]app.TaskID) {
	seen := map[app.TaskID]bool{}
	for i, ids := range assigned {
		for _, id := range ids {
			if seen[id] || !slices.Contains(members[i].Topics, id.Topic) || id.Partition >= partitions[id.Topic] {
				t.Fatalf("%v must not go to %s", id, members[i].Name)
			}
			seen[id] = true
		}
	}
	for _, id := range tasksOf(partitions) {
		read := slices.ContainsFunc(members, func(m Member) bool { return slices.Contains(m.Topics, id.Topic) })
		if read != seen[id] {
			t.Fatalf("%v: read by a member %v, assigned %v", id, read, seen[id])
		}
	}
}

// costOf prices an assignment from the members alone.
func costOf(members []Member, assigned [][]app.TaskID) (c cost) {
	owners := ownersOf(members)
	for i, ids := range assigned {
		c.load += int64(len(ids) * len(ids))
		for _, id := range ids {
			owner, owned := owners[id]
			if !owned {
				owner = -1
			}
			costs, _ := costsOf(members, id, owner)
			c = c.plus(costs[i])
		}
	}
	return c
}

// TestAssignIsTheCheapest compares with all assignments there are.
func TestAssignIsTheCheapest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, partitions := drawGroup(t, 3, 3)
		assigned := Assign(members, partitions)
		checkOnce(t, members, partitions, assigned)
		got := costOf(members, assigned)
		ids := tasksOf(partitions)
		var try func(n int, so [][]app.TaskID)
		try = func(n int, so [][]app.TaskID) {
			if n == len(ids) {
				if c := costOf(members, so); c.less(got) {
					t.Fatalf("%v costs %+v, and %v costs %+v", assigned, got, so, c)
				}
				return
			}
			placed := false
			for i := range members {
				if slices.Contains(members[i].Topics, ids[n].Topic) {
					so[i] = append(so[i], ids[n])
					try(n+1, so)
					so[i] = so[i][:len(so[i])-1]
					placed = true
				}
			}
			if !placed {
				try(n+1, so)
			}
		}
		try(0, make([][]app.TaskID, len(members)))
	})
}

// TestAssignIsBalancedAndDeterministic draws larger groups.
func TestAssignIsBalancedAndDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, partitions := drawGroup(t, 6, 12)
		assigned := Assign(members, partitions)
		checkOnce(t, members, partitions, assigned)
		for a := range members {
			for b := range members {
				for _, id := range assigned[a] {
					if slices.Contains(members[b].Topics, id.Topic) && len(assigned[a]) > len(assigned[b])+1 {
						t.Fatalf("%s has %d tasks and %s %d, and %v could move", members[a].Name, len(assigned[a]), members[b].Name, len(assigned[b]), id)
					}
				}
			}
		}
		shuffled := make([]Member, len(members))
		places := rapid.Permutation(indices(len(members))).Draw(t, "order")
		for to, from := range places {
			shuffled[to] = members[from]
		}
		again := Assign(shuffled, partitions)
		for to, from := range places {
			if !slices.Equal(again[to], assigned[from]) {
				t.Fatalf("in another order %s gets %v in place of %v", shuffled[to].Name, again[to], assigned[from])
			}
		}
	})
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// TestAssignIsStable: what the group is assigned stays, in a rebalance that follows.
func TestAssignIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, partitions := drawGroup(t, 5, 8)
		assigned := Assign(members, partitions)
		for i := range members {
			members[i].Owned, members[i].Generation = assigned[i], 10
		}
		if again := Assign(members, partitions); !reflect.DeepEqual(again, assigned) {
			t.Fatalf("%v, then %v", assigned, again)
		}
	})
}

func BenchmarkAssign(b *testing.B) {
	members := make([]Member, 64)
	for i := range members {
		members[i] = Member{Name: fmt.Sprintf("m-%02d", i), Topics: []string{"routed"}, Positions: map[app.TaskID]int64{}}
		for p := range int32(1000) {
			members[i].Positions[app.TaskID{Topic: "routed", Partition: p}] = int64((int(p)*7919 + i*104729) % 100000)
		}
	}
	for b.Loop() {
		Assign(members, map[string]int32{"routed": 1000})
	}
}
