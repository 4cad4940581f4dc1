package restore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"oncebus/processor/kafka"
)

// RebuildsName is the file in the app's state directory that lists the rebuilds of the last hour: one
// line for each, with time, task and reason.
const RebuildsName = "REBUILDS"

// rebuildWindow is the time over which rebuilds are counted.
const rebuildWindow = time.Hour

// rebuildGuard stops a process whose stores fail again and again, because rebuilds would hide a failing
// disk. The count is kept in a file, so a restart does not reset it (hazard E6). A rebuild after a host
// crash is normal and is not counted.
type rebuildGuard struct {
	dir string
	max int // rebuilds of one task in an hour; 0 is no limit

	mu sync.Mutex // tasks of all workers share the file
}

// ErrTooOften reports that a task has reached its limit of rebuilds.
var ErrTooOften = errors.New("too many rebuilds")

// allow counts a rebuild of a task. Above the limit it returns an operator error that wraps both
// ErrTooOften and why.
func (g *rebuildGuard) allow(task string, why error, now time.Time) error {
	if g.max == 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	lines, err := g.recent(now)
	if err != nil {
		return err
	}
	same := 0
	for _, line := range lines {
		if fields := strings.SplitN(line, "\t", 3); fields[1] == task {
			same++
		}
	}
	if same >= g.max {
		return kafka.OperatorErrorf("task %s: %w: its store failed %d times in %v, and again: %w; check the disk and the kernel's log, delete %s (it is rebuilt from the changelog), or raise ONCEBUS_REBUILDS_PER_HOUR; the last: %s",
			task, ErrTooOften, same, rebuildWindow, why, g.dir, strings.Join(lines, "; "))
	}
	reason := strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' {
			return ' '
		}
		return r
	}, why.Error())
	return g.write(append(lines, now.UTC().Format(time.RFC3339Nano)+"\t"+task+"\t"+reason))
}

// recent returns the lines of the last hour. It drops malformed lines, because a damaged file must not
// stop a process.
func (g *rebuildGuard) recent(now time.Time) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(g.dir, RebuildsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("count the rebuilds of local state: %w", err)
	}
	var lines []string
	for line := range strings.Lines(string(b)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		at, err := time.Parse(time.RFC3339Nano, fields[0])
		if err == nil && len(fields) == 3 && now.Sub(at).Abs() < rebuildWindow {
			lines = append(lines, strings.Join(fields, "\t"))
		}
	}
	return lines, nil
}

func (g *rebuildGuard) write(lines []string) error {
	path := filepath.Join(g.dir, RebuildsName)
	if err := os.WriteFile(path+".new", []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("count the rebuilds of local state: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("count the rebuilds of local state: %w", err)
	}
	return nil
}
