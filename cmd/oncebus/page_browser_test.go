//go:build unix

package main_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/cmd/oncebus/cli"
	live "oncebus/cmd/oncebus/page"
	"oncebus/processor/kafkatest/program"
)

const pageRoutes = `
routes:
  - name: orders
    topics: [APP.orders.raw]
    key: [{fields: [account, order]}]
    shadow: {name: by-account, sample: 100%, key: [{field: account}]}
    window: 1h
    output: APP.orders.unique
    dead_letter: APP.dead-letter
  - name: signals
    topics: [APP.signals.raw]
    key: [{field: traceId}, {hash: [symbol, action, timestamp]}]
    window: 24h
    output: APP.signals.unique
    dead_letter: APP.dead-letter
`

const pageToken = "a token for the test of the page"

// watched is a process whose page a browser shows.
type watched struct {
	*world
	*browser

	gate    *gate
	address string // of the page
	addr    string
	one     *service
	sent    int
}

// TestRealPageInChromium: the figures of the page are those of /metrics, and it shows a broker that stops, a process that is killed
// and a task that restores. It comes back by itself. It has no violation of accessibility in any colours or width.
func TestRealPageInChromium(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	cluster, g := startGated(t)
	// A slow network has small responses, so that a restore gets on in steps.
	cluster.Intercept(func(r kmsg.Request) (kmsg.Response, error, bool) {
		fetch, ok := r.(*kmsg.FetchRequest)
		for i := 0; ok && g.perSecond.Load() > 0 && i < len(fetch.Topics); i++ {
			for j := range fetch.Topics[i].Partitions {
				fetch.Topics[i].Partitions[j].PartitionMaxBytes = 16 << 10
			}
		}
		return nil, nil, false
	}, kmsg.Fetch)
	w := &watched{world: newWorldOf(t, "trading", pageRoutes, cluster.ListenAddrs(), cluster.Admin(), false), browser: b, gate: g, addr: freeAddr(t)}
	w.address = "http://" + w.addr + "/"
	w.createTopics(nil, "orders.raw", "signals.raw")
	w.begin()

	w.askForToken()
	stop := w.traffic()
	w.await("the figures", func() bool { return w.text("#events-total") != "" && w.text("#events-total") != "0" })
	if os.Getenv("ONCEBUS_TEST_SCREENSHOTS") != "" {
		kept := time.Now().Add(time.Minute) // charts with a minute of traffic
		w.await("a minute of traffic", func() bool { return time.Now().After(kept) })
	}
	w.show("healthy", true)
	stop()
	w.showHold()
	w.compareWithMetrics()
	w.stopBroker()
	w.killProcess()
	w.checkQuiet(w.address)
	w.compareDemo()
}

// freeAddr returns an address that the process may listen at, also after a restart.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closes at once
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// begin starts the process.
func (w *watched) begin() {
	w.t().Helper()
	w.one = w.start("worker-1", "ADMIN_ADDR="+w.addr, "ADMIN_TOKEN="+pageToken)
}

func (w *watched) t() *testing.T { return w.world.t }

// show checks one state of the page in all colours and widths, and takes its pictures.
func (w *watched) show(state string, every bool) {
	w.t().Helper()
	for _, v := range []struct {
		name          string
		width, height int64
		scheme        string
		every         bool
	}{{"wide", 1280, 860, "light", true}, {"dark", 1280, 860, "dark", every}, {"narrow", 360, 740, "light", true}} {
		w.view(v.width, v.height, v.scheme)
		if !v.every && os.Getenv("ONCEBUS_TEST_SCREENSHOTS") == "" {
			continue
		}
		if state != "token" {
			w.screenshot(state + "-" + v.name)
		}
		w.checkWidth(state + ", " + v.name)
		w.checkAccess(state + ", " + v.name)
	}
	w.view(1280, 860, "light")
}

// askForToken opens the page, which shows nothing before it has the token.
func (w *watched) askForToken() {
	w.t().Helper()
	run(w.browser, chromedp.Navigate(w.address))
	w.awaitPill("token needed")
	if w.text("#live") != "" {
		w.t().Error("figures are shown without a token")
	}
	w.show("token", false)
	enter := func(token string) {
		run(w.browser, chromedp.SendKeys("#token-value", token+"\r"))
	}
	enter("wrong")
	w.await("the refusal", func() bool { return w.text("#token-wrong") == "That token was refused." })
	enter(pageToken)
	w.awaitPill("ready")
	if w.text("#token") != "" {
		w.t().Error("the page still asks for the token")
	}
}

// traffic sends records with duplicates and events without a key, until stop.
func (w *watched) traffic() (stop func()) {
	ctx, cancel := context.WithCancel(w.t().Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			w.produce(w.step(40 + w.rng.IntN(20))...)
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// step returns n records: most are new, one in five repeats one of the last thousand, some have no key.
func (w *watched) step(n int) []*kgo.Record {
	var records []*kgo.Record
	for range n {
		w.sent++
		id := w.sent
		if w.rng.IntN(5) == 0 {
			id = max(1, id-w.rng.IntN(1000))
		}
		r := &kgo.Record{Topic: w.topic("signals.raw"), Partition: int32(id % realPartitions), Value: fmt.Appendf(nil, `{"traceId":"t-%d","symbol":"AAPL"}`, id)}
		switch {
		case w.rng.IntN(300) == 0:
			r.Value = []byte(`{"symbol":"AAPL"}`)
		case id%3 == 0:
			r.Topic, r.Value = w.topic("orders.raw"), fmt.Appendf(nil, `{"account":"a-%d","order":"o-%d","quantity":1}`, id%50, id)
		}
		records = append(records, r)
	}
	return records
}

// showHold holds the input: the page says why, and how many records wait in the inputs.
func (w *watched) showHold() {
	w.t().Helper()
	command := func(args ...string) {
		if stdout, stderr, code := w.oncebus("", args...); code != cli.ExitStopped {
			w.t().Fatalf("oncebus %v: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
	w.drained([]string{"orders.raw", "signals.raw"}, []string{"orders.unique", "signals.unique", "dead-letter"})
	command("hold", "--reason", "a repair")
	w.produce(w.step(30)...)
	w.await("the hold and what waits", func() bool {
		return strings.Contains(w.text("#hold-text"), ": a repair.") && strings.HasSuffix(w.text("#inputs"), "30 in the inputs")
	})
	w.show("held", false)
	command("release")
	w.await("the end of the hold", func() bool { return w.text("#hold") == "" })
}

// number reads a figure as the page writes it.
func (w *watched) number(text string) float64 {
	w.t().Helper()
	n, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
	if err != nil {
		w.t().Errorf("%q is no figure", text)
	}
	return n
}

// metrics reads /metrics with the token.
func (w *watched) metrics() program.Metrics {
	w.t().Helper()
	m, err := program.ParseMetrics(w.fetch("/metrics"))
	if err != nil {
		w.t().Fatal(err)
	}
	return m
}

// compareWithMetrics waits until all records are judged, and compares each figure that does not change from then on.
func (w *watched) compareWithMetrics() {
	w.t().Helper()
	w.drained([]string{"orders.raw", "signals.raw"}, []string{"orders.unique", "signals.unique", "dead-letter"})
	w.await("all events on the page", func() bool { return w.text("#events-total") == grouped(w.sent) })
	events := w.metrics().Counts("oncebus_events_total")
	total, duplicates := 0, 0
	for series, n := range events {
		total += n
		if strings.HasSuffix(series, "/duplicate") {
			duplicates += n
		}
	}
	if total != w.sent || duplicates < w.sent/10 {
		w.t().Fatalf("%d records were sent, %d judged, %d of them duplicates", w.sent, total, duplicates)
	}
	if got := w.text("#duplicates-total"); got != grouped(duplicates) {
		w.t().Errorf("the page has %s duplicates, /metrics %d", got, duplicates)
	}
	w.await("no lag", func() bool { return w.text("#lag-records") == "0" })
	w.compareVerdicts(events)
	w.compareTasks(w.metrics())
	w.compareShadow()
	// The rates fall to 0 with the traffic, and the share is then that of all events.
	w.await("rates of an idle process", func() bool { return w.text("#events-rate") == "0" })
	if got, want := w.text("#share"), fmt.Sprintf("%.1f", 100*float64(duplicates)/float64(total)); got != want {
		w.t().Errorf("the share of duplicates is %s %%, want %s", got, want)
	}
	// /snapshot has the same, for scripts.
	s := snapshotOf[live.Snapshot](w.t(), w.fetch("/snapshot"))
	if s.Events.Total != float64(total) || s.Events.Duplicates != float64(duplicates) || !s.Ready || s.App != w.app || s.Role != live.RoleRun {
		w.t().Errorf("/snapshot has %+v", s.Events)
	}
}

// compareShadow compares the table of key rules on trial: by account, most orders are duplicates.
func (w *watched) compareShadow() {
	w.t().Helper()
	fates := w.metrics().Counts("oncebus_shadow_events")
	rows := w.table("shadows")
	if len(rows) != 1 || rows[0][0] != "orders" || w.text("#no-shadows") != "" {
		w.t().Fatalf("the page has the shadows %v, and says %q", rows, w.text("#no-shadows"))
	}
	for i, fate := range []string{"would_drop", "would_emit", "both_emit", "both_drop", "no_key"} {
		if got, want := w.number(rows[0][i+1]), fates[fate+"/orders"]; got != float64(want) {
			w.t().Errorf("%s: the page has %v, /metrics %d", fate, got, want)
		}
	}
	if fates["would_drop/orders"] == 0 || fates["both_emit/orders"] == 0 || fates["both_drop/orders"] == 0 {
		w.t().Errorf("the shadow has seen only %v", fates)
	}
}

// compareVerdicts compares the table of verdicts.
func (w *watched) compareVerdicts(events map[string]int) {
	w.t().Helper()
	head, compared := w.head("verdicts"), 0
	for _, row := range w.table("verdicts") {
		if row[0] == "all routes" {
			continue
		}
		for i, column := range head {
			if want, known := events[row[0]+"/"+strings.ReplaceAll(column, " ", "_")]; known {
				compared++
				if got := w.number(row[i]); got != float64(want) {
					w.t().Errorf("route %s has %v %s, /metrics %d", row[0], got, column, want)
				}
				delete(events, row[0]+"/"+strings.ReplaceAll(column, " ", "_"))
			}
		}
	}
	for series, n := range events {
		if n != 0 {
			w.t().Errorf("the page lacks the %d events of %s", n, series)
		}
	}
	if compared < 6 {
		w.t().Errorf("%d figures were compared, columns %q", compared, head)
	}
}

// compareTasks compares the table of tasks, and the transactions.
func (w *watched) compareTasks(m program.Metrics) {
	w.t().Helper()
	tasks := w.table("tasks")
	lag, keys := m.Counts("oncebus_task_lag_records"), 0.0
	for _, row := range tasks {
		topic, partition, _ := strings.Cut(row[0], "/")
		if want, known := lag[partition+"/"+topic]; !known || w.number(row[3]) != float64(want) || row[1] != "running" || !strings.HasPrefix(row[2], "worker-1 · dedup-") {
			w.t().Errorf("task %q, /metrics has a lag of %d", row, want)
		}
		keys += w.number(row[5])
	}
	if want := m.Sum("oncebus_keys"); len(tasks) != realPartitions || keys != want {
		w.t().Errorf("%d tasks with %v keys, /metrics has %v", len(tasks), keys, want)
	}
	w.await("all transactions on the page", func() bool {
		ended := map[string]float64{}
		for _, row := range w.table("commits") {
			ended[row[0]] = w.number(row[1])
		}
		want := map[string]float64{}
		for _, series := range w.metrics()["oncebus_commit_seconds"].GetMetric() {
			want[series.GetLabel()[0].GetValue()] = float64(series.GetHistogram().GetSampleCount())
		}
		return maps.Equal(ended, want)
	})
}

// grouped writes a number as the page does.
func grouped(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// stopBroker closes the broker's port. The page shows it, and that it is back.
func (w *watched) stopBroker() {
	w.t().Helper()
	w.gate.stop()
	w.t().Logf("the page showed the stopped broker after %v", w.awaitPill("Kafka is down"))
	if alarm := w.text("#alarm"); !strings.HasPrefix(alarm, "No broker responds.") {
		w.t().Errorf("the page says %q", alarm)
	}
	w.await("the warning in the log", func() bool {
		log := w.text("#log")
		return strings.Contains(log, "no broker responds") && strings.Contains(log, "ONCEBUS_BROKERS") && strings.Contains(log, "METRICS.md#oncebuskafkaunavailable")
	})
	w.show("broker-down", false)
	w.gate.start()
	w.t().Logf("the page showed the broker again after %v", w.awaitPill("ready"))
	if alarm := w.text("#alarm"); alarm != "" {
		w.t().Errorf("the page says %q", alarm)
	}
}

// killProcess kills the process and deletes its state. The page says that it is gone, and shows the restore of the next one over
// a slow network, without being loaded again.
func (w *watched) killProcess() {
	w.t().Helper()
	for range 20 { // enough rows for a restore that takes seconds
		w.produce(w.step(1000)...)
	}
	w.drained([]string{"orders.raw", "signals.raw"}, []string{"orders.unique", "signals.unique", "dead-letter"})
	evaluate[bool](w.browser, "window.loadedOnce = true")
	if err := w.one.Kill(); err != nil {
		w.t().Fatal(err)
	}
	w.t().Logf("the page showed the killed process after %v", w.awaitPill("disconnected"))
	if err := os.RemoveAll(w.stateDir("worker-1")); err != nil {
		w.t().Fatal(err)
	}
	w.gate.perSecond.Store(60 << 10)
	w.begin()
	least := 1 // restores with a remaining time
	if os.Getenv("ONCEBUS_TEST_SCREENSHOTS") != "" {
		least = realPartitions - 1
	}
	w.await("a restore with its remaining time", func() bool {
		restoring := slices.DeleteFunc(w.table("tasks"), func(row []string) bool {
			return !strings.HasPrefix(row[1], "restoring") || !strings.Contains(row[7], "records left") || !strings.Contains(row[7], "ready in")
		})
		return len(restoring) >= least
	})
	if got := w.text("#pill"); got != "not ready" && got != "Kafka is down" {
		w.t().Errorf("the page says %q while a task restores", got)
	}
	w.show("restoring", false)
	w.gate.perSecond.Store(0)
	w.awaitPill("ready")
	w.await("all tasks to run", func() bool { return w.text("#tasks-running") == strconv.Itoa(realPartitions) })
	if !evaluate[bool](w.browser, "window.loadedOnce === true") {
		w.t().Error("the page was loaded again")
	}
	if restored := w.metrics().Sum("oncebus_restored_rows_total"); restored < 12_000 {
		w.t().Errorf("%v rows were restored", restored)
	}
}
