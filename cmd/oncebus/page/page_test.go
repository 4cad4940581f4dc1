//go:build unix

package page

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafkatest/golden"
	"oncebus/state"
)

// bench is a page over metrics that the test sets.
type bench struct {
	*Page

	registry *prometheus.Registry
	events   *prometheus.CounterVec
	lag      *prometheus.GaugeVec
	seconds  *prometheus.GaugeVec
	left     *prometheus.GaugeVec
	commit   *prometheus.HistogramVec
	state    processor.State
	notReady error
}

const routesText = `
routes:
  - {name: orders, topics: [orders.raw], key: [{field: id}], window: 1h, output: orders.unique}
  - {name: signals, topics: [signals.raw], key: [{field: trace}, {field: id}], window: 24h, output: signals.unique}
`

func newBench(t *testing.T) *bench {
	t.Helper()
	routes, err := rules.ParseRoutes("routes.yaml", []byte(routesText))
	if err != nil {
		t.Fatal(err)
	}
	return newBenchOf(routes.Routes)
}

func newBenchOf(routes []*rules.Route) *bench {
	taskLabels := []string{"topic", "partition"}
	b := &bench{
		registry: prometheus.NewRegistry(),
		events:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_events_total"}, []string{"route", "verdict"}),
		lag:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_task_lag_records"}, taskLabels),
		seconds:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_task_lag_seconds"}, taskLabels),
		left:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_restore_remaining_records"}, taskLabels),
		commit:   prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "oncebus_commit_seconds", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}, []string{"stage"}),
	}
	b.registry.MustRegister(b.events, b.lag, b.seconds, b.left, b.commit)
	b.Page = New(Source{
		Role: RoleRun, Version: "v1", App: "app", Instance: "one", Metrics: b.registry, Routes: routes, Log: &Log{},
		Ready:  func() error { return b.notReady },
		States: func() []processor.State { return []processor.State{b.state} },
	})
	b.took = func(time.Time) time.Duration { return time.Millisecond } // on any machine
	return b
}

// at takes a reading and returns its snapshot.
func (b *bench) at(t *testing.T, at time.Time) Snapshot {
	t.Helper()
	b.tick(at, true)
	var s Snapshot
	if err := json.Unmarshal(b.latest, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

var start = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

func TestRatesAreThoseOfTheLastTenSeconds(t *testing.T) {
	b := newBench(t)
	for second := range 40 {
		b.events.WithLabelValues("orders", "unique").Add(30)
		if second >= 30 {
			b.events.WithLabelValues("orders", "duplicate").Add(10)
		}
		b.events.WithLabelValues("signals", "late").Add(1)
		s := b.at(t, start.Add(time.Duration(second)*time.Second))
		if second != 39 {
			continue
		}
		if s.Events.Total != 1340 || s.Events.PerSecond != 41 || s.Events.Duplicates != 100 || s.Events.DuplicateShare != 10.0/41 {
			t.Errorf("all events: %+v", s.Events)
		}
		orders, signals := s.Routes[0], s.Routes[1]
		if orders.Name != "orders" || orders.Events.Total != 1300 || orders.Events.PerSecond != 40 || orders.Events.DuplicateShare != 0.25 {
			t.Errorf("orders: %+v", orders)
		}
		want := []Verdict{{"unique", 1200, 30}, {"duplicate", 100, 10}}
		if !slices.Equal(orders.Events.Verdicts, want) || signals.Events.Total != 40 || signals.Events.DuplicateShare != 0 {
			t.Errorf("verdicts: %+v, signals: %+v", orders.Events.Verdicts, signals.Events)
		}
		if signals.Key != "field: trace; else field: id" || signals.Window != "24h0m0s" || signals.Mode != "plain" {
			t.Errorf("signals: %+v", signals)
		}
	}
}

// TestShareWithoutRecentEvents: the share is then that of all events.
func TestShareWithoutRecentEvents(t *testing.T) {
	b := newBench(t)
	b.events.WithLabelValues("orders", "unique").Add(3)
	b.events.WithLabelValues("orders", "replayed").Add(1)
	b.at(t, start)
	if s := b.at(t, start.Add(time.Second)); s.Events.PerSecond != 0 || s.Events.DuplicateShare != 0.25 {
		t.Errorf("%+v", s.Events)
	}
}

func TestTasksAndLag(t *testing.T) {
	b := newBench(t)
	b.state.Instance = "one"
	for _, p := range []string{"10", "2"} {
		b.lag.WithLabelValues("t", p).Set(5)
		b.seconds.WithLabelValues("t", p).Set(1.5)
	}
	b.seconds.WithLabelValues("t", "2").Set(7)
	b.lag.WithLabelValues("t", "3").Set(-1)
	b.seconds.WithLabelValues("t", "3").Set(-1)
	b.left.WithLabelValues("t", "3").Set(1000)
	b.state.Tasks = []processor.TaskState{
		{Task: "t/10", State: "running", Store: &state.Stats{DiskBytes: 77}, Keys: []app.KeyCount{{Total: 3}, {Total: 4}}},
		{Task: "t/2", State: "running", Store: &state.Stats{}}, {Task: "t/3", State: "restoring", Reason: "waits"},
	}
	b.at(t, start)
	b.left.WithLabelValues("t", "3").Set(600)
	s := b.at(t, start.Add(2*time.Second))
	if s.Lag != (Lag{Records: 10, Seconds: 7, Unknown: 1}) {
		t.Errorf("lag %+v", s.Lag)
	}
	if len(s.Tasks) != 3 || s.Tasks[0].Task != "t/2" || s.Tasks[1].Task != "t/3" || s.Tasks[2].Task != "t/10" {
		t.Fatalf("tasks %+v", s.Tasks)
	}
	if r := s.Tasks[1].Restore; r == nil || r.RemainingRecords != 600 || r.PerSecond != 200 || r.ETASeconds == nil || *r.ETASeconds != 3 || s.Tasks[1].Reason != "waits" {
		t.Errorf("restore %+v", r)
	}
	if last := s.Tasks[2]; last.Keys != 7 || last.DiskBytes != 77 || last.LagRecords != 5 || last.LagSeconds != 1.5 || last.Restore != nil || last.Process != "one" {
		t.Errorf("task %+v", last)
	}
	b.at(t, start.Add(20*time.Second))
	s = b.at(t, start.Add(31*time.Second))
	if r := s.Tasks[1].Restore; r.PerSecond != 0 || r.ETASeconds != nil {
		t.Errorf("a restore without progress has %+v", r)
	}
}

// TestCommitTimesAreThoseOfTheLastMinute compares the quantiles with those that Prometheus
// interpolates.
func TestCommitTimesAreThoseOfTheLastMinute(t *testing.T) {
	b := newBench(t)
	for range 1000 {
		b.commit.WithLabelValues("dedup").Observe(3)
	}
	b.at(t, start)
	s := b.at(t, start.Add(time.Second))
	if c := s.Commits[0]; c.Stage != "dedup" || c.Total != 1000 || c.P50 <= 2.048 || c.P50 >= 4.096 {
		t.Errorf("without recent commits: %+v", c)
	}
	for second := range 70 {
		b.commit.WithLabelValues("dedup").Observe(0.0015)
		s = b.at(t, start.Add(time.Duration(second+2)*time.Second))
	}
	if c := s.Commits[0]; c.Total != 1070 || c.P50 != 0.0015 || c.P99 < 0.00198 || c.P99 > 0.002 || c.PerSecond != 1 {
		t.Errorf("%+v, want the median 1.5 ms in the bucket of 1 to 2 ms", c)
	}
}

// TestSendersAndHTTP: both parts are absent in a process without their metrics, and are there with them.
func TestSendersAndHTTP(t *testing.T) {
	b := newBench(t)
	if s := b.at(t, start); s.HTTP != nil || s.Senders != nil || s.Disk != nil || s.BrokerUp != nil {
		t.Errorf("%+v", s)
	}
	sent := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_sender_duplicates"}, []string{"route", "sender"})
	responses := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_http_requests_total"}, []string{"route", "code", "response"})
	open := prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_http_requests_in_flight"})
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "oncebus_http_request_seconds", Buckets: []float64{1, 2}}, []string{"route"})
	b.registry.MustRegister(sent, responses, open, took)
	if s := b.at(t, start.Add(time.Second)); s.Senders != nil {
		t.Errorf("senders without a series: %+v", s.Senders)
	}
	for n := range 20 {
		sent.WithLabelValues("orders", fmt.Sprint("s", n)).Set(float64(n))
		responses.WithLabelValues(fmt.Sprint("r", n%2), []string{"202", "409"}[n%2], "x").Inc()
		took.WithLabelValues(fmt.Sprint("r", n%2)).Observe(0.5)
	}
	sent.WithLabelValues("orders", otherSenders).Set(1000)
	sent.WithLabelValues("signals", otherSenders).Set(0)
	open.Set(3)
	s := b.at(t, start.Add(2*time.Second))
	if len(s.Senders) != sendersMax+1 || s.Senders[sendersMax].Duplicates != 1000 || s.Senders[0] != (Sender{Route: "orders", Sender: "s19", Duplicates: 19, PerSecond: 9.5}) {
		t.Errorf("senders: %+v", s.Senders)
	}
	if h := s.HTTP; h == nil || h.Total != 20 || h.PerSecond != 10 || h.InFlight != 3 || h.P50 != 0.5 || !slices.Equal(h.Codes, []Code{{"202", 10, 5}, {"409", 10, 5}}) {
		t.Errorf("http: %+v", h)
	}
}

// TestNotReady: the reason is shown.
func TestNotReady(t *testing.T) {
	b := newBench(t)
	if s := b.at(t, start); !s.Ready || s.Reason != "" {
		t.Errorf("%+v", s)
	}
	b.notReady = errors.New("task t/3 is restoring")
	if s := b.at(t, start); s.Ready || s.Reason != "task t/3 is restoring" {
		t.Errorf("%+v", s)
	}
}

// TestHistoryIsBounded: it keeps five minutes in steps of a second, and one hour in those of ten
// seconds, and takes the memory that the constant states.
func TestHistoryIsBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("routes:\n")
	for n := range 100 {
		fmt.Fprintf(&text, "  - {name: route-%d, topics: [t%d.raw], key: [{field: id}], window: 1h, output: unique}\n", n, n)
	}
	routes, err := rules.ParseRoutes("routes.yaml", []byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	b := newBenchOf(routes.Routes)
	at := start
	tick := func(step time.Duration) {
		at = at.Add(step)
		b.events.WithLabelValues("route-1", "unique").Add(step.Seconds())
		b.events.WithLabelValues("route-99", "unique").Add(2 * step.Seconds())
		b.tick(at, false)
	}
	for range coarseMax {
		tick(coarseStep)
	}
	b.streams[&stream{frames: make(chan []byte)}] = true
	for range 2 * fineMax {
		tick(fineStep)
	}
	fine, series := b.history.fine.columns()
	if len(fine) != fineMax || fine[fineMax-1]-fine[0] != int64(fineMax-1)*1000 {
		t.Errorf("%d fine samples", len(fine))
	}
	coarse, _ := b.history.coarse.columns()
	if len(coarse) != coarseMax || coarse[coarseMax-1]-coarse[0] != int64(coarseMax-1)*10_000 {
		t.Errorf("%d coarse samples", len(coarse))
	}
	for name, want := range map[string]float64{seriesVerdict + "unique": 3, seriesRoute + "route-1": 1, seriesOther: 2} {
		column := series[slices.Index(b.history.names, name)]
		if len(column) != fineMax || column[0] != want || column[fineMax-1] != want {
			t.Errorf("%s: %v, want %v", name, column, want)
		}
	}
	if series[slices.Index(b.history.names, seriesLag)] != nil {
		t.Error("a series of zeros is sent")
	}
	size := 4*(cap(b.history.fine.values)+cap(b.history.coarse.values)) + 8*(cap(b.history.fine.times)+cap(b.history.coarse.times))
	t.Logf("the history takes %d bytes", size)
	if size > historyBytesMax {
		t.Errorf("the history takes %d bytes, stated are %d", size, historyBytesMax)
	}
	if len(b.recent) > 12 || len(b.minutes) > 62 {
		t.Errorf("%d and %d readings are kept", len(b.recent), len(b.minutes))
	}
}

// TestUnwatchedPageGathersEveryTenSeconds: a gather a second without a reader would be waste.
func TestUnwatchedPageGathersEveryTenSeconds(t *testing.T) {
	b := newBench(t)
	gathers := 0
	b.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "probe"}, func() float64 { gathers++; return 0 }))
	for second := range 60 {
		b.tick(start.Add(time.Duration(second)*time.Second), false)
	}
	if gathers != 6 {
		t.Errorf("%d gathers in a minute", gathers)
	}
	b.streams[&stream{frames: make(chan []byte)}] = true
	for second := range 60 {
		b.tick(start.Add(time.Duration(60+second)*time.Second), false)
	}
	if gathers != 66 {
		t.Errorf("%d gathers after a watched minute", gathers)
	}
}

// TestExpensiveReadingsAreRarer: readings never take more than half a percent of a core.
func TestExpensiveReadingsAreRarer(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		time.Millisecond: time.Second, 5 * time.Millisecond: time.Second, 10 * time.Millisecond: 2 * time.Second, time.Second: slowStep,
	} {
		var c costs
		for range c {
			c.add(took)
		}
		c.add(time.Minute) // it waited for a core
		if got := c.interval(); got != want {
			t.Errorf("readings of %v: one in %v, want %v", took, got, want)
		}
	}
}

// TestSnapshotFieldsAreAnInterface pins the names: scripts and 'oncebus top' read them.
func TestSnapshotFieldsAreAnInterface(t *testing.T) {
	up, eta := true, 1.0
	full := Snapshot{
		Reason: "x", BrokerUp: &up, Routes: []Route{{Topics: []string{"t"}, Events: Events{Verdicts: []Verdict{{}}}}}, Events: Events{Verdicts: []Verdict{{}}},
		Tasks: []Task{{Reason: "x", Restore: &Restore{ETASeconds: &eta}}}, Commits: []Commit{{}}, Disk: &Disk{}, HTTP: &HTTP{Codes: []Code{{}}}, Senders: []Sender{{}},
		Log: []Entry{{Detail: "x", Advice: "x", Page: "x"}}, Inputs: &Inputs{}, Hold: &Hold{By: "x"}, TimeHeld: []app.HeldTime{{Since: start}},
	}
	text, err := json.MarshalIndent(full, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Assert(t, "snapshot.json", string(text)+"\n")
}

// TestInputsThatWait: the snapshot sums what waits in the inputs of all processes, has the hold, and
// of each namespace the input that keeps its stream time back most.
func TestInputsThatWait(t *testing.T) {
	b := newBench(t)
	if s := b.at(t, start); s.Inputs != nil || s.Hold != nil || s.TimeHeld != nil {
		t.Errorf("%+v", s)
	}
	of := func(namespace, source string, behind int64) app.HeldTime {
		return app.HeldTime{Namespace: namespace, Source: source, BehindMS: behind, Since: start.Add(-time.Hour)}
	}
	other := processor.State{
		Instance: "two", Inputs: []processor.InputState{{Partition: "orders.raw/1", Lag: 5}},
		TimeHeld: []app.HeldTime{of("orders", "orders.raw/1", 7_200_000)},
	}
	b.state = processor.State{
		Instance: "one", Hold: &app.Hold{Reason: "repair", By: "ada", At: start, Since: start.Add(time.Second)},
		Inputs:   []processor.InputState{{Partition: "orders.raw/0", Lag: 5000}, {Partition: "orders.raw/2", Lag: -1}},
		TimeHeld: []app.HeldTime{of("signals", "signals.raw/0", 3_600_000), of("orders", "orders.raw/0", 60_000)},
	}
	b.source.States = func() []processor.State { return []processor.State{b.state, other} }
	s := b.at(t, start.Add(time.Second))
	if s.Inputs == nil || s.Inputs.Records != 5005 || s.Inputs.Unknown != 1 {
		t.Errorf("inputs: %+v", s.Inputs)
	}
	if s.Hold == nil || s.Hold.Reason != "repair" || s.Hold.By != "ada" || !s.Hold.Since.Equal(start.Add(time.Second)) {
		t.Errorf("hold: %+v", s.Hold)
	}
	if len(s.TimeHeld) != 2 || s.TimeHeld[0].Source != "orders.raw/1" || s.TimeHeld[1].Namespace != "signals" {
		t.Errorf("time: %+v", s.TimeHeld)
	}
	want := "orders.raw/1 keeps stream time of orders back, by 2h0m0s since " + start.Add(-time.Hour).Local().Format(time.DateTime) + "; namespaces behind: 2"
	if got := s.HeldText(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// serve serves the page on a real server with a timeout, and runs it.
func (b *bench) serve(t *testing.T, timeout time.Duration, protect func(http.Handler) http.Handler) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	b.Register(mux, protect)
	server := httptest.NewUnstartedServer(mux)
	server.Config.ReadTimeout, server.Config.WriteTimeout = timeout, timeout
	server.Start()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended; server.Close() })
	return server
}

func open(t *testing.T, h http.Handler) http.Handler { t.Helper(); return h }

// event is one server-sent event.
type event struct{ name, data string }

// listen returns the events of a stream. The channel closes with the stream.
func listen(t *testing.T, url string) (<-chan event, func()) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+PathStream, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r) //nolint:bodyclose // the goroutine below closes it
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s, %s", resp.Status, resp.Header.Get("Content-Type"))
	}
	events := make(chan event, 100)
	go func() {
		defer close(events)
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		var e event
		for lines.Scan() {
			name, isName := strings.CutPrefix(lines.Text(), "event: ")
			data, isData := strings.CutPrefix(lines.Text(), "data: ")
			switch {
			case isName:
				e.name = name
			case isData:
				e.data = data
			default:
				events <- e
				e = event{}
			}
		}
	}()
	return events, func() { _ = resp.Body.Close() }
}

// await returns the next event of a name.
func await(t *testing.T, events <-chan event, name string) string {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatalf("the stream ended before %s", name)
			}
			if e.name == name {
				return e.data
			}
		case <-limit:
			t.Fatalf("no event %s", name)
		}
	}
}

// TestStreamOutlivesTheServersTimeouts: history first, then snapshots with the current
// figures, for longer than a response may take. At the end of the process the stream ends.
func TestStreamOutlivesTheServersTimeouts(t *testing.T) {
	b := newBench(t)
	server := b.serve(t, 500*time.Millisecond, func(h http.Handler) http.Handler { return open(t, h) })
	events, _ := listen(t, server.URL)
	if e := <-events; e.name != "history" || !strings.Contains(e.data, `"names":["events_per_second/unique"`) {
		t.Fatalf("first event %+v", e)
	}
	b.events.WithLabelValues("orders", "unique").Add(12)
	began := time.Now()
	for time.Since(began) < 1200*time.Millisecond {
		await(t, events, "snapshot")
	}
	var s Snapshot
	if err := json.Unmarshal([]byte(await(t, events, "snapshot")), &s); err != nil || s.Events.Total != 12 {
		t.Errorf("%+v, %v", s.Events, err)
	}
	b.Close()
	for e := range events {
		t.Log("after the end:", e.name)
	}
}

func TestTooManyReaders(t *testing.T) {
	b := newBench(t)
	server := b.serve(t, time.Minute, func(h http.Handler) http.Handler { return h })
	for range streamsMax {
		if b.join() == nil {
			t.Fatal("too few streams")
		}
	}
	resp, err := http.Get(server.URL + PathStream) //nolint:noctx // ends at once
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !strings.Contains(string(text), "readers watch already") {
		t.Errorf("%s %s", resp.Status, text)
	}
}

// TestSlowReaderDelaysNoOther: a stream that is not read loses frames.
func TestSlowReaderDelaysNoOther(t *testing.T) {
	b := newBench(t)
	slow := b.join()
	for second := range 10 * framesMax {
		b.tick(start.Add(time.Duration(second)*time.Second), true)
	}
	if n := len(slow.frames); n != framesMax {
		t.Errorf("%d frames wait", n)
	}
}

// TestNothingButThePageItself: the headers forbid what the page does not need, and no file
// names another host or has inline code.
func TestNothingButThePageItself(t *testing.T) {
	b := newBench(t)
	refuse := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	}
	server := b.serve(t, time.Minute, refuse)
	for path, want := range map[string]int{
		"/": 200, "/page/page.js": 200, "/page/page.css": 200, "/page/icon.svg": 200, "/page/uPlot.iife.min.js": 200, "/page/uPlot.min.css": 200,
		"/live": 401, "/snapshot": 401, "/page/README.md": 404, "/page/uPlot.LICENSE": 404, "/page/": 404, "/index.html": 404,
	} {
		resp, err := http.Get(server.URL + path) //nolint:noctx // ends at once
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != want {
			t.Errorf("%s: %s, want %d, %v", path, resp.Status, want, err)
		}
		if want == 404 {
			continue
		}
		for name, value := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
		} {
			if resp.Header.Get(name) != value {
				t.Errorf("%s: %s is %q", path, name, resp.Header.Get(name))
			}
		}
		if want != 200 || strings.Contains(path, "uPlot") {
			continue
		}
		namespaces := strings.ReplaceAll(string(text), "http://www.w3.org/2000/svg", "")
		if m := regexp.MustCompile(`https?://|//[a-z]+\.|<script>|<style|\sstyle=|\son[a-z]+="|@import|innerHTML|eval\(`).FindString(namespaces); m != "" {
			t.Errorf("%s contains %q", path, m)
		}
	}
}

// TestVendoredFilesAreUnchanged compares the sums in README.md.
func TestVendoredFilesAreUnchanged(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("assets", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `(uPlot[^`]+)` \\| `([0-9a-f]{64})` \\|$").FindAllStringSubmatch(string(text), -1)
	files, err := filepath.Glob(filepath.Join("assets", "uPlot*"))
	if err != nil || len(files) != len(rows) || len(rows) != 3 {
		t.Fatalf("%d sums of %d files, %v", len(rows), len(files), err)
	}
	for _, row := range rows {
		content, err := os.ReadFile(filepath.Join("assets", row[1]))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != row[2] {
			t.Errorf("%s has the sum %x", row[1], sum)
		}
	}
}

func TestLogKeepsTheLastWarnings(t *testing.T) {
	kept := &Log{}
	var passed strings.Builder
	log := slog.New(kept.Handler(slog.NewTextHandler(&passed, &slog.HandlerOptions{Level: slog.LevelError}))).With("instance", "one", "task", "t/3")
	log.Info("fine")
	log.Warn("restore failed, retrying", "error", errors.New("no luck"))
	for range 3 {
		log.WithGroup("disk").Error("tasks paused: disk space is low", "free_bytes", 5)
	}
	got := kept.Entries()
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	if e := got[0]; e.Level != "ERROR" || e.Count != 3 || e.Detail != "task=t/3 disk.free_bytes=5" || e.Page != "OPERATIONS.md#a-disk-that-fills" || e.Advice == "" {
		t.Errorf("%+v", e)
	}
	if e := got[1]; e.Level != "WARN" || e.Count != 1 || e.Detail != "task=t/3 error=no luck" {
		t.Errorf("%+v", e)
	}
	if n := strings.Count(passed.String(), "\n"); n != 3 {
		t.Errorf("%d lines were passed, want those at level ERROR:\n%s", n, passed.String())
	}
	for n := range 10 * entriesMax {
		log.Warn("w", "n", n, "long", strings.Repeat("ä", detailBytesMax))
	}
	if got = kept.Entries(); len(got) != entriesMax || !strings.HasPrefix(got[0].Detail, "task=t/3 n=499 ") || len(got[0].Detail) > detailBytesMax+4 {
		t.Errorf("%d entries, the first is %+v", len(got), got[0])
	}
}

// TestAdvicesFitTheCode: each text is logged somewhere, and each section exists.
func TestAdvicesFitTheCode(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	var code strings.Builder
	for _, dir := range []string{"processor", "cmd", "state"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "advice.go") {
				return err
			}
			text, err := os.ReadFile(path)
			code.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	anchors := map[string]bool{}
	for _, page := range []string{"OPERATIONS.md", "METRICS.md", "SECURITY.md"} {
		text, err := os.ReadFile(filepath.Join(root, "deployments", page))
		if err != nil {
			t.Fatal(err)
		}
		anchors[page] = true
		for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(string(text), -1) {
			slug := strings.ReplaceAll(regexp.MustCompile("[^a-z0-9 -]").ReplaceAllString(strings.ToLower(heading[1]), ""), " ", "-")
			anchors[page+"#"+slug] = true
		}
	}
	for _, text := range slices.Sorted(maps.Keys(advices)) {
		if !strings.Contains(code.String(), fmt.Sprintf("%q", text)) {
			t.Errorf("no code logs %q", text)
		}
		a := advices[text]
		if a.do == "" || a.page != "" && !anchors[a.page] {
			t.Errorf("%q: advice %q, page %q, which is not there", text, a.do, a.page)
		}
	}
}

// BenchmarkReading is what one reading costs a process while a reader watches it: gather, compute, encode, and write to an HTTP
// connection that the same process reads. The metrics of the runtime are there too. It does not depend on the
// number of events, because they are counters. cpu-ms is time on a core, also of the reader; %core is its share at the interval that
// the page takes between two readings of this cost.
func BenchmarkReading(b *testing.B) {
	for _, size := range []struct{ routes, tasks int }{{2, 12}, {20, 96}, {254, 384}} {
		b.Run(fmt.Sprintf("%d routes %d tasks", size.routes, size.tasks), func(b *testing.B) {
			p := busyBench(b, size.routes, size.tasks)
			mux := http.NewServeMux()
			p.Register(mux, func(h http.Handler) http.Handler { return h })
			server := httptest.NewServer(mux)
			defer server.Close()
			defer p.Close()
			resp, err := http.Get(server.URL + PathStream) //nolint:noctx,bodyclose // ends with the server
			if err != nil {
				b.Fatal(err)
			}
			defer resp.Body.Close()
			snapshots := make(chan struct{})
			go func() {
				defer close(snapshots)
				for lines := bufio.NewReaderSize(resp.Body, 1<<20); ; {
					line, err := lines.ReadSlice('\n')
					if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
						return
					}
					if strings.HasPrefix(string(line), "event: snapshot") {
						snapshots <- struct{}{}
					}
				}
			}()
			at := start
			before := cpuTime(b)
			for b.Loop() {
				at = at.Add(fineStep)
				p.tick(at, true)
				<-snapshots
			}
			used := (cpuTime(b) - before) / time.Duration(b.N)
			var c costs
			for range c {
				c.add(used)
			}
			b.ReportMetric(float64(used.Microseconds())/1000, "cpu-ms")
			b.ReportMetric(100*used.Seconds()/c.interval().Seconds(), "%core")
		})
	}
}

// busyBench is a page of a process with these routes and tasks.
func busyBench(b *testing.B, routes, tasks int) *bench {
	b.Helper()
	var text strings.Builder
	text.WriteString("routes:\n")
	for n := range routes {
		fmt.Fprintf(&text, "  - {name: route-%d, topics: [t%d.raw], key: [{field: id}], window: 1h, output: unique}\n", n, n)
	}
	parsed, err := rules.ParseRoutes("routes.yaml", []byte(text.String()))
	if err != nil {
		b.Fatal(err)
	}
	p := newBenchOf(parsed.Routes)
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, r := range parsed.Routes {
		for _, v := range dedup.Verdicts {
			p.events.WithLabelValues(r.Name, v.String()).Add(123456)
		}
	}
	for n := range tasks {
		partition := fmt.Sprint(n)
		p.lag.WithLabelValues("app-repartition", partition).Set(12)
		p.seconds.WithLabelValues("app-repartition", partition).Set(0.5)
		p.left.WithLabelValues("app-repartition", partition).Set(0)
		p.state.Tasks = append(p.state.Tasks, processor.TaskState{Task: "app-repartition/" + partition, State: "running", Worker: "dedup-0", Store: &state.Stats{}, Keys: make([]app.KeyCount, routes)})
	}
	return p
}

// cpuTime is how long this process has used a core.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
