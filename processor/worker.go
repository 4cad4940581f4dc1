package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
	"oncebus/state/failpoint"
)

const (
	// pollRecordsMax bounds the records of one poll, and with it what a
	// transaction can grow by between two looks at the clock.
	pollRecordsMax = 10_000
	// transactionRecordsMax ends a transaction before its interval is over,
	// so that its overlay and its records stay bounded in memory.
	transactionRecordsMax = 50_000
	// idlePoll is how long a poll without records waits before the worker
	// looks after its tasks.
	idlePoll = time.Second
	// leaveMax bounds how long a client may take to leave its group. It waits
	// for a join in progress, which waits for members that may be gone, up to
	// the rebalance timeout. As a static member it has nothing to say when it
	// leaves, so cutting it short loses nothing.
	leaveMax = 2 * time.Second
	// Backoff before a client is built again or a failed produce repeated.
	backoffMin, backoffMax = 50 * time.Millisecond, 5 * time.Second
	// fencedMax bounds how long a worker stands back for another process that
	// has its name. It begins with the session timeout.
	fencedMax = time.Minute
)

// A worker owns one client, one group member and one transactional id, and
// does all its work on one goroutine: poll, process, end the transaction,
// apply. Both stages are workers; they differ in what they do with a record.
type worker struct {
	*shared

	stage  string
	name   string // stable over restarts: group instance and transactional id
	log    *slog.Logger
	series stageSeries
	member *membership
	lock   rebalanceLock
	memory memoryUse
	rejoin atomic.Bool // the group is to assign again
	// holding says that fetching is paused because the disk is filling.
	holding atomic.Bool

	// Of the current client; all of it is replaced together.
	txns         *transactions
	cancelClient context.CancelFunc
	ready        chan struct{} // closed once txns is complete

	mu       sync.Mutex
	wakePoll context.CancelFunc // of the poll in progress
	woken    bool
}

func newWorker(s *shared, stage string, index int) *worker {
	name := fmt.Sprintf("%s-%s-%s-%d", s.cfg.AppID, s.cfg.InstanceID, stage, index)
	return &worker{
		shared: s, stage: stage, name: name, log: s.log.With("worker", fmt.Sprintf("%s-%d", stage, index)),
		series: s.metrics.ofStage(stage), member: &membership{name: name, stage: stage}, memory: memoryUse{shared: s.idle},
	}
}

// run works until ctx is done, which ends it with nil, or until an error that
// only a person can resolve. Any other error costs a client, not the process.
func (w *worker) run(ctx context.Context) error {
	backoff := backoffMin
	fencedBackoff := min(w.cfg.SessionTimeout, fencedMax)
	patience := security.Patience{Limit: w.patience}
	for ctx.Err() == nil {
		began := time.Now()
		err := w.runClient(ctx)
		if patience.Stops(err, began) {
			return fmt.Errorf("worker %s: %w", w.name, w.denied(err))
		}
		if ctx.Err() != nil {
			if err != nil {
				// The next start reads the changelog, as after a kill.
				w.log.Warn("stopped with unknown commit outcome", "error", err)
			}
			return nil
		}
		w.metrics.rebuilt.WithLabelValues(w.stage).Inc()
		if errors.Is(err, kerr.FencedInstanceID) {
			if time.Since(began) > fencedMax {
				fencedBackoff = min(w.cfg.SessionTimeout, fencedMax)
			}
			w.backoffAfterFencing(ctx, err, fencedBackoff)
			fencedBackoff = min(2*fencedBackoff, fencedMax)
			continue
		}
		if time.Since(began) > backoffMax {
			backoff = backoffMin
		}
		// Jitter keeps two owners of one name from taking turns in step.
		wait := backoff/2 + rand.N(backoff)
		w.log.Warn("building a new client", "error", err, "wait", wait.Round(time.Millisecond).String())
		_ = kafka.Pause(ctx, wait) // the loop asks ctx
		backoff = min(2*backoff, backoffMax)
	}
	return nil
}

// backoffAfterFencing waits after another process has joined the group under our name.
// Two that fence each other must not do so at the speed of a reconnect, or
// neither gets any work done (A14).
func (w *worker) backoffAfterFencing(ctx context.Context, fenced error, wait time.Duration) {
	w.metrics.fenced.WithLabelValues(w.stage).Inc()
	w.log.Error("another process has this worker's place in the group: give each process its own ONCEBUS_INSTANCE_ID",
		"instance", w.cfg.InstanceID, "wait", wait.String(), "error", fenced)
	_ = kafka.Pause(ctx, wait) // the caller asks ctx
}

// runClient works with one client until it has to be replaced.
func (w *worker) runClient(ctx context.Context) error {
	if err := w.connect(ctx); err != nil {
		return err
	}
	defer w.disconnect()
	// Registering the transactional id aborts what a former holder left
	// open, so that no reader waits for its timeout.
	if _, _, err := w.txns.client.ProducerID(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("register transactional id %s: %w", w.name, err)
	}
	for ctx.Err() == nil {
		if _, missed := w.txns.oversized.announcements(); missed {
			return errOversize
		}
		if w.rejoin.Swap(false) {
			w.txns.client.ForceRebalance()
		}
		w.memory.releaseIfIdle(w.txns.emitter.Release)
		w.holdFetching()
		fetches := w.poll(ctx, idlePoll)
		if len(fetches) == 0 {
			continue // no poll, no gate: nothing may be touched
		}
		err := w.runOnce(ctx, fetches)
		failpoint.Hit(failpoint.BeforeAllowRebalance)
		w.lock.released()
		w.txns.session.AllowRebalance()
		if len(w.txns.oversized.batches) > 0 && (err == nil || kafka.Classify(err) != kafka.Stop) {
			return errors.Join(errOversize, err)
		}
		switch {
		case err == nil:
		case kafka.Classify(err) == kafka.Abort, kafka.Classify(err) == kafka.Retry:
			w.log.Info("transaction aborted", "reason", err)
			_ = kafka.Pause(ctx, backoffMin) // the loop asks ctx
		default:
			return err
		}
	}
	return nil
}

// holdFetching stops the fetching of tasks while the disk is filling. The
// member stays in the group: polls go on, without records.
func (w *worker) holdFetching() {
	if w.txns.tasks == nil {
		return
	}
	hold := w.stores.Paused() != nil
	switch {
	case hold == w.holding.Load():
		return
	case hold:
		w.txns.client.PauseFetchTopics(w.rt.Waiting...)
		w.log.Info("fetching paused")
	default:
		w.txns.client.ResumeFetchTopics(w.rt.Waiting...)
		w.log.Info("fetching resumed")
	}
	w.holding.Store(hold)
}

// connect makes a client and what works with it. Callbacks of the client wait for
// ready before they use it.
func (w *worker) connect(ctx context.Context) error {
	w.ready = make(chan struct{})
	w.lock.released()
	w.member.reset()
	w.txns = &transactions{shared: w.shared, log: w.log, series: w.series, member: w.member, lock: &w.lock, poll: w.poll, oversized: newOversized()}
	clientCtx, cancel := context.WithCancel(context.Background())
	session, err := kgo.NewGroupTransactSession(append(w.options(), kgo.WithContext(clientCtx))...)
	if err != nil {
		cancel()
		return fmt.Errorf("client of %s: %w", w.name, err)
	}
	w.cancelClient = cancel
	w.txns.session, w.txns.client = session, session.Client()
	w.txns.produced = newProduced(w.txns.client)
	w.txns.emitter = judge.NewEmitter(w.rt, w.txns.produced.send)
	w.holding.Store(false)
	w.memory.use()
	if w.stage == stageRoute {
		w.txns.router = &judge.Router{App: w.rt, Metrics: w.judging, Deriver: w.routes.NewDeriver(w.cfg.KeySecret.Bytes())}
	} else {
		w.txns.tasks = newTaskSet(ctx, w.shared, w.name, w.log, w.txns.emitter, w.wake)
	}
	close(w.ready)
	return nil
}

func (w *worker) disconnect() {
	w.member.end()
	w.txns.close(w.cancelClient)
}

// poll waits for records, for limit, or for a wake-up. A poll that returns
// anything, if only the end of its context, holds the rebalance gate.
func (w *worker) poll(ctx context.Context, limit time.Duration) kgo.Fetches {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w.mu.Lock()
	if w.woken {
		w.woken = false
		cancel()
	}
	w.wakePoll = cancel
	w.mu.Unlock()
	fetches := w.txns.session.PollRecords(ctx, pollRecordsMax)
	w.mu.Lock()
	w.wakePoll = nil
	w.mu.Unlock()
	w.txns.oversized.note(fetches)
	return fetches
}

// wake makes the poll in progress, or the next one, return at once.
func (w *worker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wakePoll != nil {
		w.wakePoll()
		return
	}
	w.woken = true
}

// runOnce is one round: look after the tasks, then, if there is anything to do,
// one transaction. The gate is held throughout.
func (w *worker) runOnce(ctx context.Context, fetches kgo.Fetches) error {
	if err := fencedErr(fetches); err != nil {
		return err
	}
	if rebalanced, err := w.resetSession(); err != nil || rebalanced {
		return err
	}
	if w.txns.tasks != nil {
		if err := w.txns.tasks.reconcile(w.txns.client); err != nil {
			return kafka.AsCommitUnknown(err) // what was polled is lost to this client
		}
	}
	if fetches.NumRecords() == 0 && len(w.txns.oversized.batches) == 0 && (w.txns.tasks == nil || w.holding.Load() || !w.txns.tasks.due()) {
		return fetchErr(fetches)
	}
	w.memory.use()
	return w.txns.run(ctx, fetches)
}

// resetSession ends the session's failed state after a rebalance outside of a
// transaction and closes tasks whose revocation it kept to itself. Ending
// rewinds to the committed offsets, so what was polled is polled again.
func (w *worker) resetSession() (bool, error) {
	if !w.member.takeRebalanced() {
		return false, nil
	}
	if err := w.txns.endAborting(); err != nil {
		return true, fmt.Errorf("resetSession the session after a rebalance: %w", err)
	}
	if w.txns.tasks != nil {
		w.txns.tasks.retain(w.member.assigned())
	}
	w.wake() // reconcile what the rebalance left in the inbox
	return true, nil
}

// denied adds which right on the worker's group or transactional id is missing.
func (w *worker) denied(err error) error {
	err = kafka.Denied(err, "Read", kafka.ResourceGroup, app.GroupName(w.cfg.AppID, w.stage))
	return kafka.Denied(err, "Write", kafka.ResourceTransactionalID, w.name)
}
