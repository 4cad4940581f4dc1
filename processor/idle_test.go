package processor_test

import (
	"sync/atomic"
	"testing"
	"time"

	"oncebus/processor"
)

// TestMemoryIsGivenBackAtRest protects that a process whose workers have nothing to do gives its memory back, and
// works on when there is something to do again.
func TestMemoryIsGivenBackAtRest(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	var given atomic.Int32
	i := b.ready(b.startWith(b.config("one"), func(p *processor.Processor) {
		p.SetIdle(20*time.Millisecond, func() { given.Add(1) })
	}))
	records, sent := traffic(200)
	b.produce(records[:100]...)
	b.drain(i, "signals.raw")
	b.wait("the memory is given back", func() bool { return given.Load() > 0 })
	before := given.Load()
	b.produce(records[100:]...)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
	b.wait("the memory is given back again", func() bool { return given.Load() > before })
}
