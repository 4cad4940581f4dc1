package security

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestClientMetricsOutliveTheirClients: a worker replaces its client after an error, and several
// workers have one kind. Their series go on, and none is registered twice.
func TestClientMetricsOutliveTheirClients(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(1, "a", "b", "c", "d"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	reg := prometheus.NewRegistry()
	counted, other := ClientMetrics(reg, "dedup"), ClientMetrics(reg, ClientProcess)
	connect := func(opts ...kgo.Opt) *kgo.Client {
		client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(cluster.ListenAddrs()...))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		return client
	}
	produce := func(client *kgo.Client, topics ...string) {
		for _, topic := range topics {
			if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("value")}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	figures := func() map[string]float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		sums := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "client" && l.GetValue() == "dedup" {
						sums[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
					}
				}
			}
		}
		return sums
	}

	first, second := connect(counted), connect(counted)
	produce(first, "a", "b")
	produce(second, "c")
	first.Close()
	third := connect(counted, kgo.ConsumeTopics("a"), kgo.ManualFlushing())
	produce(connect(other), "d")
	third.Produce(t.Context(), &kgo.Record{Topic: "d", Value: []byte("buffered")}, nil)
	for polled := 0; polled == 0; {
		fetches := third.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		polled = fetches.NumRecords()
	}
	got := figures()
	for name, want := range map[string]float64{
		"oncebus_kafka_produce_records_total":    3,
		"oncebus_kafka_produce_batches_total":    3,
		"oncebus_kafka_fetch_records_total":      1,
		"oncebus_kafka_buffered_produce_records": 1, // of the third client
		"oncebus_kafka_buffered_produce_bytes":   float64(len("buffered")),
		"oncebus_kafka_buffered_fetch_records":   0,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	for _, name := range []string{"oncebus_kafka_connects_total", "oncebus_kafka_write_bytes_total", "oncebus_kafka_read_bytes_total", "oncebus_kafka_fetch_compressed_bytes_total"} {
		if got[name] <= 0 {
			t.Errorf("%s is %v, want more than 0", name, got[name])
		}
	}
	for range 3 {
		client := connect(counted)
		produce(client, "a", "b", "c", "d")
		client.Close()
	}
	// Eight counters are by broker, and a client names each seed as a broker. Twelve are not.
	if n := testutil.CollectAndCount(reg); n > 2*(12+8*(3+3)) {
		t.Errorf("%d series of two kinds, which six clients with three brokers had", n)
	}
	second.Close()
	third.Close()
	if got = figures(); got["oncebus_kafka_buffered_produce_records"] != 0 || got["oncebus_kafka_produce_records_total"] != 15 {
		t.Errorf("after all clients closed, %v records are buffered and %v produced, want 0 and 15",
			got["oncebus_kafka_buffered_produce_records"], got["oncebus_kafka_produce_records_total"])
	}
}

// BenchmarkClientMetrics is what one produce request with one batch costs, as its hooks run.
func BenchmarkClientMetrics(b *testing.B) {
	hooks, broker := newClientHooks(prometheus.NewRegistry(), "dedup"), kgo.BrokerMetadata{NodeID: 1}
	for b.Loop() {
		hooks.OnProduceBatchWritten(broker, "topic", 0, kgo.ProduceBatchMetrics{NumRecords: 500, UncompressedBytes: 1 << 16, CompressedBytes: 1 << 14})
		hooks.OnBrokerE2E(broker, 0, kgo.BrokerE2E{BytesWritten: 1 << 14, BytesRead: 64})
	}
}
