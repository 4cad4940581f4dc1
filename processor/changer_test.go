package processor_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/front"
)

// TestAwaitNamesWhoIsMissingWhenALookIsCutShort lets the time run out in the middle of a look at the processes. That
// look knows no process yet, so the error uses the look before it to name the processes that have not taken the route
// set.
func TestAwaitNamesWhoIsMissingWhenALookIsCutShort(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	one := b.ready(b.start(b.config("one")))
	b.taken(1, one)
	changer, err := front.NewChanger(b.config("operator").Config, b.routes, slog.New(slog.DiscardHandler))
	must(t, err)
	defer changer.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var described atomic.Int64
	b.cluster.ControlKey(int16(kmsg.DescribeGroups), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		if described.Add(1) == 5 { // a look describes at most two groups
			cancel()
		}
		return nil, nil, false
	})
	taken, err := changer.Await(ctx, 99)
	if err != nil || !slices.Equal(taken.Live, []string{"one"}) || !slices.Equal(taken.Missing, []string{"one"}) {
		t.Errorf("missing are %v of %v, error %v; want one", taken.Missing, taken.Live, err)
	}
}

// TestPlanRefusesWhatApplyWould covers a changed number of partitions and an input that does not exist. Both commands
// refuse each of them in the same words, and write nothing.
func TestPlanRefusesWhatApplyWould(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.living(b.config("one"), batch("s", 4)...)
	for name, c := range map[string]struct {
		routes string
		change func(*app.Config)
		want   string
	}{
		"partitions": {bothRoutes, func(cfg *app.Config) { cfg.Partitions = 7 }, "ONCEBUS_PARTITIONS is 7"},
		"topic":      {bothRoutes, func(cfg *app.Config) { cfg.CreateTopics = false }, "topic alerts.raw does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			b.useRoutes(c.routes)
			cfg := b.config("operator").Config
			c.change(&cfg)
			changer, err := front.NewChanger(cfg, b.routes, slog.New(slog.DiscardHandler))
			must(t, err)
			defer changer.Close()
			_, planned := changer.Plan(t.Context(), nil)
			_, applied := changer.Apply(t.Context(), app.ApplyOptions{Yes: true})
			if applied == nil || planned == nil || planned.Error() != applied.Error() || !strings.Contains(planned.Error(), c.want) {
				t.Errorf("plan says %v, apply %v; want %q in both", planned, applied, c.want)
			}
		})
	}
}

// TestPlanSaysWhatItWaitsFor freezes a process with an open transaction. The plan of a window needs the stream time
// of the task, so it says which task it waits for.
func TestPlanSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.living(b.config("one"), batch("s", 4)...)
	frozen := b.newClient(kgo.TransactionalID("frozen"))
	must(t, frozen.BeginTransaction())
	must(t, frozen.ProduceSync(t.Context(), &kgo.Record{Topic: "app-repartition-changelog", Partition: 2, Value: []byte("x")}).FirstErr())
	b.useRoutes(strings.ReplaceAll(benchRoutes, "window: 1h", "window: 2h"))
	said := make(chan string, 1)
	changer, err := front.NewChanger(b.config("operator").Config, b.routes, slog.New(slog.NewTextHandler(saying(said), nil)))
	must(t, err)
	defer changer.Close()
	planned := make(chan error, 1)
	go func() {
		_, err := changer.Plan(t.Context(), nil)
		planned <- err
	}()
	select {
	case line := <-said:
		if !strings.Contains(line, "level=WARN") || !strings.Contains(line, "task=app-repartition/2") {
			t.Errorf("it says %s", line)
		}
	case err := <-planned:
		t.Fatalf("it ended without a word: %v", err)
	}
	must(t, frozen.EndTransaction(t.Context(), kgo.TryAbort))
	must(t, <-planned)
}

// saying sends each line of a log to a channel.
type saying chan string

func (s saying) Write(line []byte) (int, error) {
	s <- string(line)
	return len(line), nil
}
