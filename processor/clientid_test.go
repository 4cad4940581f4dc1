package processor_test

import (
	"slices"
	"testing"

	"oncebus/processor"
	"oncebus/processor/app"
)

// TestWorkersHaveTheirOwnClientIDs protects that brokers see a distinct client id for each worker that begins with
// the client id of the process. A quota, a log line or a fault in the network before the broker
// (processor/kafkatest/proxy) finds all workers of the process by this prefix.
func TestWorkersHaveTheirOwnClientIDs(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	b.ready(b.start(b.config("one")))
	groups, err := b.admin.DescribeGroups(t.Context(), app.GroupName("app", processor.StageRoute), app.GroupName("app", processor.StageDedup))
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, g := range groups {
		for _, m := range g.Members {
			ids = append(ids, m.ClientID)
		}
	}
	slices.Sort(ids)
	if want := []string{"app-one-dedup-0", "app-one-route-0"}; !slices.Equal(ids, want) {
		t.Errorf("client ids %v, want %v", ids, want)
	}
}
