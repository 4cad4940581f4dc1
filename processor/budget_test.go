package processor_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// heapMax samples the live heap until stop is called, which returns the largest sample.
func heapMax() (stop func() uint64) {
	var most atomic.Uint64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticks := time.NewTicker(time.Millisecond)
		defer ticks.Stop()
		for {
			if now := heap(); now > most.Load() {
				most.Store(now)
			}
			select {
			case <-done:
				return
			case <-ticks.C:
			}
		}
	}()
	return func() uint64 {
		close(done)
		<-ended
		return most.Load()
	}
}

// heap returns the bytes that were reachable at the last garbage collection. Garbage does not count: its amount
// depends on when the collector runs, and so on how busy the machine is.
func heap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// heapAboveIdleMax and heapAboveIdleMaxLarge bound what batches may add to the live heap of an idle process. The heap
// also has what the embedded broker stores and sends; with batches as large as the budget, that is several times a
// batch. Without a budget, records of 1 MB add 360 to 700 MiB.
const heapAboveIdleMax, heapAboveIdleMaxLarge = 256 << 20, 384 << 20

// verdicts returns the metric series that counts the events with a verdict.
func verdicts(verdict string) string {
	return fmt.Sprintf("oncebus_events_total{route=%q,verdict=%q}", "signals", verdict)
}

// TestManyLargeBatchesStayInTheBudget puts batches into an input that each decompress to just under the limit of a
// batch. Together they have many times the memory that a process may take. The test is not parallel, because it
// measures the heap.
func TestManyLargeBatchesStayInTheBudget(t *testing.T) {
	if testing.Short() {
		t.Skip("it decompresses 3 GB: make verify runs it without the race detector")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // as in a process
	for _, c := range []struct {
		name                    string
		codec                   kgo.CompressionCodec
		bound                   int
		batches, records, bytes int
		most                    uint64
	}{
		{"records of 1 MB", kgo.ZstdCompression(), 4 << 20, 160, 4, 1_000_000, heapAboveIdleMax},
		{"a batch as large as the budget", kgo.ZstdCompression(), 64 << 20, 3, 67, 1_000_000, heapAboveIdleMaxLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			bothWays(t, strings.Replace(benchRoutes, "field: id", "record_key", 1), func(t *testing.T, routes string) {
				b := newBench(t, routes)
				b.createTopic("signals.raw", 4)
				raw := rawBatchOf(t, c.codec, c.records, c.bytes, func(int) string { return "same" })
				for n := range c.batches {
					b.produceBatch("signals.raw", int32(n%4), raw)
				}
				cfg := b.config("one")
				cfg.Workers, cfg.MaxDecompressedBatchBytes = 2, c.bound
				runtime.GC()
				idle := heap()
				stop := heapMax()
				i := b.ready(b.start(cfg))
				for quarter := 1; quarter <= 4; quarter++ { // slow with the race detector
					b.wait(fmt.Sprintf("%d of 4 parts of the verdicts", quarter), func() bool {
						events := gather(t, i)
						return events[verdicts("unique")]+events[verdicts("duplicate")] >= float64(c.batches*c.records*quarter/4)
					})
				}
				most := stop()
				t.Logf("idle %d MiB, most %d MiB", idle>>20, most>>20)
				if most > idle+c.most {
					t.Errorf("the heap grew from %d to %d bytes", idle, most)
				}
			})
		})
	}
}
