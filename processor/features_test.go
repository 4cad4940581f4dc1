package processor_test

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
)

// TestOldTransactionsAreWarnedOf starts on clusters of two ages. On the older
// one, whose transactions a late EndTxn can hit (hazard C2), the start says so
// and goes on.
func TestOldTransactionsAreWarnedOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		versions *kversion.Versions
		warns    bool
	}{"3.6": {kversion.V3_6_0(), true}, "4.0": {kversion.V4_0_0(), false}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, benchRoutes, kfake.MaxVersions(c.versions))
			records, sent := traffic(20)
			i := b.ready(b.start(b.config("one")))
			b.produce(records...)
			b.drain(i, "signals.raw")
			assertOnce(t, b.read("signals.unique"), sent)
			if warned := strings.Contains(b.logs.String(), "feature=transaction.version"); warned != c.warns {
				t.Errorf("warned: %v, want %v", warned, c.warns)
			}
		})
	}
}
