package processor

import (
	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup/sketch"
)

// shownSenders is the number of senders of a route that have a series of their own. Without a limit a client
// that makes up sender names could create any number of series.
const shownSenders = 10

// Labels of the series for all other senders, and for events without a sender.
const (
	otherSenders = "other"
	noSender     = "none"
)

// senderCounts exports the duplicates by sender in the tasks of this process.
type senderCounts struct {
	board *board
	desc  *prometheus.Desc
}

func newSenderCounts(b *board) *senderCounts {
	return &senderCounts{board: b, desc: prometheus.NewDesc("oncebus_sender_duplicates",
		"Duplicates by route and sender since the app began, in the tasks of this process: the ten senders with most, and `other`. `none` are events without a sender. A gauge, as a task may move to another process. A count may be too high, by at most a 128th of the route's duplicates (more where over 16 routes have sender).",
		[]string{"route", "sender"}, nil)}
}

// Describe implements prometheus.Collector.
func (s *senderCounts) Describe(to chan<- *prometheus.Desc) { to <- s.desc }

// Collect implements prometheus.Collector.
func (s *senderCounts) Collect(to chan<- prometheus.Metric) {
	all := map[string]sketch.Summary{}
	for _, t := range s.board.allTasks() {
		for _, one := range t.Senders {
			all[one.Route] = sketch.Merge(all[one.Route], one.Summary)
		}
	}
	for route, one := range all {
		rest := one.Total
		for _, c := range one.Top(shownSenders) {
			rest -= min(rest, c.Count)
			to <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(c.Count), route, senderLabel(c.Name))
		}
		to <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(rest), route, otherSenders)
	}
}

// senderLabel returns the label value of a sender. If the name of a sender equals one of the two label values
// above, senderLabel puts a backslash in front of it. The result is no other sender's name, because
// rules.AppendSender doubles each backslash of a name.
func senderLabel(name string) string {
	switch name {
	case "":
		return noSender
	case noSender, otherSenders:
		return `\=` + name
	}
	return name
}
