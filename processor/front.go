package processor

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
	"oncebus/processor/kafka"
	"oncebus/processor/security"
	"oncebus/processor/wire"
)

const (
	// frontProbe is how often a front asks whether a broker answers, and
	// frontProbeMax how long an answer may take: senders are told 503 for as
	// long as nobody noticed.
	frontProbe, frontProbeMax = 500 * time.Millisecond, 2 * time.Second
	// frontRecordsMax and frontBytesMax bound what waits for the bus. More
	// than that is refused at once.
	frontRecordsMax, frontBytesMax = 16_384, 64 << 20
	// frontRenewPause separates two producers, the first of which was broken.
	frontRenewPause = time.Second
)

// A Front puts events on the bus for senders that wait for the verdict. It
// derives the dedup key itself and writes a keyed event straight to the task
// that will judge it, with a return address; the verdict comes back by the
// front's partition of <app>-verdicts, read committed. It keeps nothing: what
// it had in hand when it died is sent again, and then is a copy or is not.
//
// It is safe for use by many goroutines.
type Front struct {
	cfg         AppConfig
	routes      *rules.Routes
	log         *slog.Logger
	redact      *security.Redactor
	patience    time.Duration // with refused credentials, while running
	recordsMax  int           // frontRecordsMax; tests have less
	baseOptions []kgo.Opt

	number   uint64 // in every return address of this process, never 0
	asks     *asks
	derivers sync.Pool
	spread   atomic.Uint32 // of events without a key over partitions

	bus    busState
	heard  atomic.Int64               // when a broker last acknowledged something, Unix ns
	at     atomic.Pointer[footing]    // where events go and verdicts come from; nil before
	sender atomic.Pointer[kgo.Client] // nil while events are not taken
	broken chan breakage              // one that renew has not looked at yet
	done   chan struct{}              // closed when Run returns
}

// footing is what a front knows of its app while it serves.
type footing struct {
	rt        *runtime
	partition int32    // of the verdicts topic, ours
	id        [16]byte // of the verdicts topic
	next      int64    // where to read on; owned by Run's goroutine
}

// NewFront checks the settings and prepares a front. It connects to nothing.
// extra goes to every client, after our own options.
func NewFront(cfg AppConfig, routes *rules.Routes, log *slog.Logger, extra ...kgo.Opt) (*Front, error) {
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
	f := &Front{
		cfg: cfg, routes: routes, log: log, redact: redact, patience: security.CredentialsPatience, recordsMax: frontRecordsMax,
		baseOptions: append(opts, extra...),
		broken:      make(chan breakage, 1), done: make(chan struct{}),
	}
	f.derivers.New = func() any { return routes.NewDeriver(cfg.KeySecret.Bytes()) }
	f.bus = busState{err: errors.New("not connected yet"), changed: make(chan struct{})}
	for f.number == 0 {
		var drawn [8 + 32]byte // the number, and the seed of the questions'
		if _, err := rand.Read(drawn[:]); err != nil {
			return nil, fmt.Errorf("draw the front's number: %w", err)
		}
		f.number = binary.LittleEndian.Uint64(drawn[:])
		f.asks = newAsks([32]byte(drawn[8:]))
	}
	return f, nil
}

// Run connects, waits until the app's manifest and topics are there, and reads
// verdicts until ctx is done; then it returns nil, and everybody who waits is
// told that there is no answer. An error before that is one a person has to
// resolve: a routes file that does not fit the app, refused credentials. Run
// can be called once.
func (f *Front) Run(ctx context.Context) error {
	defer close(f.done)
	return f.redact.Err(security.ExplainCredentials(f.run(ctx), f.cfg.SASL))
}

func (f *Front) run(ctx context.Context) error {
	var before *footing
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
			_ = kafka.Pause(ctx, frontRenewPause) // the loop asks ctx
		}
		before = at
	}
	return nil
}

// Ready returns nil if events are taken and answered, else why they are not.
func (f *Front) Ready() error {
	err, _ := f.bus.look()
	return err
}

// busState is whether the bus can be reached.
type busState struct {
	mu      sync.Mutex
	err     error         // why not; nil if it can
	changed chan struct{} // closed when err becomes another
}

// set notes why the bus cannot be reached, nil if it can, and reports whether
// that is news.
func (b *busState) set(err error) bool {
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
func (b *busState) look() (error, <-chan struct{}) { //nolint:revive,staticcheck // the error is the state, not a failure
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err, b.changed
}

// open waits until the app is there. It returns nil if ctx is done before.
func (f *Front) open(ctx context.Context, before *footing) (*footing, error) {
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
		if kafka.Pause(ctx, frontProbe) != nil {
			return nil, nil
		}
	}
}

// errNotThere says that the app has not got that far.
var errNotThere = errors.New("not there yet")

func (f *Front) openOnce(ctx context.Context, client *kgo.Client, before *footing) (*footing, error) {
	app, err := findApp(ctx, client, f.cfg.AppID, f.routes)
	if err != nil {
		return nil, err
	}
	t := app.topology
	if missing := app.missingTopics(); len(missing) > 0 {
		return nil, fmt.Errorf("topic %s of app %s is %w: start `oncebus run` with this routes file", missing[0], t.app, errNotThere)
	}
	if app.manifest == nil {
		return nil, fmt.Errorf("the manifest in %s is %w: start `oncebus run`", t.manifest, errNotThere)
	}
	changed, err := app.check(f.cfg.KeySecret.Bytes())
	if err != nil {
		return nil, err
	}
	if changed {
		return nil, fmt.Errorf("a route of this routes file is %w in the manifest in %s: start `oncebus run` with it", errNotThere, t.manifest)
	}
	at := &footing{rt: app.runtime(), id: t.topics[t.verdicts].id}
	if _, err := at.rt.rereadLimits(ctx, kadm.NewClient(client), frontTopics(t, f.routes)); err != nil {
		return nil, err
	}
	at.partition = partitionOfInstance(f.cfg.InstanceID, t.topics[t.verdicts].partitions)
	if before != nil && before.id == at.id && before.partition == at.partition {
		at.next = before.next // verdicts may have come in between
		return at, nil
	}
	_, at.next, err = kafka.NewReader(client, t.verdicts, at.id, at.partition).ListBounds(ctx)
	return at, err
}

// frontTopics are those a front writes to.
func frontTopics(t *topology, routes *rules.Routes) []string {
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
	if t.repartition != "" {
		topics = append(topics, t.repartition)
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
func (f *Front) serve(ctx context.Context, at *footing) error {
	reader, err := kgo.NewClient(append(slices.Clone(f.baseOptions),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{at.rt.topology.verdicts: {at.partition: kgo.NewOffset().At(at.next)}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(fetchMaxWait),
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
func (f *Front) newSender(at *footing) (*kgo.Client, error) {
	return kgo.NewClient(append(slices.Clone(f.baseOptions),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0),
		kgo.RecordPartitioner(newPartitioner(at.rt.internalTopics())),
		kgo.ProducerBatchMaxBytesFn(at.rt.batchBytes),
		kgo.MaxBufferedRecords(f.recordsMax), kgo.MaxBufferedBytes(frontBytesMax))...)
}

// probe keeps Ready true to the facts.
func (f *Front) probe(ctx context.Context, client *kgo.Client, stop context.CancelCauseFunc) {
	patience := security.Patience{Limit: f.patience}
	for {
		probeCtx, cancel := context.WithTimeout(ctx, frontProbeMax)
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
		case time.Since(time.Unix(0, f.heard.Load())) < frontProbeMax:
			// Only busy: it acknowledged an event since the question was put.
		default:
			if f.bus.set(errors.New("no broker answers")) {
				f.log.Warn("no broker answers", "error", err)
			}
		}
		if kafka.Pause(ctx, frontProbe) != nil {
			return
		}
	}
}

// read hands verdicts to those who wait until ctx is done, or until the
// partition is not what it was.
func (f *Front) read(ctx context.Context, reader *kgo.Client, at *footing) error {
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
func (f *Front) hand(rec *kgo.Record) {
	address, ok := wire.AddressOf(rec)
	if !ok || address.Ingress != f.number {
		return
	}
	q := f.asks.of(address.Request)
	if q == nil {
		return
	}
	if answer, ok := wire.ReadAnswer(rec); ok {
		q.tell(&answer)
	}
}
