package processor

import (
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/processor/app"
	"oncebus/processor/progress"
)

// InputState is a partition of an input that this process routes.
type InputState struct {
	Partition string `json:"partition"`   // topic/partition
	Lag       int64  `json:"lag_records"` // records not routed yet, also during a hold; -1 while not known

	id app.TaskID
}

// showInputs publishes on the board the lag of the inputs that a worker routes.
func (w *worker) showInputs(lags []progress.InputLag) {
	states := make([]InputState, 0, len(lags))
	for _, l := range lags {
		states = append(states, InputState{l.String(), l.Records, l.TaskID})
	}
	w.board.setInputs(w.name, states)
}

func (b *board) setInputs(worker string, inputs []InputState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inputs[worker] = inputs
}

// allInputs returns the inputs of all workers, sorted by partition. While a partition moves between two
// workers of the process, both may have published it; allInputs returns it once.
func (b *board) allInputs() (all []InputState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, inputs := range b.inputs {
		all = append(all, inputs...)
	}
	slices.SortFunc(all, func(a, b InputState) int { return strings.Compare(a.Partition, b.Partition) })
	return slices.CompactFunc(all, func(a, b InputState) bool { return a.id == b.id })
}

// heldTimes returns, for each namespace, how far stream time is behind in the task in which it is furthest
// behind.
func heldTimes(tasks []TaskState) (all []app.HeldTime) {
	for _, t := range tasks {
		for _, h := range t.held {
			all = app.AddHeldTime(all, h)
		}
	}
	slices.SortFunc(all, func(a, b app.HeldTime) int { return strings.Compare(a.Namespace, b.Namespace) })
	return all
}

// shownHeldTimes returns the namespaces whose stream time is behind by more than the grace.
func shownHeldTimes(tasks []TaskState) []app.HeldTime {
	return slices.DeleteFunc(heldTimes(tasks), func(h app.HeldTime) bool { return !h.Shows() })
}

// behind exports how far the inputs and the stream times are behind.
type behind struct {
	board             *board
	input, held, time *prometheus.Desc
}

func newBehind(b *board) *behind {
	return &behind{
		board: b,
		input: prometheus.NewDesc("oncebus_input_lag_records", "Records of an input partition that wait to be routed, also in a hold; -1 while not known.", []string{"topic", "partition"}, nil),
		held: prometheus.NewDesc("oncebus_stream_time_held_seconds", "How far the newest event of a namespace is ahead of its stream time, in event time: by so much the input that was read least far keeps rows. /state names it.",
			[]string{"namespace"}, nil),
		time: prometheus.NewDesc("oncebus_stream_time_timestamp_seconds", "Stream time of a namespace in the task that is furthest behind, in Unix time; 0 before the first one. It stands while an input is not read.",
			[]string{"namespace"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *behind) Describe(to chan<- *prometheus.Desc) {
	to <- c.input
	to <- c.held
	to <- c.time
}

// Collect implements prometheus.Collector.
func (c *behind) Collect(to chan<- prometheus.Metric) {
	for _, in := range c.board.allInputs() {
		to <- prometheus.MustNewConstMetric(c.input, prometheus.GaugeValue, float64(in.Lag), in.id.Topic, strconv.Itoa(int(in.id.Partition)))
	}
	for _, h := range heldTimes(c.board.unsortedTasks()) {
		to <- prometheus.MustNewConstMetric(c.held, prometheus.GaugeValue, float64(h.BehindMS)/1000, h.Namespace)
		to <- prometheus.MustNewConstMetric(c.time, prometheus.GaugeValue, float64(h.StreamTime)/1000, h.Namespace)
	}
}
