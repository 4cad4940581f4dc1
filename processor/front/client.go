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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
	"oncebus/processor/wire"
)

const (
	// probeInterval is how often a front asks whether a broker answers, and
	// frontProbeMax how long an answer may take: senders are told 503 for as
	// long as nobody noticed.
	probeInterval, probeTimeout = 500 * time.Millisecond, 2 * time.Second
	// recordsMax and frontBytesMax bound what waits for the bus. More
	// than that is refused at once.
	recordsMax, bytesMax = 16_384, 64 << 20
	// renewPause separates two producers, the first of which was broken.
	renewPause = time.Second
)

// A Front puts events on the bus for senders that wait for the verdict. It
// derives the dedup key itself and writes a keyed event straight to the task
// that will judge it, with a return address; the verdict comes back by the
// front's partition of <app>-verdicts, read committed. It keeps nothing: what
// it had in hand when it died is sent again, and then is a copy or is not.
//
// It is safe for use by many goroutines.
type IngressClient struct {
	cfg      app.Config
	routes   *rules.Routes
	log      *slog.Logger
	redact   *security.Redactor
	patience time.Duration // with refused credentials, while running
	// RecordsMax is how many events may wait for Kafka; more are refused at once.
	RecordsMax  int
	baseOptions []kgo.Opt

	number   uint64 // in every return address of this process, never 0
	asks     *waiters
	derivers sync.Pool
	spread   atomic.Uint32 // of events without a key over partitions

	bus    reachability
	heard  atomic.Int64                // when a broker last acknowledged something, Unix ns
	at     atomic.Pointer[clientState] // where events go and verdicts come from; nil before
	sender atomic.Pointer[kgo.Client]  // nil while events are not taken
	broken chan breakage               // one that renew has not looked at yet
	done   chan struct{}               // closed when Run returns
}

// clientState is what a front knows of its app while it serves.
type clientState struct {
	rt        *app.App
	partition int32    // of the verdicts topic, ours
	id        [16]byte // of the verdicts topic
	next      int64    // where to read on; owned by Run's goroutine
}

// NewIngressClient checks the settings and prepares a front. It connects to nothing.
// extra goes to every client, after our own options.
func NewIngressClient(cfg app.Config, routes *rules.Routes, log *slog.Logger, extra ...kgo.Opt) (*IngressClient, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := cfg.CheckSecret(routes.NeedsSecret()); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(routes.Routes, func(r *rules.Route) bool { return r.HTTP != nil }) {
		return nil, errors.New("no route has an http part: nothing can come in by HTTP")
	}
	redact := security.NewRedactor(cfg.Config)
	log = slog.New(redact.Handler(log.Handler()))
	opts, err := security.ClientOptions(cfg.Config, prometheus.NewRegistry(), log, redact)
	if err != nil {
		return nil, err
	}
	f := &IngressClient{
		cfg: cfg, routes: routes, log: log, redact: redact, patience: security.CredentialsPatience, RecordsMax: recordsMax,
		baseOptions: append(opts, extra...),
		broken:      make(chan breakage, 1), done: make(chan struct{}),
	}
	f.derivers.New = func() any { return routes.NewDeriver(cfg.KeySecret.Bytes()) }
	f.bus = reachability{err: errors.New("not connected yet"), changed: make(chan struct{})}
	for f.number == 0 {
		var drawn [8 + 32]byte // the number, and the seed of the questions'
		if _, err := rand.Read(drawn[:]); err != nil {
			return nil, fmt.Errorf("draw the front's number: %w", err)
		}
		f.number = binary.LittleEndian.Uint64(drawn[:])
		f.asks = newWaiters([32]byte(drawn[8:]))
	}
	return f, nil
}

// Run connects, waits until the app's manifest and topics are there, and reads
// verdicts until ctx is done; then it returns nil, and everybody who waits is
// told that there is no answer. An error before that is one a person has to
// resolve: a routes file that does not fit the app, refused credentials. Run
// can be called once.
func (f *IngressClient) Run(ctx context.Context) error {
	defer close(f.done)
	return f.redact.Err(security.ExplainCredentials(f.run(ctx), f.cfg.SASL))
}

func (f *IngressClient) run(ctx context.Context) error {
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
			f.log.Warn("the front begins again", "error", err)
			_ = kafka.Pause(ctx, renewPause) // the loop asks ctx
		}
		before = at
	}
	return nil
}

// Ready returns nil if events are taken and answered, else why they are not.
func (f *IngressClient) Ready() error {
	err, _ := f.bus.look()
	return err
}

// reachability is whether the bus can be reached.
type reachability struct {
	mu      sync.Mutex
	err     error         // why not; nil if it can
	changed chan struct{} // closed when err becomes another
}

// set notes why the bus cannot be reached, nil if it can, and reports whether
// that is news.
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

// look returns why the bus cannot be reached, and what is closed when that
// changes.
func (b *reachability) look() (error, <-chan struct{}) { //nolint:revive,staticcheck // the error is the state, not a failure
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err, b.changed
}

// open waits until the app is there. It returns nil if ctx is done before.
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
		if f.bus.set(err) {
			f.log.Warn("not ready yet, trying again", "error", security.ExplainCredentials(err, f.cfg.SASL))
		}
		if kafka.Pause(ctx, probeInterval) != nil {
			return nil, nil
		}
	}
}

// errNotThere says that the app has not got that far.
var errNotThere = errors.New("not there yet")

func (f *IngressClient) openOnce(ctx context.Context, client *kgo.Client, before *clientState) (*clientState, error) {
	app, err := app.Find(ctx, client, f.cfg.AppID, f.routes)
	if err != nil {
		return nil, err
	}
	t := app.Topology
	if missing := app.MissingTopics(); len(missing) > 0 {
		return nil, fmt.Errorf("topic %s of app %s is %w: start `oncebus run` with this routes file", missing[0], t.App, errNotThere)
	}
	if app.Manifest == nil {
		return nil, fmt.Errorf("the manifest in %s is %w: start `oncebus run`", t.Manifest, errNotThere)
	}
	changed, err := app.Check(f.cfg.KeySecret.Bytes())
	if err != nil {
		return nil, err
	}
	if changed {
		return nil, fmt.Errorf("a route of this routes file is %w in the manifest in %s: start `oncebus run` with it", errNotThere, t.Manifest)
	}
	at := &clientState{rt: app.App(), id: t.Topics[t.Verdicts].ID}
	if _, err := at.rt.RereadLimits(ctx, kadm.NewClient(client), frontTopics(t, f.routes)); err != nil {
		return nil, err
	}
	at.partition = partitionOfInstance(f.cfg.InstanceID, t.Topics[t.Verdicts].Partitions)
	if before != nil && before.id == at.id && before.partition == at.partition {
		at.next = before.next // verdicts may have come in between
		return at, nil
	}
	_, at.next, err = kafka.NewReader(client, t.Verdicts, at.id, at.partition).ListBounds(ctx)
	return at, err
}

// frontTopics are those a front writes to.
func frontTopics(t *app.Topology, routes *rules.Routes) []string {
	var topics []string
	for _, r := range routes.Routes {
		if r.HTTP == nil {
			continue
		}
		topics = append(topics, r.Topics...)
		if r.Mode == rules.ClaimMode {
			topics = append(topics, r.Claim.Outcomes)
		}
	}
	if t.Repartition != "" {
		topics = append(topics, t.Repartition)
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// partitionOfInstance spreads fronts over the partitions of the verdicts
// topic. Two may meet in one: each passes over what is the other's.
func partitionOfInstance(instance string, partitions int32) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(instance)) // never fails
	return int32(h.Sum32() % uint32(partitions))
}

// serve takes events and reads verdicts until ctx is done or the reader can
// not go on.
func (f *IngressClient) serve(ctx context.Context, at *clientState) error {
	reader, err := kgo.NewClient(append(slices.Clone(f.baseOptions),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{at.rt.Topology.Verdicts: {at.partition: kgo.NewOffset().At(at.next)}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(kafka.FetchMaxWait),
		// Out of range after records were lost: who waits for an older verdict
		// than this is not there any more.
		kgo.ConsumeResetOffset(kgo.RewindOffset(time.Minute)))...)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	defer reader.Close()
	sender, err := f.newSender(at)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	f.sender.Store(sender)
	f.at.Store(at)
	helpersCtx, stop := context.WithCancelCause(ctx)
	var helpers sync.WaitGroup
	helpers.Go(func() { f.probe(helpersCtx, reader, stop) })
	helpers.Go(func() { f.renew(helpersCtx, reader, at) })
	err = f.read(helpersCtx, reader, at)
	stop(nil)
	helpers.Wait()
	f.bus.set(cmp.Or(err, errStopping))
	f.sender.Swap(nil).Close()
	return err
}

var errStopping = errors.New("stopping")

// newSender makes the producer: idempotent, with acks of all in-sync replicas.
// It does not linger: what comes while requests are under way goes into the
// next ones together, so batches grow with the load and nobody waits for one.
func (f *IngressClient) newSender(at *clientState) (*kgo.Client, error) {
	return kgo.NewClient(append(slices.Clone(f.baseOptions),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0),
		kgo.RecordPartitioner(app.NewPartitioner(at.rt.InternalTopics())),
		kgo.ProducerBatchMaxBytesFn(at.rt.BatchBytes),
		kgo.MaxBufferedRecords(f.RecordsMax), kgo.MaxBufferedBytes(bytesMax))...)
}

// probe keeps Ready true to the facts.
func (f *IngressClient) probe(ctx context.Context, client *kgo.Client, stop context.CancelCauseFunc) {
	patience := security.Patience{Limit: f.patience}
	for {
		probeCtx, cancel := context.WithTimeout(ctx, probeTimeout)
		err := client.Ping(probeCtx)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			patience.Since = time.Time{}
			if f.bus.set(nil) {
				f.log.Info("ready: a broker answers")
			}
		case security.CredentialsRefused(err) && patience.Stops(err, time.Now()):
			stop(err)
			return
		case time.Since(time.Unix(0, f.heard.Load())) < probeTimeout:
			// Only busy: it acknowledged an event since the question was put.
		default:
			if f.bus.set(errors.New("no broker answers")) {
				f.log.Warn("no broker answers", "error", err)
			}
		}
		if kafka.Pause(ctx, probeInterval) != nil {
			return
		}
	}
}

// read hands verdicts to those who wait until ctx is done, or until the
// partition is not what it was.
func (f *IngressClient) read(ctx context.Context, reader *kgo.Client, at *clientState) error {
	for {
		fetches := reader.PollFetches(ctx)
		if ctx.Err() != nil {
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
				return cause
			}
			return nil
		}
		var failed error
		fetches.EachError(func(topic string, partition int32, err error) {
			var lost *kgo.ErrDataLoss // the client goes on by itself
			if !errors.As(err, &lost) {
				failed = fmt.Errorf("fetch %s/%d: %w", topic, partition, kafka.Denied(err, "Read", kafka.ResourceTopic, topic))
			}
		})
		fetches.EachRecord(func(rec *kgo.Record) {
			at.next = rec.Offset + 1
			f.hand(rec)
		})
		if failed != nil {
			return failed
		}
	}
}

// hand gives a verdict to who waits for it. Nobody may: it came late, or is
// another front's.
func (f *IngressClient) hand(rec *kgo.Record) {
	address, ok := wire.AddressOf(rec)
	if !ok || address.Ingress != f.number {
		return
	}
	q := f.asks.of(address.Request)
	if q == nil {
		return
	}
	if answer, ok := wire.ReadAnswer(rec); ok {
		q.deliver(&answer)
	}
}
