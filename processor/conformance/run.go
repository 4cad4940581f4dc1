package conformance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
	"oncebus/processor/security"
)

// Control starts and ends the executor. Start returns once it has started the executor, without waiting until
// the executor is ready.
type Control struct {
	Start, Kill func(context.Context) error
	// Stop ends the executor after the run, if the kit has started it.
	Stop func(context.Context) error
	// Ended returns why the executor has ended; nil while the executor runs, or if the kit cannot find out.
	Ended func() error
}

// Config has the topics, the executor and the settings of a run.
type Config struct {
	Client security.Config
	// Topic is the executor's input, which is the output topic of a route. Answers may be empty for a scenario
	// without start, renew and supersede.
	Topic, Outcomes, Answers string
	Group                    string
	// CreateTopics makes the run create missing topics, with two partitions each.
	CreateTopics bool
	Control      Control
	// Gateway is the system that the executor charges. It may be nil for a scenario without the step
	// crash-in-work.
	Gateway *Gateway
	// Step is called when a step begins. index is the step's index in the scenario, and len(steps) at the end.
	Step func(index int)
}

// Run plays a scenario and returns what happened. An error means that the run could not be done. If the
// executor does not do what the kit waits for, the run ends early, without an error.
func Run(ctx context.Context, cfg Config, s *Scenario, log *slog.Logger) (*Timeline, error) {
	if cfg.Answers == "" && (s.Start || s.has(StepRenew) || s.has(StepSupersede)) {
		return nil, kafka.OperatorErrorf("the scenario needs the answers topic, because the executor asks")
	}
	if cfg.Gateway == nil && s.has(StepInWork) {
		return nil, kafka.OperatorErrorf("the scenario needs a gateway: step %s kills the executor while it charges there", StepInWork)
	}
	redact := security.NewRedactor(cfg.Client)
	opts, err := security.ClientOptions(cfg.Client, prometheus.NewRegistry(), slog.New(redact.Handler(log.Handler())), redact)
	if err != nil {
		return nil, err
	}
	r := &runner{Config: cfg, scenario: s, opts: append(opts, kgo.DisableClientMetrics()), attempts: map[string]*state{}, app: rand.Uint64() | 1, committed: map[int32]int64{}}
	defer r.close()
	if r.Gateway != nil {
		r.Gateway.begin(s.Gateway, r.note)
		defer r.Gateway.end()
	}
	if err = r.open(ctx); err == nil {
		err = r.play(ctx)
	}
	if err != nil {
		return nil, redact.Err(security.ExplainCredentials(err, cfg.Client.SASL))
	}
	return &r.timeline, nil
}

// runner has the state of one run.
type runner struct {
	Config

	scenario *Scenario
	opts     []kgo.Opt
	app      uint64 // number of the app in the tokens
	serial   int64  // number of the last dispatch

	producer *kgo.Client // transactional; produces the events
	answers  *kgo.Client
	admin    *kadm.Client
	watchers []*kgo.Client
	watching sync.WaitGroup
	stop     context.CancelFunc

	mu        sync.Mutex
	timeline  Timeline
	attempts  map[string]*state
	committed map[int32]int64 // next offsets by partition, as seen in the group's commits
	before    map[int32]int64 // offsets of the group before the run
	ends      map[int32]int64 // ends of the outcomes topic before the run
	watchErr  error
}

// state has the state of a token, from which the kit answers questions about the token.
type state struct {
	*Dispatch

	startID    string // the start id to which the start was granted
	asked      bool   // the executor has asked about it
	outcomes   int
	superseded string // why it is superseded; "" while it is the current attempt
}

// ErrNotJudged means that the executor ended before it gave any sign, so that there is nothing to judge.
var ErrNotJudged = errors.New("not judged")

// errMissed ends the steps, because the executor did not do what the kit waited for.
var errMissed = errors.New("missed")

// open connects to Kafka, and begins to read at the present ends of the topics.
func (r *runner) open(ctx context.Context) (err error) {
	if r.answers, err = kgo.NewClient(r.opts...); err != nil {
		return err
	}
	r.admin = kadm.NewClient(r.answers)
	topics := []string{r.Topic, r.Outcomes}
	if r.Answers != "" {
		topics = append(topics, r.Answers)
	}
	if r.CreateTopics {
		if err := r.createTopics(ctx, topics); err != nil {
			return err
		}
	}
	listed, err := r.admin.ListTopics(ctx, topics...)
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	for _, name := range topics {
		if !listed.Has(name) {
			return kafka.OperatorErrorf("topic %s does not exist: create the topics of the executor first", name)
		}
	}
	if err := r.checkEmpty(ctx); err != nil {
		return err
	}
	id := fmt.Sprintf("oncebus-conformance-%016x", r.app)
	if r.producer, err = kgo.NewClient(append(slices.Clone(r.opts), kgo.TransactionalID(id))...); err != nil {
		return err
	}
	watch, cancel := context.WithCancel(ctx)
	r.stop = cancel
	if err := r.watch(ctx, watch, r.Outcomes, r.sawOutcome); err != nil {
		return err
	}
	return r.watchOffsets(ctx, watch)
}

// createTopics creates the topics that do not exist, and waits until all brokers know them.
func (r *runner) createTopics(ctx context.Context, topics []string) error {
	created, err := r.admin.CreateTopics(ctx, 2, -1, nil, topics...)
	if err != nil {
		return fmt.Errorf("create topics: %w", err)
	}
	for _, c := range created {
		if c.Err != nil && !errors.Is(c.Err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", c.Topic, c.Err)
		}
	}
	for {
		listed, err := r.admin.ListTopics(ctx, topics...)
		if err != nil {
			return fmt.Errorf("list topics: %w", err)
		}
		if listed.Error() == nil {
			return nil
		}
		if err := kafka.Pause(ctx, awaitInterval); err != nil {
			return err
		}
	}
}

// checkEmpty returns an error if the consumer group still has events to read that the kit did not produce.
func (r *runner) checkEmpty(ctx context.Context) error {
	starts, err := r.admin.ListStartOffsets(ctx, r.Topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return fmt.Errorf("list the start of topic %s: %w", r.Topic, err)
	}
	ends, err := r.endsOf(ctx, r.Topic)
	if err != nil {
		return err
	}
	committed, err := r.offsets(ctx)
	if err != nil {
		return err
	}
	r.before = committed
	for partition, end := range ends {
		if from := max(committed[partition], starts[r.Topic][partition].Offset); end > from {
			return kafka.OperatorErrorf("group %s has not committed the offsets %d to %d of topic %s, partition %d: give the kit a topic of its own, because the executor answers earlier events too",
				r.Group, from, end-1, r.Topic, partition)
		}
	}
	return nil
}

// offsets returns, for each partition, the next offset that the consumer group reads. It waits for open
// transactions.
func (r *runner) offsets(ctx context.Context) (map[int32]int64, error) {
	fetched, err := r.admin.FetchOffsets(kadm.RequireStable(ctx), r.Group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, fmt.Errorf("fetch the offsets of group %s: %w", r.Group, err)
	}
	next := map[int32]int64{}
	for partition, o := range fetched[r.Topic] {
		next[partition] = o.At
	}
	return next, nil
}

func (r *runner) close() {
	if r.stop != nil {
		r.stop()
	}
	r.watching.Wait()
	for _, client := range append(r.watchers, r.producer, r.answers) {
		if client != nil {
			client.Close()
		}
	}
}

// add appends an entry to the timeline. The caller holds the lock.
func (r *runner) add(e Entry) {
	e.At = time.Now()
	r.timeline.Entries = append(r.timeline.Entries, e)
}

func (r *runner) note(e Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(e)
}

// awaitInterval is how often await checks its condition.
const awaitInterval = 20 * time.Millisecond

// await waits until done, which it calls under the lock, returns true. After the scenario's wait it records
// what the kit waited for in vain, and returns errMissed.
func (r *runner) await(ctx context.Context, what string, done func() bool) error {
	return r.awaitFor(ctx, r.scenario.Wait, what, func() (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return done(), r.watchErr
	})
}

func (r *runner) awaitFor(ctx context.Context, limit time.Duration, what string, done func() (bool, error)) error {
	end := time.NewTimer(limit)
	defer end.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := r.Control.Ended(); err != nil {
			r.note(Entry{What: Missed, Note: fmt.Sprintf("%s: the executor has ended: %v", what, err)})
			return errMissed
		}
		select {
		case <-end.C:
			r.note(Entry{What: Missed, Note: fmt.Sprintf("%s: waited %v in vain", what, limit)})
			return errMissed
		default:
		}
		if err := kafka.Pause(ctx, awaitInterval); err != nil {
			return err
		}
	}
}
