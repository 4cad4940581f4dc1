package processor_test

import (
	"strconv"
	"strings"
	"testing"
)

// TestFirstStartIsSilent: first starts on a healthy broker, with traffic while the
// workers join their groups, log neither a warning nor an error.
func TestFirstStartIsSilent(t *testing.T) {
	t.Parallel()
	for n := range 50 {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			cfg := b.config("one")
			cfg.Workers = 2
			b.createTopic("signals.raw", 4)
			early, _ := traffic(50)
			b.produce(early...)
			i := b.start(cfg)
			late, sent := traffic(100)
			b.produce(late...)
			b.ready(i)
			b.drain(i, "signals.raw")
			assertOnce(t, b.read("signals.unique"), sent)
			must(t, i.stop())
			for line := range strings.Lines(b.logs.String()) {
				if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
					t.Error(line)
				}
			}
		})
	}
}
