package restore

import "context"

// background is work for a task in a goroutine of its own. The goroutine owns the data that it works on
// until done is closed.
type background struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// start runs work in a goroutine. At its end it calls finished, also if Stop has canceled the work.
func (b *background) start(ctx context.Context, finished func(), work func(context.Context)) {
	ctx, b.cancel = context.WithCancel(ctx)
	b.done = make(chan struct{})
	go func() {
		defer finished()
		defer close(b.done)
		work(ctx)
	}()
}

// Stop cancels the work and waits for its end.
func (b *background) Stop() {
	b.cancel()
	<-b.done
}

// Finished reports whether the work has ended.
func (b *background) Finished() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}
