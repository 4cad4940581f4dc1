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
