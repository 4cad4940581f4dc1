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

// Control starts and ends the executor. Start returns once the executor was started, not when
// it is ready.
type Control struct {
	Start, Kill func(context.Context) error
	// Stop ends the executor after the run, if the kit started it.
	Stop func(context.Context) error
	// Ended returns why the executor has ended; nil while it runs, or if that is not known.
	Ended func() error
}

// Config is where a run happens.
type Config struct {
	Client security.Config
	// Topic is the executor's input, the output of a route. Answers may be empty in a scenario
	// without start, renew and supersede.
	Topic, Outcomes, Answers string
	Group                    string
	// CreateTopics says that the topics which do not exist are created, with two partitions.
	CreateTopics bool
	Control      Control
	// Gateway is the other system of the executor. It may be nil in a scenario without crash-in-work.
	Gateway *Gateway
	// Step is called when a step begins; index is that of the scenario, len(steps) at the end.
	Step func(index int)
}

// Run does what a scenario says and returns what happened. An error says that the run could
// not be done; an executor that does not answer ends it early, without an error.
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

// runner is one run.
type runner struct {
	Config

	scenario *Scenario
	opts     []kgo.Opt
	app      uint64 // in the tokens
	serial   int64  // of the dispatches

	producer *kgo.Client // of events, transactional
	answers  *kgo.Client
	admin    *kadm.Client
	watchers []*kgo.Client
	watching sync.WaitGroup
	stop     context.CancelFunc

	mu        sync.Mutex
	timeline  Timeline
	attempts  map[string]*state
	committed map[int32]int64 // observed in the group's commits
	before    map[int32]int64 // the group's offsets before the run
	ends      map[int32]int64 // of the outcomes topic, before the run
	watchErr  error
}

// state is what the kit answers about a token by.
type state struct {
	*Dispatch

	startID    string // to which the start was granted
	asked      bool   // a question about it was seen
	outcomes   int
	superseded string // why; "" while it is the current attempt
}

// ErrNotJudged says that the executor ended before it gave a sign, so that there is nothing to judge.
var ErrNotJudged = errors.New("not judged")

// errMissed ends the steps: the executor did not do what the kit waited for.
var errMissed = errors.New("missed")

// open connects, and begins to read at the ends of the topics.
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

// createTopics creates the topics that do not exist, and waits until the brokers know them.
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

// checkEmpty returns an error if the group has events to read that the kit did not produce.
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

// offsets returns the next offset that the group reads in each partition. Open transactions
// are waited for.
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

// awaitInterval is the time between two looks at the condition of await.
const awaitInterval = 20 * time.Millisecond

// await waits until done returns true, under the lock. After the scenario's wait it notes what
// was missed and returns errMissed.
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
