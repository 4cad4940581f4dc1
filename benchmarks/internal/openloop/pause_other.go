//go:build unix && !linux

package openloop

import "time"

// pause waits with the runtime's timer, which is exact to about a millisecond.
func pause(d time.Duration) { <-time.After(d) }
