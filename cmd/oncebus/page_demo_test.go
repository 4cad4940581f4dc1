//go:build unix

package main_test

import (
	"context"
	"net/http"
	"strings"

	"github.com/chromedp/chromedp"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest/program"

	main "oncebus/cmd/oncebus"
)

// compareDemo shows the page of a running demo. While its traffic runs, each figure lies between those of /metrics before and
// after it.
func (w *watched) compareDemo() {
	w.t().Helper()
	ctx, stop := context.WithCancel(w.t().Context())
	var stdout, stderr clitest.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- main.Commands().Run(ctx, []string{"demo", "--events", "1000", "--stay"}, cli.Process{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr})
	}()
	defer func() {
		stop()
		if code := <-ended; code != cli.ExitStopped {
			w.t().Errorf("the demo ended with %d: %s%s", code, stdout.String(), stderr.String())
		}
	}()
	var address string
	w.await("the address of the demo's page", func() bool {
		_, rest, found := strings.Cut(stderr.String(), "live page at ")
		address, _, _ = strings.Cut(rest, "\n")
		return found
	})
	w.await("the demo to go on sending", func() bool { return strings.Contains(stderr.String(), " records a second") })
	client := &http.Client{}
	defer client.CloseIdleConnections()
	events := func() map[string]int { // by route/verdict, of all processes of the demo
		_, body, err := clitest.Get(ctx, client, address+"metrics")
		if err != nil {
			w.t().Fatal(err)
		}
		m, err := program.ParseMetrics(body)
		if err != nil {
			w.t().Fatal(err)
		}
		sums := map[string]int{}
		for labels, n := range m.Counts("oncebus_events_total") {
			_, series, _ := strings.Cut(labels, "/") // without the process
			sums[series] += n
		}
		return sums
	}
	run(w.browser, chromedp.Navigate(address))
	var before, shown, after map[string]int
	w.await("traffic of the demo", func() bool {
		before = events()
		return before["signals/duplicate"] > 0 && before["webhooks/unique"] > 0
	})
	w.await("the events of before on the page", func() bool {
		shown = w.verdicts()
		after = events()
		for series, n := range before {
			if shown[series] < n {
				return false
			}
		}
		return true
	})
	for series, n := range shown {
		if n > after[series] {
			w.t().Errorf("the page has %d events of %s, /metrics had %d before and %d after", n, series, before[series], after[series])
		}
	}
}

// verdicts reads the table of verdicts: the number of events by route/verdict.
func (w *watched) verdicts() map[string]int {
	w.t().Helper()
	head, shown := w.head("verdicts"), map[string]int{}
	for _, row := range w.table("verdicts") {
		if row[0] == "all routes" {
			continue
		}
		for i := 3; i < len(row)-1 && i < len(head); i++ { // after the route, its rate and share; the last one is the sum
			shown[row[0]+"/"+strings.ReplaceAll(head[i], " ", "_")] = int(w.number(row[i]))
		}
	}
	return shown
}
