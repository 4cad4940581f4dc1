package processor_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
)

// TestTwoProcessesWithOneInstanceID starts a process twice, each with a state directory of its own, as a copied
// deployment would (fault p7, hazard A14). The group keeps one process and fences the other, which has to log this
// and to back off; the events are emitted once.
func TestTwoProcessesWithOneInstanceID(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	first := b.ready(b.start(b.config("twin")))
	second := b.start(b.config("twin"))
	fenced := func() float64 {
		n := 0.0
		for _, i := range []*instance{first, second} {
			for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
				n += testutil.ToFloat64(i.Fenced().WithLabelValues(stage))
			}
		}
		return n
	}
	b.wait("both workers of one twin to be fenced", func() bool { return fenced() >= 2 })
	records, sent := traffic(100)
	b.produce(records...)
	b.wait("a line that names the cause and the remedy", func() bool {
		return strings.Contains(b.logs.String(), "give each process its own ONCEBUS_INSTANCE_ID")
	})
	if err := second.stop(); err != nil {
		t.Error(err)
	}
	b.drain(first, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
	if err := first.stop(); err != nil {
		t.Error(err)
	}
}

// TestOtherProducerIsNamed protects that a process names and counts another process of the same name each time it
// registers a transactional id, also before that process joins the group. The command doctor names both processes.
func TestOtherProducerIsNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	cfg := b.config("twin")
	i := b.ready(b.start(cfg))
	row := app.NewSeen("twin", "build", 0, b.routes)
	row.Process = "elsewhere, process 7"
	must(t, row.Write(t.Context(), b.client, i.App().Topology))
	for n := range 3 {
		b.produce(signal(fmt.Sprint("before-", n), 0, testTime))
		b.drain(i, "signals.raw")
		other, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.TransactionalID(app.TransactionalID("app", app.StageRoute, 0, "twin")))
		must(t, err)
		_, _, err = other.ProducerID(t.Context())
		must(t, err)
		b.produce(signal(fmt.Sprint("after-", n), 0, testTime))
		b.wait("the fencing to count", func() bool {
			return testutil.ToFloat64(i.Fenced().WithLabelValues(processor.StageRoute)) == float64(n+1)
		})
		other.Close()
		b.drain(i, "signals.raw")
	}
	if n := strings.Count(b.logs.String(), "give each process its own ONCEBUS_INSTANCE_ID"); n != 3 {
		t.Errorf("%d lines name the setting, want 3", n)
	}
	b.wait("doctor to name both", func() bool {
		for _, f := range b.diagnose(cfg, 0) {
			if f.Check == "instances" && f.Level == app.AtRisk && strings.Contains(f.Text, "instance id twin fence") && strings.Contains(f.Text, "elsewhere, process 7") && strings.Contains(f.Text, fmt.Sprint("process ", os.Getpid())) {
				return true
			}
		}
		return false
	})
}
