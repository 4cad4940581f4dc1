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

// The point to die at, and how often it is passed before, from
// ONCEBUS_FAILPOINT=name:hits.
var (
	name string
	left atomic.Int64
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
	left.Store(n)
}

// Hit kills the process, as kill -9 would, at the chosen point.
func Hit(point string) {
	if point != name || left.Add(-1) != 0 {
		return
	}
	fmt.Fprintf(os.Stderr, "failpoint: %s\n", point)
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(err)
	}
	select {} // the signal is on its way: nothing may happen after this point
}
