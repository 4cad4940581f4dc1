package processor

import "github.com/prometheus/client_golang/prometheus"

// keyCounts shows what the process's tasks remember, as metrics: the sums of
// what they last published.
type keyCounts struct {
	snapshot              *snapshot
	total, active, oldest *prometheus.Desc
}

func newKeyCounts(s *snapshot) *keyCounts {
	return &keyCounts{
		snapshot: s,
		total: prometheus.NewDesc("oncebus_keys", "Stored keys, by namespace and status of their rows, in the tasks of this process. The other rows of oncebus_state_rows are evicted, overwritten or freed.",
			[]string{"namespace", "status"}, nil),
		active: prometheus.NewDesc("oncebus_keys_active", "Keys of oncebus_keys whose window is not over in stream time. The others are expired: stored for late events.",
			[]string{"namespace", "status"}, nil),
		oldest: prometheus.NewDesc("oncebus_keys_oldest_seconds", "Age of the oldest of these keys in event time. After keys were freed it may be a 64th of their retention too high.",
			[]string{"namespace", "status"}, nil),
	}
}

// Describe names the metrics.
func (k *keyCounts) Describe(to chan<- *prometheus.Desc) {
	to <- k.total
	to <- k.active
	to <- k.oldest
}

// Collect adds up what the tasks published.
func (k *keyCounts) Collect(to chan<- prometheus.Metric) {
	type labels struct{ namespace, status string }
	total, active, oldest := map[labels]float64{}, map[labels]float64{}, map[labels]float64{}
	for _, t := range k.snapshot.allTasks() {
		for _, count := range t.Keys {
			at := labels{count.Namespace, count.Status}
			total[at] += float64(count.Total)
			active[at] += float64(count.Active)
			oldest[at] = max(oldest[at], float64(count.OldestMS)/1000)
		}
	}
	for at, n := range total {
		to <- prometheus.MustNewConstMetric(k.total, prometheus.GaugeValue, n, at.namespace, at.status)
		to <- prometheus.MustNewConstMetric(k.active, prometheus.GaugeValue, active[at], at.namespace, at.status)
		to <- prometheus.MustNewConstMetric(k.oldest, prometheus.GaugeValue, oldest[at], at.namespace, at.status)
	}
}
