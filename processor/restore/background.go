package restore

import "context"

// background is work for a task in a goroutine of its own. Until done is closed
// what it works on is its own.
type background struct {
	cancel context.CancelFunc
	done   chan struct{}
}
