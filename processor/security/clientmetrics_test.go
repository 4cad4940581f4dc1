package security

import (
	"bytes"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
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
	ended := make(chan struct{}, 2)
	end := func(*kgo.Record, error) { ended <- struct{}{} }
	third.Produce(t.Context(), &kgo.Record{Topic: "d", Key: []byte("key"), Value: []byte("buffered"), Headers: []kgo.RecordHeader{{Key: "header", Value: []byte("one")}}}, end)
	third.Produce(t.Context(), &kgo.Record{Value: []byte("refused: it names no topic")}, end)
	<-ended
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
		"oncebus_kafka_buffered_produce_bytes":   float64(third.BufferedProduceBytes()),
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
	<-ended
	if got = figures(); got["oncebus_kafka_buffered_produce_records"] != 0 || got["oncebus_kafka_buffered_produce_bytes"] != 0 || got["oncebus_kafka_produce_records_total"] != 15 {
		t.Errorf("after all clients closed, %v records are buffered and %v produced, want 0 and 15",
			got["oncebus_kafka_buffered_produce_records"], got["oncebus_kafka_produce_records_total"])
	}
}

// TestScrapeWaitsForNoProducerID scrapes while a client asks for its producer id, which lasts for ever
// without a coordinator. The client has its own figures locked meanwhile. A scrape that read them would
// wait, and so would each client of the process that opens or closes.
func TestScrapeWaitsForNoProducerID(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	cluster.ControlKey(kmsg.InitProducerID.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		asked <- struct{}{}
		cluster.SleepControl(func() { <-answer })
		return nil, nil, false
	})
	reg := prometheus.NewRegistry()
	client, err := kgo.NewClient(ClientMetrics(reg, "dedup"), kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.TransactionalID("id"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	begun, scraped := make(chan error, 1), make(chan error, 1)
	go func() { begun <- client.BeginTransaction() }()
	<-asked
	go func() {
		_, err := reg.Gather()
		scraped <- err
	}()
	for stacks := new(bytes.Buffer); len(scraped) == 0; stacks.Reset() {
		if err := pprof.Lookup("goroutine").WriteTo(stacks, 1); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(stacks.String(), "kgo.(*Client).BufferedProduce") {
			t.Error("the scrape waits for the client")
			break
		}
	}
	close(answer)
	if err := <-scraped; err != nil {
		t.Error(err)
	}
	if err := <-begun; err != nil {
		t.Error(err)
	}
}

// BenchmarkProducedRecord is what the hooks cost for each produced record, also without memory.
func BenchmarkProducedRecord(b *testing.B) {
	hooks := newClientHooks(prometheus.NewRegistry(), "dedup")
	r := &kgo.Record{Key: make([]byte, 32), Value: make([]byte, 512), Headers: make([]kgo.RecordHeader, 4)}
	b.ReportAllocs()
	for b.Loop() {
		hooks.OnProduceRecordBuffered(r)
		hooks.OnProduceRecordUnbuffered(r, nil)
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
