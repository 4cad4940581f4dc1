package processor_test

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/front"
)

// TestAwaitNamesWhoIsMissingWhenALookIsCutShort: the time is over in the middle of a look. That
// look knows no process, so the one before tells which have not taken the set.
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
