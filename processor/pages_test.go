package processor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/wire"
	"oncebus/state"
)

// pagesOf returns the sizes of /metrics, /state and /state?keys=tasks of a process with these numbers of plain routes
// and of tasks.
func pagesOf(t *testing.T, routes int, tasks int32) (metrics, brief, full int) {
	t.Helper()
	var text strings.Builder
	text.WriteString("routes:\n")
	for n := range routes {
		fmt.Fprintf(&text, "  - {name: route-%d, topics: [t%d.raw], key: [{field: id}], window: 1h, output: unique, dead_letter: dead}\n", n, n)
	}
	rs, err := rules.ParseRoutes("routes.yaml", []byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	rt, err := app.Offline("app", tasks, nil, rs)
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	m := newMetrics(reg)
	judge.NewMetrics(reg, rs)
	board := newBoard()
	reg.MustRegister(newKeyCounts(board), newSenderCounts(board), newTenantCounts(board), newLagTimes(board, app.NewBrokerClock()))
	var states []TaskState
	for n := range tasks {
		id := app.TaskID{Topic: rt.Topology.Repartition, Partition: n}
		m.lag.WithLabelValues(id.Topic, fmt.Sprint(n)).Set(12345)
		counts := app.NewCounts(rt)
		states = append(states, TaskState{
			id: id, clock: &lagClock{}, Task: id.String(), Worker: "w", State: running.String(), Since: time.Unix(1_700_000_000, 0), NextOffset: 1 << 40, Store: &state.Stats{Rows: 1 << 30, DiskBytes: 1 << 40},
			Keys: counts.List(rt, &wire.Checkpoint{}),
		})
	}
	board.setTasks("w", states)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&page, f); err != nil {
			t.Fatal(err)
		}
	}
	size := func(s State) int {
		body, err := json.MarshalIndent(s, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		return len(body)
	}
	s := State{Tasks: board.allTasks(), Keys: sumKeys(board.allTasks())}
	return page.Len(), size(s.Brief()), size(s)
}

// TestPagesGrowWithRoutesPlusTasks protects that a scrape and /state grow with the sum of routes and tasks, not with
// their product.
func TestPagesGrowWithRoutesPlusTasks(t *testing.T) {
	oneMetrics, oneBrief, _ := pagesOf(t, 1, 1)
	metrics, brief, full := pagesOf(t, 254, 384)
	t.Logf("254 routes and 384 tasks: /metrics %d bytes, /state %d, with the keys of tasks %d; one of each: %d, %d", metrics, brief, full, oneMetrics, oneBrief)
	if most := 300 << 10; metrics > most {
		t.Errorf("/metrics has %d bytes, want at most %d", metrics, most)
	}
	if most := 400 << 10; brief > most {
		t.Errorf("/state has %d bytes, want at most %d", brief, most)
	}
}
