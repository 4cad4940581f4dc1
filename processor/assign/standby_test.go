package assign

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"oncebus/processor/app"
)

func TestStandbys(t *testing.T) {
	topics := []string{"routed"}
	member := func(name, process string, standby bool, position int64, warm []app.TaskID, owned ...int32) Member {
		return Member{Name: name, Process: process, Standby: standby, Topics: topics, Positions: at(position, warm...), Owned: tasks("routed", owned...)}
	}
	for name, c := range map[string]struct {
		members []Member
		want    map[string][]app.TaskID
	}{
		"one process":         {[]Member{member("a-0", "a", true, 0, nil, 0, 1), member("a-1", "a", true, 0, nil, 2)}, map[string][]app.TaskID{"a": nil}},
		"without the setting": {[]Member{member("a-0", "a", false, 0, nil, 0, 1), member("b-0", "b", false, 0, nil, 2)}, map[string][]app.TaskID{}},
		"each follows the other's": {
			[]Member{member("a-0", "a", true, 0, nil, 0, 1), member("b-0", "b", true, 0, nil, 2)},
			map[string][]app.TaskID{"a": tasks("routed", 2), "b": tasks("routed", 0, 1)},
		},
		"one of two has the setting": {
			[]Member{member("a-0", "a", true, 0, nil, 0, 1), member("b-0", "b", false, 0, nil, 2)},
			map[string][]app.TaskID{"a": tasks("routed", 2)},
		},
		"the warmest of three, by equal load": {
			[]Member{member("a-0", "a", true, 0, nil, 0, 1, 2, 3), member("b-0", "b", true, 9, tasks("routed", 1, 2)), member("c-0", "c", true, 7, tasks("routed", 2, 3))},
			map[string][]app.TaskID{"a": nil, "b": tasks("routed", 1, 2), "c": tasks("routed", 0, 3)},
		},
		"a member of an earlier build owns tasks": {
			[]Member{member("old", "", false, 0, nil, 0), member("b-0", "b", true, 0, nil, 1)},
			map[string][]app.TaskID{"b": tasks("routed", 0)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Standbys(c.members); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v\nwant %v", got, c.want)
			}
		})
	}
}

// TestNextOwnersAreTheOwners: if each process has the rows of the tasks that it will own by
// NextOwners, the assignment gives each task to a process that has its rows.
func TestNextOwnersAreTheOwners(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, partitions := drawGroup(t, 6, 6)
		assigned := Assign(members, partitions)
		for i := range members {
			members[i].Owned, members[i].Topics = assigned[i], []string{"routed", "keyed"}
			members[i].Process = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "process")
			members[i].Positions = nil
		}
		delete(partitions, "routed")
		partitions["next"] = rapid.Int32Range(0, 20).Draw(t, "next")
		owners := NextOwners(members, partitions, "next")
		for i := range members {
			if slices.Contains(members[i].Topics, "next") {
				t.Fatalf("%s was changed: %v", members[i].Name, members[i].Topics)
			}
			members[i].Topics = []string{"next", "keyed"}
			members[i].Positions = at(rapid.Int64Range(1, 9).Draw(t, "position"), owners[members[i].Process]...)
		}
		n := 0
		for i, tasks := range Assign(members, partitions) {
			for _, id := range tasks {
				if id.Topic != "next" {
					continue
				}
				n++
				if !slices.Contains(owners[members[i].Process], id) {
					t.Fatalf("%v is assigned to %s, the next owners are %v", id, members[i].Process, owners)
				}
			}
		}
		if len(members) > 0 && n != int(partitions["next"]) {
			t.Fatalf("%d of %d tasks have an owner", n, partitions["next"])
		}
	})
}

// TestStandbyIsAnotherProcess: no process follows its own task, each task has one standby
// if another process keeps standbys, and the loads are equal where they can be.
func TestStandbyIsAnotherProcess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, partitions := drawGroup(t, 6, 6)
		assigned := Assign(members, partitions)
		keeps := map[string]bool{}
		owner := map[app.TaskID]string{}
		for i := range members {
			members[i].Owned, members[i].Topics = assigned[i], []string{"routed", "keyed"}
			members[i].Process = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "process")
			members[i].Standby = members[i].Process != "c"
			keeps[members[i].Process] = members[i].Standby
			for _, id := range assigned[i] {
				owner[id] = members[i].Process
			}
		}
		standbys := Standbys(members)
		followed := map[app.TaskID]int{}
		for process, ids := range standbys {
			for _, id := range ids {
				followed[id]++
				if owner[id] == process || !keeps[process] {
					t.Fatalf("%s of %s follows its own %v", process, owner[id], id)
				}
			}
		}
		for id, process := range owner {
			want := 0
			if keeps["a"] && process != "a" || keeps["b"] && process != "b" {
				want = 1
			}
			if followed[id] != want {
				t.Fatalf("%v of %s has %d standbys, want %d", id, process, followed[id], want)
			}
		}
		slices.Reverse(members)
		if again := Standbys(members); !reflect.DeepEqual(again, standbys) {
			t.Fatalf("in another order %v in place of %v", again, standbys)
		}
	})
}
