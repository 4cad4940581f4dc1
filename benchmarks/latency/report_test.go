//go:build unix

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
)

// measurementOf returns a measurement of 100 events that took from 1 % to 100 % of
// highest.
func measurementOf(contender string, at point, round int, highest, behind time.Duration) measurement {
	h, late := &openloop.Histogram{}, &openloop.Histogram{}
	for n := range 100 {
		h.Record(highest * time.Duration(n+1) / 100)
		late.Record(behind)
	}
	return measurement{Contender: contender, point: at, Round: round, Events: 100, Latency: openloop.QuantilesOf(h), Behind: openloop.QuantilesOf(late), DrainMillis: openloop.Millis(highest), latency: h}
}

func testRows() (settings, []row) {
	s := settings{rates: []int{20_000}, commits: []time.Duration{20 * time.Millisecond}, rounds: 3}
	at := point{20_000, 20 * time.Millisecond}
	var ms []measurement
	for round, slower := range []time.Duration{0, 10 * time.Millisecond, 2 * time.Second} {
		ms = append(ms, measurementOf(limit, at, round, 40*time.Millisecond+slower, time.Millisecond),
			measurementOf("oncebus keyed", at, round, 50*time.Millisecond+slower, time.Millisecond),
			measurementOf("oncebus routed", at, round, 3*time.Second, time.Second))
	}
	return s, rowsOf(s, ms)
}

func TestReportTakesMediansAndRatiosOfMedians(t *testing.T) {
	_, rows := testRows()
	if len(rows) != 3 {
		t.Fatalf("%d rows, want those of the three that were measured", len(rows))
	}
	l, keyed, routed := rows[0], rows[1], rows[2]
	if l.Max != (bench.Spread{Median: 50, Low: 40, High: 2040}) || l.latency.Total != 300 {
		t.Errorf("the limit's maximum is %+v over %d events", l.Max, l.latency.Total)
	}
	if got := keyed.P99Ratio; got < 1.18 || got > 1.22 || l.P50Ratio != 1 {
		t.Errorf("the ratio to the limit is %v, the limit's own %v; want 1.2 and 1", got, l.P50Ratio)
	}
	if routed.P50Ratio != 0 {
		t.Errorf("a ratio of %v to a limit that was not measured", routed.P50Ratio)
	}
}

func TestReportMarksAndGoals(t *testing.T) {
	s, rows := testRows()
	for i, want := range []string{"", "", markLate + ", " + markBacklog} {
		if got := rows[i].marks(); got != want {
			t.Errorf("%s is marked %q, want %q", rows[i].Contender, got, want)
		}
	}
	text := markdown(s, rows) + bench.GoalTable(goals(rows))
	for _, want := range []string{
		"## 20000 events/s\n\n100 measured events a round.",
		"| 20ms | limit | 25.",
		"cannot keep up with the rate here",
		"| 20000 events/s, commit interval 20ms, oncebus keyed: p99 | at most 60 ms | 60 ms | met |",
		"oncebus routed: p99 | at most 60 ms | 2986 ms | missed |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "oncebus routed: p50 relative") {
		t.Error("a goal relative to a limit that was not measured")
	}
}

// TestGoalAtTheHighestRate is about p99 alone.
func TestGoalAtTheHighestRate(t *testing.T) {
	got := goals([]row{{Contender: limit}, {Contender: "oncebus keyed", point: point{100_000, 100 * time.Millisecond}, P50Ratio: 3, P99Ratio: 1.6}})
	if len(got) != 1 || got[0].Verdict != bench.Missed || !strings.Contains(got[0].What, "p99 relative to the limit's") {
		t.Errorf("the goals are %+v", got)
	}
}

func TestChartsAreWellFormed(t *testing.T) {
	_, rows := testRows()
	all := charts(rows)
	chart, ok := all["-20000-20ms"]
	if !ok || len(all) != 1 {
		t.Fatalf("%d charts, want that of 20,000 events/s at 20 ms", len(all))
	}
	svg := chart.SVG()
	for _, want := range []string{"Latency at 20000 events/s, commit interval 20ms", ">limit<", ">oncebus keyed<", ">oncebus routed<"} {
		if !bytes.Contains(svg, []byte(want)) {
			t.Errorf("the chart lacks %q", want)
		}
	}
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestCurveEndsWhereTenValuesDecide: a higher quantile would depend on chance.
func TestCurveEndsWhereTenValuesDecide(t *testing.T) {
	var h openloop.Histogram
	for ms := range 1000 {
		h.Record(time.Duration(ms) * time.Millisecond)
	}
	points := curve(&h)
	if last := points[len(points)-1]; last.X != 100 {
		t.Errorf("of 1000 values the curve ends at 1 in %v, want 1 in 100", last.X)
	}
	if first := points[0]; first.X != 1 || first.Y != 0 {
		t.Errorf("the curve begins with %+v, want the lowest value", first)
	}
}
