//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"oncebus/processor/kafkatest"
)

// hierarchy says how this machine limits memory: where its cgroups are.
type hierarchy struct {
	mount string // directory
	root  string // what the mount shows of the hierarchy; in a container this is not the top
	own   string // this process's cgroup in the hierarchy
	v2    bool
}

// parseHierarchy reads /proc/self/mountinfo and /proc/self/cgroup (proc(5), cgroups(7)). It prefers version 1: on a
// machine with both versions, version 2 has no memory controller.
func parseHierarchy(mountinfo, cgroup string) (h hierarchy, ok bool) {
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		fields, fs := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(fs) < 3 {
			continue
		}
		v1 := fs[0] == "cgroup" && strings.Contains(","+fs[2]+",", ",memory,")
		if v1 || fs[0] == "cgroup2" && h.mount == "" {
			h.root, h.mount, h.v2 = fields[3], fields[4], !v1
		}
		if v1 {
			break
		}
	}
	for line := range strings.Lines(cgroup) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, own, _ := strings.Cut(rest, ":")
		if h.v2 && number == "0" || !h.v2 && strings.Contains(","+controllers+",", ",memory,") {
			h.own, ok = own, h.mount != ""
		}
	}
	return h, ok
}

// parent returns the directory in which to create a new cgroup. In version 1 this is the cgroup of this
// process, so that its limits also hold for the new one. In version 2 a cgroup with processes cannot pass
// controllers on to its children, so it is the nearest cgroup above that can.
func (h hierarchy) parent() (string, error) {
	at := path.Clean("/" + strings.TrimPrefix(h.own, strings.TrimSuffix(h.root, "/")))
	if !h.v2 {
		return filepath.Join(h.mount, at), nil
	}
	for ; ; at = path.Dir(at) {
		dir := filepath.Join(h.mount, at)
		passed, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
		if err == nil && strings.Contains(" "+strings.TrimSpace(string(passed))+" ", " memory ") {
			return dir, nil
		}
		if at == "/" {
			return "", fmt.Errorf("no cgroup from %s up passes the memory controller on: write +memory to its cgroup.subtree_control", filepath.Join(h.mount, h.own))
		}
	}
}

// group is a memory cgroup in which the processes of one run are.
type group struct {
	dir string
	v2  bool
}

// newGroup creates a cgroup with a limit in bytes. The caller removes it by remove.
func newGroup(limit int64) (*group, error) {
	mounts, mountsErr := os.ReadFile("/proc/self/mountinfo")
	own, ownErr := os.ReadFile("/proc/self/cgroup")
	if err := errors.Join(mountsErr, ownErr); err != nil {
		return nil, fmt.Errorf("-memory-limit needs Linux: %w", err)
	}
	h, ok := parseHierarchy(string(mounts), string(own))
	if !ok {
		return nil, errors.New("-memory-limit: no cgroup file system with the memory controller is mounted")
	}
	parent, err := h.parent()
	if err != nil {
		return nil, fmt.Errorf("-memory-limit: %w", err)
	}
	g := &group{dir: filepath.Join(parent, fmt.Sprintf("oncebus-scale-%d", os.Getpid())), v2: h.v2}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, fmt.Errorf("-memory-limit needs the right to create a cgroup, as root has it: %w", err)
	}
	if err := g.limit(limit); err != nil {
		return nil, errors.Join(fmt.Errorf("-memory-limit: %w", err), os.Remove(g.dir))
	}
	return g, nil
}

// limit sets the limit. With swap a process could exceed it; therefore the limit includes swap (version 1) or swap is
// forbidden (version 2), if the kernel supports that.
func (g *group) limit(bytes int64) error {
	memory, swap, swapMax := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", bytes
	if g.v2 {
		memory, swap, swapMax = "memory.max", "memory.swap.max", 0
	}
	if err := os.WriteFile(filepath.Join(g.dir, memory), []byte(strconv.FormatInt(bytes, 10)), 0o644); err != nil {
		return err
	}
	_, err := os.Stat(filepath.Join(g.dir, swap))
	if err == nil {
		err = os.WriteFile(filepath.Join(g.dir, swap), []byte(strconv.FormatInt(swapMax, 10)), 0o644)
	} else if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return err
}

// command returns a command that runs in the cgroup. A shell moves itself into the cgroup and is then replaced by the
// program, so that all memory of the program counts. A nil g runs the command in no cgroup.
func (g *group) command(ctx context.Context, binary string, args ...string) *exec.Cmd {
	if g == nil {
		return exec.CommandContext(ctx, binary, args...)
	}
	return exec.CommandContext(ctx, "sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs"), binary}, args...)...)
}

// limited has what the kernel has counted in a cgroup.
type limited struct {
	Highest int64 // highest memory in bytes, including file pages that the kernel could drop
	Reached int   // how often the limit was reached and the kernel freed memory
	Killed  int   // processes that the kernel killed for lack of memory
}

func (g *group) counts() (l limited, err error) {
	highest, reached, killed := "memory.max_usage_in_bytes", "memory.failcnt", "memory.oom_control"
	if g.v2 {
		highest, reached, killed = "memory.peak", "memory.events", "memory.events"
	}
	most, err := g.number(highest, "")
	l.Highest = int64(most)
	key := ""
	if g.v2 {
		key = "max"
	}
	var reachedErr, killedErr error
	l.Reached, reachedErr = g.number(reached, key)
	l.Killed, killedErr = g.number(killed, "oom_kill")
	return l, errors.Join(err, reachedErr, killedErr)
}

// number returns the number in a file, or the number of one key in a file with lines "key number".
func (g *group) number(file, key string) (int, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if key == "" && len(fields) == 1 {
			return strconv.Atoi(fields[0])
		}
		if len(fields) == 2 && fields[0] == key {
			return strconv.Atoi(fields[1])
		}
	}
	return 0, fmt.Errorf("%s has no number %q", filepath.Join(g.dir, file), key)
}

// removeMax is how long the kernel may take to release the processes of a cgroup.
const removeMax = 10 * time.Second

// remove removes the cgroup. The kernel refuses this until it has released the processes that ended in the cgroup.
func (g *group) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeMax)
	defer cancel()
	return kafkatest.Await(ctx, "the kernel removes the cgroup "+g.dir, func(context.Context) error { return os.Remove(g.dir) })
}
