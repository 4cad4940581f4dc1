//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// The chosen point, and the hits left until the kill, from
// ONCEBUS_FAILPOINT=name:hits.
var (
	name     string
	hitsLeft atomic.Int64
)

func init() {
	setting := os.Getenv("ONCEBUS_FAILPOINT")
	if setting == "" {
		return
	}
	point, hits, _ := strings.Cut(setting, ":")
	n, err := strconv.ParseInt(hits, 10, 64)
	if err != nil || n < 1 || !slices.Contains(Names, point) {
		fmt.Fprintf(os.Stderr, "ONCEBUS_FAILPOINT=%s: want name:hits, hits at least 1, name one of %s\n", setting, strings.Join(Names, ", "))
		os.Exit(2)
	}
	name = point
	hitsLeft.Store(n)
}

// Hit kills the process with SIGKILL at the chosen hit of the chosen point.
func Hit(point string) {
	if point != name || hitsLeft.Add(-1) != 0 {
		return
	}
	fmt.Fprintf(os.Stderr, "failpoint: %s\n", point)
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(err)
	}
	select {} // run nothing until the signal arrives
}

// wallStep is the step of the wall clock, in ms.
var wallStep atomic.Int64

// The step is read often, so that a test sees a new step at once.
const wallStepEvery = 20 * time.Millisecond

func init() {
	path := os.Getenv(WallStepVariable)
	if path == "" {
		return
	}
	readWallStep(path)
	go func() {
		for range time.Tick(wallStepEvery) {
			readWallStep(path)
		}
	}()
}

// readWallStep reads the step. If the file is missing or has no number, the last step stays.
func readWallStep(path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		return
	}
	if ms, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		wallStep.Store(ms)
	}
}

// WallStep returns by how much the file that WallStepVariable names sets this process's wall clock ahead of
// the machine's.
func WallStep() time.Duration { return time.Duration(wallStep.Load()) * time.Millisecond }
