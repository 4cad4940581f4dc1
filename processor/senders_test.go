package processor

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"oncebus/dedup/rules"
	"oncebus/dedup/sketch"
	"oncebus/processor/wire"
)

// TestSenderSeries protects that the ten senders with the most duplicates in all tasks of the process each have a
// series, and that all others share one. A sender cannot take the name of the shared series.
func TestSenderSeries(t *testing.T) {
	board := newBoard()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(newSenderCounts(board))
	counted := func(names ...string) wire.RouteSenders {
		s := sketch.New(64)
		for i, name := range names {
			for range 100 - i {
				s.Offer(rules.AppendSender(nil, []byte(name)))
			}
		}
		s.Commit()
		return wire.RouteSenders{Route: "signals", Summary: s.Summary()}
	}
	board.setTasks("one", []TaskState{{Task: "a", Senders: []wire.RouteSenders{counted("", "other", "none", `\=none`, "x")}}, {Task: "b"}})
	board.setTasks("two", []TaskState{{Task: "c", Senders: []wire.RouteSenders{counted("x", "1", "2", "3", "4", "5", "6", "7", "8")}}})
	got := map[string]float64{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families[0].GetMetric() {
		got[labelOf(m, "sender")] = m.GetGauge().GetValue()
	}
	// Of the two senders with 97 duplicates `\\=none` comes first, then 3. The last four senders have no series of
	// their own.
	want := map[string]float64{"x": 196, "none": 100, `\=other`: 99, "1": 99, "2": 98, `\=none`: 98, `\\=none`: 97, "3": 97, "4": 96, "5": 95, "other": 94 + 93 + 92}
	if !maps.Equal(got, want) {
		t.Errorf("the series are %v, want %v", got, want)
	}
	sum := 0.0
	for _, n := range got {
		sum += n
	}
	if all := counted("", "other", "none", `\=none`, "x").Total + counted("x", "1", "2", "3", "4", "5", "6", "7", "8").Total; sum != float64(all) {
		t.Errorf("the series add to %v, want %d", sum, all)
	}
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// TestSenderSeriesAreBounded protects that a client which makes up senders adds no series.
func TestSenderSeriesAreBounded(t *testing.T) {
	board := newBoard()
	s := sketch.New(128)
	for n := range 10_000 {
		s.Offer(fmt.Append(nil, strings.Repeat("x", 20), n))
	}
	s.Commit()
	board.setTasks("one", []TaskState{{Task: "a", Senders: []wire.RouteSenders{{Route: "signals", Summary: s.Summary()}}}})
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(newSenderCounts(board))
	families, err := reg.Gather()
	if err != nil || len(families[0].GetMetric()) != shownSenders+1 {
		t.Errorf("%d series, %v", len(families[0].GetMetric()), err)
	}
}
