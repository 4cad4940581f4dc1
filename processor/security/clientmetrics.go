package security

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kprom"
)

// Kinds of Kafka clients besides the stages of the workers: values of the label client.
const (
	ClientProcess = "process" // setup, restores, probes and deletions of the process
	ClientIngress = "ingress" // producer and reader of the HTTP ingress
)

// ClientMetrics registers the metrics of one kind of Kafka clients, and returns the option that clients of the
// kind need. All clients of a kind share the series. Therefore a client that replaces another client continues
// its counts, and the number of series depends on kinds and brokers, not on workers and topics. franz-go calls
// the hooks for each request and each batch, and the hooks that count buffered records for each produced
// record.
func ClientMetrics(reg prometheus.Registerer, kind string) kgo.Opt {
	return kgo.WithHooks(newClientHooks(reg, kind))
}

func newClientHooks(reg prometheus.Registerer, kind string) *clientHooks {
	reg = prometheus.WrapRegistererWith(prometheus.Labels{"client": kind}, reg)
	h := &clientHooks{
		Metrics: kprom.NewMetrics("oncebus",
			kprom.Subsystem("kafka"),
			kprom.Registerer(vectors{reg}),
			kprom.FetchAndProduceDetail(kprom.Batches, kprom.Records, kprom.CompressedBytes, kprom.UncompressedBytes, kprom.ConsistentNaming),
		),
		clients: map[*kgo.Client]bool{},
		throttled: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_kafka_throttled_seconds_total",
			Help: "Time for which brokers throttled requests because of a quota, by client and broker. Raise the quota if it rises."}, []string{"node_id"}),
	}
	h.Metrics.OnNewClient(nil) // makes the vectors; only the gauges, which vectors leaves out, need a client
	reg.MustRegister(h.throttled,
		difference("oncebus_kafka_buffered_produce_records", "Records that the clients have buffered and brokers have not acknowledged.", &h.buffered.records, &h.unbuffered.records),
		difference("oncebus_kafka_buffered_produce_bytes", "Size of the keys, values and headers of the records that the clients have buffered and brokers have not acknowledged.", &h.buffered.bytes, &h.unbuffered.bytes),
		h.sum("oncebus_kafka_buffered_fetch_records", "Records that the clients have fetched and the process has not polled.", (*kgo.Client).BufferedFetchRecords),
		h.sum("oncebus_kafka_buffered_fetch_bytes", "Size of the records that the clients have fetched and the process has not polled.", (*kgo.Client).BufferedFetchBytes))
	return h
}

// vectors registers only kprom's counters by broker. It leaves out kprom's gauges, because each gauge shows
// only a single client; kprom's histograms are off.
type vectors struct{ prometheus.Registerer }

// MustRegister implements prometheus.Registerer.
func (v vectors) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if counters, ok := c.(*prometheus.CounterVec); ok {
			v.Registerer.MustRegister(counters)
		}
	}
}

// clientHooks counts what the clients of one kind do. kprom counts everything except the buffers and throttling
// of the clients.
type clientHooks struct {
	*kprom.Metrics
	throttled *prometheus.CounterVec

	// buffered counts the records that the clients have ever buffered to produce, and unbuffered the records
	// that have left the buffers since. The figures that a client itself offers are not used: to read them
	// needs a lock, which the client holds while it asks for a producer id. If there is no coordinator, that
	// lasts for ever.
	buffered, unbuffered tally

	mu      sync.Mutex
	clients map[*kgo.Client]bool // the open clients
}

// OnNewClient implements kgo.HookNewClient.
func (h *clientHooks) OnNewClient(client *kgo.Client) {
	h.mu.Lock()
	h.clients[client] = true
	h.mu.Unlock()
}

// OnClientClosed implements kgo.HookClientClosed.
func (h *clientHooks) OnClientClosed(client *kgo.Client) {
	h.mu.Lock()
	delete(h.clients, client)
	h.mu.Unlock()
}

// OnBrokerThrottle implements kgo.HookBrokerThrottle.
func (h *clientHooks) OnBrokerThrottle(broker kgo.BrokerMetadata, interval time.Duration, _ bool) {
	h.throttled.WithLabelValues(kgo.NodeName(broker.NodeID)).Add(interval.Seconds())
}

// OnProduceRecordBuffered implements kgo.HookProduceRecordBuffered.
func (h *clientHooks) OnProduceRecordBuffered(r *kgo.Record) {
	h.buffered.add(r)
}

// OnProduceRecordUnbuffered implements kgo.HookProduceRecordUnbuffered. The client calls it once for each
// record that it has given to OnProduceRecordBuffered, before it calls the record's promise.
func (h *clientHooks) OnProduceRecordUnbuffered(r *kgo.Record, _ error) {
	h.unbuffered.add(r)
}

// A tally counts records and their bytes. It is padded so that it shares no cache line with another tally.
// Different goroutines count the buffered and the finished records: if both tallies were in one cache line,
// counting a record would take five times as long.
type tally struct {
	_              [128]byte
	records, bytes atomic.Int64
	_              [112]byte
}

// add counts a record, with the size that kgo.MaxBufferedBytes counts for it.
func (t *tally) add(r *kgo.Record) {
	size := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		size += len(h.Key) + len(h.Value)
	}
	t.records.Add(1)
	t.bytes.Add(int64(size))
}

// difference returns a gauge with the value of added minus removed.
func difference(name, help string, added, removed *atomic.Int64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		gone := removed.Load() // read first: what is removed was added before, so the difference is never negative
		return float64(added.Load() - gone)
	})
}

// sum returns a gauge with the sum of a figure over the open clients. The function of must not wait for a lock,
// because a scrape of the metrics would then wait, too.
func (h *clientHooks) sum(name, help string, of func(*kgo.Client) int64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() (sum float64) {
		h.mu.Lock()
		open := slices.Collect(maps.Keys(h.clients)) // copied: a client that waits must not keep another client from opening
		h.mu.Unlock()
		for _, client := range open {
			sum += float64(of(client))
		}
		return sum
	})
}
