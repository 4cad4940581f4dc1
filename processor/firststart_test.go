package processor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestFirstStartIsSilent starts two processes for the first time on a healthy broker. Their workers join the groups
// while the first workers already commit transactions. No worker logs a warning or an error.
func TestFirstStartIsSilent(t *testing.T) {
	t.Parallel()
	rounds, atATime := 6, 5 // most of a start is waiting
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		var benches []*bench
		var pairs [][2]*instance
		for range atATime {
			b := newBench(t, benchRoutes)
			b.createTopic("signals.raw", 4)
			one, two := b.config("one"), b.config("two")
			// The long timeouts keep a busy machine from removing a member or aborting a transaction.
			one.SessionTimeout, two.SessionTimeout = 30*time.Second, 30*time.Second
			one.TransactionTimeout, two.TransactionTimeout = time.Minute, time.Minute
			one.Workers, two.Workers, two.StateDir = 2, 2, t.TempDir()
			benches, pairs = append(benches, b), append(pairs, [2]*instance{b.start(one), b.start(two)})
		}
		for n, b := range benches {
			sent, ready := map[string]*kgo.Record{}, func() bool { return pairs[n][0].Ready() == nil && pairs[n][1].Ready() == nil }
			b.wait("both to be ready, with traffic until then", func() bool {
				r := signal(fmt.Sprint("id-", len(sent)), int32(len(sent)%4), testTime)
				sent[fmt.Sprint("id-", len(sent))] = r
				b.produce(r)
				return ready()
			})
			b.drain(pairs[n][1], "signals.raw")
			assertOnce(t, b.read("signals.unique"), sent)
			for line := range strings.Lines(b.logs.String()) {
				if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
					t.Error(line)
				}
			}
			must(t, pairs[n][0].stop())
			must(t, pairs[n][1].stop())
		}
	}
}
