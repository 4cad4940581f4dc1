//go:build !failpoints

package failpoint

import "time"

// Hit does nothing in a build without the tag failpoints; the compiler removes
// the call.
func Hit(string) {}

// WallStep returns 0: the wall clock is the machine's.
func WallStep() time.Duration { return 0 }
