package processor

import (
	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup"
)

// shadowEvents exports how many events the shadows in force have examined, in the tasks of this process.
type shadowEvents struct {
	shared *shared
	desc   *prometheus.Desc
}

func newShadowEvents(s *shared) *shadowEvents {
	return &shadowEvents{shared: s, desc: prometheus.NewDesc("oncebus_shadow_events",
		"Events that a shadow key rule has looked at since it began, in the tasks of this process, by route and fate: both_emit, both_drop, would_drop (emitted, and a duplicate by the new rule), would_emit (the reverse) and no_key (it derives none). A gauge, as a task may move to another process. Of a sampled shadow they are those of the sampled keys, but no_key of all events.",
		[]string{"route", "fate"}, nil)}
}

// Describe implements prometheus.Collector.
func (s *shadowEvents) Describe(to chan<- *prometheus.Desc) { to <- s.desc }

// Collect implements prometheus.Collector.
func (s *shadowEvents) Collect(to chan<- prometheus.Metric) {
	e := s.shared.newest()
	if e == nil || !e.rt.HasShadows() {
		return
	}
	tasks := s.shared.board.allTasks()
	for _, r := range e.rt.Routes {
		if r.Shadow == nil {
			continue
		}
		for fate, n := range shadowFates(tasks, r.Shadow.NamespaceID) {
			to <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(n), r.Name, dedup.ShadowFate(fate).String())
		}
	}
}

// shadowFates returns how many events of a shadow's namespace had each fate, summed over tasks.
func shadowFates(tasks []TaskState, namespaceID uint8) (fates [dedup.ShadowFates]uint64) {
	for i := range tasks {
		for k := range tasks[i].Shadows {
			if c := &tasks[i].Shadows[k]; c.NamespaceID == namespaceID {
				for fate, n := range c.Fates {
					fates[fate] += n
				}
			}
		}
	}
	return fates
}
