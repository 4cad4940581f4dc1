//go:build unix

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestHierarchyOfMemory(t *testing.T) {
	const (
		cpuV1    = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
		memoryV1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
		unified  = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
		docker   = "35 31 0:32 /docker/7 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	)
	for _, c := range []struct {
		name, mounts, cgroup string
		want                 hierarchy
		missing              bool
	}{
		{"version 1", cpuV1 + memoryV1, "8:pids:/\n4:memory:/a/b\n", hierarchy{"/sys/fs/cgroup/memory", "/", "/a/b", false}, false},
		{"version 2", unified, "0::/user.slice\n", hierarchy{"/sys/fs/cgroup/unified", "/", "/user.slice", true}, false},
		{"both", unified + memoryV1, "4:memory:/a\n0::/\n", hierarchy{"/sys/fs/cgroup/memory", "/", "/a", false}, false},
		{"container", docker, "4:memory:/docker/7\n", hierarchy{"/sys/fs/cgroup/memory", "/docker/7", "/docker/7", false}, false},
		{"none", cpuV1, "1:cpu:/\n", hierarchy{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, ok := parseHierarchy(c.mounts, c.cgroup)
			if ok == c.missing || ok && h != c.want {
				t.Errorf("it is %+v, %v", h, ok)
			}
		})
	}
	if dir, err := (hierarchy{"/m", "/docker/7", "/docker/7", false}).parent(); dir != "/m" || err != nil {
		t.Errorf("in a container the parent is %s (%v)", dir, err)
	}
}

// TestParentPassesMemoryOn: in version 2 the parent is the nearest cgroup from which children
// get the memory controller.
func TestParentPassesMemoryOn(t *testing.T) {
	mount := t.TempDir()
	write(t, filepath.Join(mount, "user", "session"), "cgroup.subtree_control", "")
	write(t, filepath.Join(mount, "user"), "cgroup.subtree_control", "cpu memory pids\n")
	h := hierarchy{mount, "/", "/user/session", true}
	if dir, err := h.parent(); err != nil || dir != filepath.Join(mount, "user") {
		t.Errorf("the parent is %s (%v)", dir, err)
	}
	write(t, filepath.Join(mount, "user"), "cgroup.subtree_control", "cpu\n")
	if dir, err := h.parent(); err == nil || !strings.Contains(err.Error(), "+memory") {
		t.Errorf("the parent is %s (%v)", dir, err)
	}
}

func TestGroupCounts(t *testing.T) {
	for _, c := range []struct {
		name   string
		v2     bool
		files  map[string]string
		limits map[string]string
	}{
		{
			"version 1", false,
			map[string]string{"memory.max_usage_in_bytes": "77\n", "memory.failcnt": "3\n", "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "memory.memsw.limit_in_bytes": ""},
			map[string]string{"memory.limit_in_bytes": "1000", "memory.memsw.limit_in_bytes": "1000"},
		},
		{
			"version 2", true,
			map[string]string{"memory.peak": "77\n", "memory.events": "low 0\nhigh 9\nmax 3\noom 2\noom_kill 1\n", "memory.swap.max": ""},
			map[string]string{"memory.max": "1000", "memory.swap.max": "0"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := &group{dir: t.TempDir(), v2: c.v2}
			for name, text := range c.files {
				write(t, g.dir, name, text)
			}
			if l, err := g.counts(); err != nil || l != (limited{Highest: 77, Reached: 3, Killed: 1}) {
				t.Errorf("it counted %+v (%v)", l, err)
			}
			if err := g.limit(1000); err != nil {
				t.Error(err)
			}
			for name, want := range c.limits {
				if got, err := os.ReadFile(filepath.Join(g.dir, name)); err != nil || string(got) != want {
					t.Errorf("%s is %s (%v)", name, got, err)
				}
			}
		})
	}
}

// TestCommandJoinsTheGroupFirst: the process that becomes the program is the one in the cgroup.
func TestCommandJoinsTheGroupFirst(t *testing.T) {
	g := &group{dir: t.TempDir()}
	out, err := g.command(t.Context(), "sh", "-c", `echo $$ "$@"`, "name", "two words").Output()
	procs, readErr := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	if err != nil || readErr != nil || string(out) != strings.TrimSpace(string(procs))+" two words\n" {
		t.Errorf("process %q in %q (%v, %v)", out, procs, err, readErr)
	}
	var none *group
	if cmd := none.command(t.Context(), "sh", "-c", "true"); !slices.Equal(cmd.Args, []string{"sh", "-c", "true"}) {
		t.Errorf("without a cgroup it is %v", cmd.Args)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
