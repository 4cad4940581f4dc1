package front

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
	"oncebus/processor/wire"
)

const (
	// probeInterval is the time between two probes of the brokers, and probeTimeout the limit of a probe. Their
	// sum is the longest time after which the client notices that brokers no longer respond, or respond again.
	probeInterval, probeTimeout = 500 * time.Millisecond, 2 * time.Second
	// recordsMax and bytesMax limit the records that wait for Kafka. buffer immediately refuses more.
	recordsMax, bytesMax = 16_384, 64 << 20
	// renewPause is the least time between two replacements of the producer.
	renewPause = time.Second
)

// IngressClient produces the events of HTTP requests, and waits for the verdicts on them. It derives the dedup
// key, and writes an event with a key to the partition of its task, with a return address. It reads the verdict
// from its partition of <app>-verdicts, read_committed. Its only durable state are the events that it keeps on
// disk while Kafka is unavailable (KeepIn). After a crash, senders repeat their requests; if Kafka already has
// the event of such a request, the repeated event is a duplicate.
//
// It is safe for concurrent use.
type IngressClient struct {
	cfg      app.Config
	routes   *rules.Routes
	log      *slog.Logger
	redact   *security.Redactor
	patience time.Duration // how long the client retries after a broker rejected its credentials
	// RecordsMax and BytesMax limit how many events may wait for Kafka, and their total size in bytes. Beyond
	// these limits the client refuses events.
	RecordsMax, BytesMax int
	baseOptions          []kgo.Opt

	number   uint64 // contained in every return address of this process; never 0
	inFlight *waiters
	gone     goneRequests
	buffer   *buffer
	kept     *kept // nil without KeepIn, or if nothing is to be kept
	// derivers has one deriver for each event that may be parsed at a time. There are as many as CPUs, because
	// parsing only takes CPU time, and because the names of a large event take memory.
	derivers chan *rules.Deriver
	seconds  prometheus.Histogram // of a key derivation
	holds    *app.Holds
	spread   atomic.Uint32 // next partition number of an event without a key

	brokers      reachability
	reached      atomic.Bool                 // whether a broker has responded since the app is known
	acknowledged atomic.Int64                // when a broker last acknowledged a record, in Unix ns
	at           atomic.Pointer[clientState] // nil until the app is known
	sender       atomic.Pointer[kgo.Client]  // nil while events are refused
	large        atomic.Pointer[largeSender] // of sender
	broken       chan produceFailure         // holds at most one failure that renew has not handled yet
	done         chan struct{}               // closed when Run returns
}

// clientState has the facts about the app that an IngressClient uses while it serves.
type clientState struct {
	rt *app.App
	// partition is the partition of the verdicts topic that this client reads.
	partition int32
	id        [16]byte // topic id of the verdicts topic
	next      int64    // offset to read next; only Run's goroutine uses it
}

// NewIngressClient checks the settings and returns a client that has not connected yet. It registers the
// metrics of the client's credentials, Kafka clients and key derivations with reg. It appends extra to the
// options of every Kafka client.
func NewIngressClient(cfg app.Config, routes *rules.Routes, reg prometheus.Registerer, log *slog.Logger, extra ...kgo.Opt) (*IngressClient, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := cfg.CheckSecret(routes.NeedsSecret()); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(routes.Routes, func(r *rules.Route) bool { return r.HTTP != nil }) {
		return nil, errors.New("no route has an http part, so the ingress has no endpoint: add one to the routes file")
	}
	redact := security.NewRedactor(cfg.Config)
	log = slog.New(redact.Handler(log.Handler()))
	opts, err := security.ClientOptions(cfg.Config, reg, log, redact)
	if err != nil {
		return nil, err
	}
	f := &IngressClient{
		cfg: cfg, routes: routes, log: log, redact: redact, patience: security.CredentialsPatience, RecordsMax: recordsMax, BytesMax: bytesMax,
		buffer: newBuffer(routes), holds: app.NewHolds(), baseOptions: append(append(opts, append(cfg.FetchOptions(), security.ClientMetrics(reg, security.ClientIngress))...), extra...),
		broken: make(chan produceFailure, 1), done: make(chan struct{}), seconds: app.KeySeconds(reg),
	}
	f.derivers = make(chan *rules.Deriver, runtime.GOMAXPROCS(0))
	for range cap(f.derivers) {
		f.derivers <- cfg.NewDeriver(routes)
	}
	f.brokers = reachability{err: errors.New("not connected yet"), changed: make(chan struct{})}
	for f.number == 0 {
		var drawn [8 + 32]byte // the client's number, then the seed of the request ids
		if _, err := rand.Read(drawn[:]); err != nil {
			return nil, fmt.Errorf("generate the number of the ingress client: %w", err)
		}
		f.number = binary.LittleEndian.Uint64(drawn[:])
		f.inFlight = newWaiters([32]byte(drawn[8:]))
	}
	return f, nil
}

// Run connects, waits until the app's manifest and topics exist, and reads verdicts until ctx is done. Then it
// returns nil, and waiting requests get ErrNoVerdict. It returns an error only if an operator must act: the
// routes file contradicts the app, or the brokers reject the credentials. Run can be called once.
func (f *IngressClient) Run(ctx context.Context) error {
	defer close(f.done)
	defer f.kept.close(f.log)
	return f.redact.Err(security.ExplainCredentials(f.run(ctx), f.cfg.SASL))
}

// run opens the app and serves it, again and again, until ctx is done or an error needs an operator.
func (f *IngressClient) run(ctx context.Context) error {
	f.buffer.recordsMax, f.buffer.bytesMax = int64(f.RecordsMax), int64(f.BytesMax)
	var before *clientState
	for ctx.Err() == nil {
		at, err := f.open(ctx, before)
		if err != nil {
			return err
		}
		if at == nil {
			break // ctx is done
		}
		if err := f.serve(ctx, at); err != nil {
			if kafka.Classify(err) == kafka.Stop || security.CredentialsRefused(err) {
				return err
			}
			f.log.Warn("ingress client failed, retrying", "error", err)
			_ = kafka.Pause(ctx, renewPause) // the loop checks ctx
		}
		before = at
	}
	return nil
}

// Ready returns why the client refuses events; nil if it accepts them.
func (f *IngressClient) Ready() error {
	err, _ := f.brokers.get()
	return err
}

// reachability says whether the brokers respond.
type reachability struct {
	mu      sync.Mutex
	err     error         // why the brokers do not respond; nil if they do
	changed chan struct{} // closed when err changes
}

// set stores why Kafka is unreachable (nil if it is reachable), and reports whether that has changed.
func (b *reachability) set(err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if (err == nil) == (b.err == nil) && (err == nil || err.Error() == b.err.Error()) {
		return false
	}
	b.err = err
	close(b.changed)
	b.changed = make(chan struct{})
	return true
}

// get returns why Kafka is unreachable, and a channel that is closed when this changes.
func (b *reachability) get() (error, <-chan struct{}) { //nolint:revive,staticcheck // the error is the state, not a failure
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err, b.changed
}

// open waits until the app exists, and reads it. It returns nil if ctx is done before.
func (f *IngressClient) open(ctx context.Context, before *clientState) (*clientState, error) {
	client, err := kgo.NewClient(f.baseOptions...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	defer client.Close()
	for {
		at, err := f.openOnce(ctx, client, before)
		switch {
		case ctx.Err() != nil:
			return nil, nil
		case err == nil:
			return at, nil
		case kafka.Classify(err) == kafka.Stop, security.CredentialsRefused(err):
			return nil, err
		}
		if f.brokers.set(err) {
			f.log.Warn("ingress client not ready, retrying", "error", security.ExplainCredentials(err, f.cfg.SASL))
		}
		if kafka.Pause(ctx, probeInterval) != nil {
			return nil, nil
		}
	}
}

// errMissing says that a topic, the manifest or a route of the app does not exist.
var errMissing = errors.New("missing")

// openOnce reads the app, compares it with the routes file, and returns what the client needs to serve. before
// is the state with which the client served last; nil at first. If the client still reads the same partition of
// the verdicts topic, it continues at its position there.
func (f *IngressClient) openOnce(ctx context.Context, client *kgo.Client, before *clientState) (*clientState, error) {
	app, err := app.Find(ctx, client, f.cfg.AppID, f.routes)
	if err != nil {
		return nil, err
	}
	t := app.Topology
	if before != nil {
		if err := kafka.SameCluster(t.Cluster, before.rt.Topology.Cluster); err != nil {
			return nil, err
		}
	}
	t.BatchMax = f.cfg.BatchBytesMax()
	if missing := app.MissingTopics(); len(missing) > 0 {
		return nil, fmt.Errorf("topic %s of app %s is %w: start `oncebus run` with this routes file", missing[0], t.App, errMissing)
	}
	if app.Manifest == nil {
		return nil, fmt.Errorf("the manifest in %s is %w: start `oncebus run`", t.Manifest, errMissing)
	}
	unknown := app.Unknown() // before Check, which adds these routes to the manifest of an app without route sets
	if err := app.Check(f.cfg.KeySecret.Bytes()); err != nil {
		return nil, err
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("route %s is %w in app %s: put this routes file in force with `oncebus apply`, or start `oncebus run` with it", unknown[0], errMissing, t.App)
	}
	if t.Verdicts == "" {
		return nil, fmt.Errorf("the http part of the routes is %w in app %s: put this routes file in force with `oncebus apply`, or start `oncebus run` with it", errMissing, t.App)
	}
	changed, err := app.CheckInForce(f.cfg.KeySecret.Bytes())
	if err != nil {
		return nil, err
	}
	if changed {
		return nil, fmt.Errorf("the manifest in %[2]s is %[1]w a route of this routes file: start `oncebus run` with it", errMissing, t.Manifest)
	}
	if err := f.holds.Read(ctx, client, t); err != nil {
		return nil, err
	}
	at := &clientState{rt: app.App(), id: t.Topics[t.Verdicts].ID}
	if err := f.checkQueryLevel(at.rt); err != nil {
		return nil, err
	}
	if _, err := f.readLimits(ctx, client, at); err != nil {
		return nil, err
	}
	if before == nil {
		f.compareBodies(at)
	}
	at.partition = partitionOfInstance(f.cfg.InstanceID, t.Topics[t.Verdicts].Partitions)
	if before != nil && before.id == at.id && before.partition == at.partition {
		at.next = before.next // keep the position: verdicts may have been written in between
		return at, nil
	}
	_, at.next, err = kafka.NewReader(client, t.Verdicts, at.id, at.partition).ListBounds(ctx)
	return at, err
}

// partitionOfInstance returns the partition of the verdicts topic that an instance reads. Two instances may
// read the same partition: each skips the verdicts for the other instance.
func partitionOfInstance(instance string, partitions int32) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(instance)) // never fails
	return int32(h.Sum32() % uint32(partitions))
}

// serve accepts events and reads verdicts until ctx is done or the reader fails.
func (f *IngressClient) serve(ctx context.Context, at *clientState) error {
	reader, err := kgo.NewClient(append(slices.Clone(f.baseOptions),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{at.rt.Topology.Verdicts: {at.partition: kgo.NewOffset().At(at.next)}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(kafka.FetchMaxWait),
		// If Kafka lost records, the reader's offset is out of range. The reader then starts a minute back,
		// which is enough, because no request waits longer for its verdict.
		kgo.ConsumeResetOffset(kgo.RewindOffset(time.Minute)))...)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	defer reader.Close()
	sender, err := f.newSender(at)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	f.large.Store(newLargeSender())
	f.sender.Store(sender)
	f.at.Store(at)
	helpersCtx, stop := context.WithCancelCause(ctx)
	var helpers sync.WaitGroup
	helpers.Go(func() { f.probe(helpersCtx, reader, at.rt.Topology.Cluster, stop) })
	helpers.Go(func() { f.renew(helpersCtx, reader, at, stop) })
	helpers.Go(func() {
		f.holds.Follow(helpersCtx, reader, at.rt.Topology, probeInterval, func(err error) { f.log.Debug("read the manifest topic failed, retrying", "error", err) })
	})
	if f.kept != nil {
		helpers.Go(func() { f.deliverKept(helpersCtx, at) })
	}
	err = f.read(helpersCtx, reader, at)
	stop(nil)
	helpers.Wait()
	f.brokers.set(cmp.Or(err, errStopping))
	f.sender.Swap(nil).Close()
	f.large.Load().close()
	return err
}

var errStopping = errors.New("stopping")

// newSender returns the idempotent producer, which needs acks of all in-sync replicas. It does not linger:
// events that arrive during a produce request share the next request, so batches grow with the load and no
// event waits for a batch.
func (f *IngressClient) newSender(at *clientState) (*kgo.Client, error) {
	return kgo.NewClient(append(slices.Clone(f.baseOptions),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0),
		kgo.RecordPartitioner(app.NewPartitioner(at.rt.InternalTopics())),
		kgo.ProducerBatchMaxBytesFn(at.rt.BatchBytes), kafka.WithPrecompressed(),
		kgo.MaxBufferedRecords(f.RecordsMax), kgo.MaxBufferedBytes(f.BytesMax))...)
}

// probe pings the brokers, and sets what Ready returns. It calls stop if the brokers have rejected the
// credentials for too long, or if they belong to another cluster.
func (f *IngressClient) probe(ctx context.Context, client *kgo.Client, cluster string, stop context.CancelCauseFunc) {
	patience := security.Patience{Limit: f.patience}
	for {
		probeCtx, cancel := context.WithTimeout(ctx, probeTimeout)
		err := client.Ping(probeCtx)
		var moved error
		if err == nil {
			moved = kafka.CheckCluster(probeCtx, client, cluster)
		}
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case moved != nil:
			stop(moved)
			return
		case err == nil:
			patience.Since = time.Time{}
			f.reached.Store(true)
			if f.brokers.set(nil) {
				f.log.Info("ready: a broker responds")
			}
		case security.CredentialsRefused(err) && patience.Stops(err, time.Now()):
			stop(err)
			return
		case time.Since(time.Unix(0, f.acknowledged.Load())) < probeTimeout:
			// The ping failed, but the broker is only busy, because it has acknowledged an event during the
			// ping.
		default:
			if f.brokers.set(errors.New("no broker responds")) {
				f.log.Warn("no broker responds", "error", err)
			}
		}
		if kafka.Pause(ctx, probeInterval) != nil {
			return
		}
	}
}

// read delivers verdicts to waiting requests until ctx is done or a fetch fails.
func (f *IngressClient) read(ctx context.Context, reader *kgo.Client, at *clientState) error {
	for {
		fetches := pollVerdicts(ctx, reader)
		if ctx.Err() != nil {
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
				return cause
			}
			return nil
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			at.next = rec.Offset + 1
			f.deliver(rec)
		})
		var failed error
		fetches.EachError(func(topic string, partition int32, err error) {
			var lost *kgo.ErrDataLoss
			var tooLarge *kgo.ErrDecompressTooLarge
			switch {
			case errors.As(err, &lost), errors.Is(err, kafka.ErrBudgetExhausted), errors.Is(err, context.DeadlineExceeded): // franz-go continues by itself
			case errors.As(err, &tooLarge):
				f.skip(reader, at, tooLarge)
			default:
				failed = fmt.Errorf("fetch %s/%d: %w", topic, partition, kafka.Denied(err, "Read", kafka.ResourceTopic, topic))
			}
		})
		if failed != nil {
			return failed
		}
	}
}

// quietMax is how long a poll waits for verdicts.
const quietMax = time.Second

// pollVerdicts polls once. After a poll without records it makes the client fetch again, because the skip of a
// batch may have ended the fetching (hazard A19, see the worker's wakeFetching).
func pollVerdicts(ctx context.Context, reader *kgo.Client) kgo.Fetches {
	ctx, cancel := context.WithTimeout(ctx, quietMax)
	defer cancel()
	fetches := reader.PollFetches(ctx)
	if fetches.NumRecords() == 0 {
		reader.ResumeFetchPartitions(nil)
	}
	return fetches
}

// skip skips a batch of verdicts that is too large to decompress. The requests that wait for these verdicts get
// none, and their senders may repeat the requests.
func (f *IngressClient) skip(reader *kgo.Client, at *clientState, batch *kgo.ErrDecompressTooLarge) {
	f.log.Error("batch of verdicts decompresses to more than ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES, skipped",
		"topic", batch.Topic, "partition", batch.Partition, "first_offset", batch.Offset, "last_offset", batch.NextOffset-1)
	at.next = batch.NextOffset
	reader.SetOffsets(map[string]map[int32]kgo.EpochOffset{batch.Topic: {batch.Partition: {Epoch: batch.Epoch, Offset: batch.NextOffset}}})
}

// deliver gives a verdict to the request that waits for it. It drops a late verdict, and a verdict for another
// instance.
func (f *IngressClient) deliver(rec *kgo.Record) {
	address, ok := wire.AddressOf(rec)
	if !ok || address.Ingress != f.number {
		return
	}
	q := f.inFlight.get(address.Request)
	if q == nil {
		return
	}
	if answer, ok := wire.ReadAnswer(rec); ok {
		q.deliver(&answer)
	}
}
