package processor

import "github.com/prometheus/client_golang/prometheus"

// keyCounts shows what the process's tasks remember, as metrics: the sums of
// what they last published.
type keyCounts struct {
	snapshot     *snapshot
	live, oldest *prometheus.Desc
}

func newKeyCounts(s *snapshot) *keyCounts {
	return &keyCounts{
		snapshot: s,
		live: prometheus.NewDesc("oncebus_keys", "Keys that count, by namespace and status of their rows, in the tasks of this process; the others in oncebus_state_rows are out of time, overwritten or freed.",
			[]string{"namespace", "status"}, nil),
		oldest: prometheus.NewDesc("oncebus_keys_oldest_seconds", "Age of the oldest of these keys in event time; up to a 64th of its retention too much after keys were freed.",
			[]string{"namespace", "status"}, nil),
	}
}

// Describe names the metrics.
func (k *keyCounts) Describe(to chan<- *prometheus.Desc) {
	to <- k.live
	to <- k.oldest
}

// Collect adds up what the tasks published.
func (k *keyCounts) Collect(to chan<- prometheus.Metric) {
	type labels struct{ namespace, status string }
	live, oldest := map[labels]float64{}, map[labels]float64{}
	for _, t := range k.snapshot.allTasks() {
		for _, count := range t.Keys {
			at := labels{count.Namespace, count.Status}
			live[at] += float64(count.Live)
			oldest[at] = max(oldest[at], float64(count.OldestMS)/1000)
		}
	}
	for at, n := range live {
		to <- prometheus.MustNewConstMetric(k.live, prometheus.GaugeValue, n, at.namespace, at.status)
		to <- prometheus.MustNewConstMetric(k.oldest, prometheus.GaugeValue, oldest[at], at.namespace, at.status)
	}
}
