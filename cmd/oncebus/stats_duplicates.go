package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/routesets"
	"oncebus/dedup/sketch"
	"oncebus/processor/app"
	"oncebus/processor/front"
)

// topSenders is how many senders of a route the command shows.
const topSenders = 10

// daysMax is how many days the command shows at most: the app keeps no more.
const daysMax = 35

// routeDuplicates has the duplicates of a route, summed over all tasks. Its JSON names are an interface.
type routeDuplicates struct {
	Route string `json:"route"`
	// Days are the newest UTC days (in broker time) that had duplicates, in ascending order.
	Days []app.DayCount `json:"days"`
	// Delays counts the duplicates since the app began by their delay, in ascending order of the delay.
	Delays []shownDelay `json:"delays"`
	// Senders is absent if the route does not have the field sender.
	Senders *shownSenders `json:"senders,omitempty"`
}

// shownDelay is the number of duplicates whose event time is within a delay after the event time of the first
// event.
type shownDelay struct {
	// UpToSeconds is the upper bound of the delay; null for delays above all bounds.
	UpToSeconds *float64 `json:"up_to_seconds"`
	Duplicates  uint64   `json:"duplicates"`
}

// shownSenders has the senders of a route's duplicates, counted since the route has the field sender.
type shownSenders struct {
	Duplicates uint64 `json:"duplicates"` // of all senders
	// Top are the senders with the most duplicates; Other has the duplicates of all other senders.
	Top   []senderCount `json:"top"`
	Other uint64        `json:"other"`
	// MissingMax is how many duplicates a sender that is not counted individually can have at most.
	MissingMax uint64 `json:"missing_max"`
}

// senderCount is how many duplicates a sender has had. The true number is at most Duplicates and at least
// Duplicates minus Error.
type senderCount struct {
	Sender     string `json:"sender"` // "" stands for events without a sender
	Duplicates uint64 `json:"duplicates"`
	Error      uint64 `json:"error"`
}

// sumDuplicates sums the duplicates of all tasks. It keeps the last days of each route.
func sumDuplicates(tasks []front.TaskKeys, days int) []routeDuplicates {
	all := make([][]app.RouteDuplicates, len(tasks))
	for i := range tasks {
		all[i] = tasks[i].Duplicates
	}
	shown := []routeDuplicates{}
	for _, one := range app.SumDuplicates(all...) {
		route := routeDuplicates{Route: one.Route, Days: one.Days[max(0, len(one.Days)-days):], Senders: showSenders(&one.Senders)}
		for i, n := range one.Delays {
			if n == 0 {
				continue
			}
			delay := shownDelay{Duplicates: n}
			if i < len(app.DelayBounds) {
				delay.UpToSeconds = &app.DelayBounds[i]
			}
			route.Delays = append(route.Delays, delay)
		}
		shown = append(shown, route)
	}
	return shown
}

// showSenders returns the senders of a route with the most duplicates; nil if there are none.
func showSenders(all *sketch.Summary) *shownSenders {
	if all.Total == 0 {
		return nil
	}
	shown := &shownSenders{Duplicates: all.Total, Other: all.Total, MissingMax: all.Missing()}
	for _, c := range all.Top(topSenders) {
		shown.Top = append(shown.Top, senderCount{c.Name, c.Count, c.Error})
		shown.Other -= min(shown.Other, c.Count)
	}
	return shown
}

// writeDuplicates prints the duplicates of all routes as tables.
func writeDuplicates(to io.Writer, all []routeDuplicates) error {
	if len(all) == 0 {
		return nil
	}
	tw := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	cli.Printf(tw, "\nroute\tday\tduplicates\n")
	for i := range all {
		for _, day := range all[i].Days {
			cli.Printf(tw, "%s\t%s\t%d\n", all[i].Route, day.Day, day.Duplicates)
		}
	}
	cli.Printf(tw, "\nroute\tdelay\tduplicates\n")
	for i := range all {
		for _, delay := range all[i].Delays {
			cli.Printf(tw, "%s\t%s\t%d\n", all[i].Route, delay.text(), delay.Duplicates)
		}
	}
	writeSenders(tw, all)
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write standard output: %w", err)
	}
	return nil
}

// writeSenders prints the senders of the routes that have the field sender.
func writeSenders(to io.Writer, all []routeDuplicates) {
	head := "\nroute\tsender\tduplicates\terror\tshare\n"
	for i := range all {
		s := all[i].Senders
		if s == nil {
			continue
		}
		cli.Printf(to, "%s", head)
		head = ""
		share := func(n uint64) string {
			return strconv.FormatFloat(100*float64(n)/float64(s.Duplicates), 'f', 2, 64) + " %"
		}
		for _, c := range s.Top {
			name := c.Sender
			if name == "" {
				name = "(none)"
			}
			cli.Printf(to, "%s\t%s\t%d\t%d\t%s\n", all[i].Route, name, c.Duplicates, c.Error, share(c.Duplicates))
		}
		cli.Printf(to, "%s\t(others)\t%d\t\t%s\n", all[i].Route, s.Other, share(s.Other))
	}
}

func (d *shownDelay) text() string {
	if d.UpToSeconds == nil {
		return "longer"
	}
	return "up to " + routesets.Short(time.Duration(*d.UpToSeconds*float64(time.Second)))
}
