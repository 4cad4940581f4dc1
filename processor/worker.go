package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/kafka"
	"oncebus/processor/progress"
	"oncebus/processor/security"
	"oncebus/processor/wire"
	"oncebus/state/failpoint"
)

const (
	// pollRecordsMax bounds the records of one poll, and so the time between two checks of the commit interval.
	// It is more than a fetch response has, because the client fetches again only when all records of the last
	// response have been polled.
	pollRecordsMax = 50_000
	// transactionRecordsMax ends a transaction before its interval is over, which bounds the memory of the
	// open rows and the records. After timeouts the bound of the worker is lower (transactionBound).
	transactionRecordsMax = 50_000
	// idlePoll is how long a poll waits for records before the worker reconciles
	// its tasks.
	idlePoll = time.Second
	// leaveMax bounds the time in which a client is closed. The client waits for a join in progress, up to the
	// rebalance timeout. It sends no LeaveGroup request, because the member is static; leaveGroup sends that
	// request, with a limit of its own.
	leaveMax = 2 * time.Second
	// backoffMin and backoffMax bound the backoff before a new client. backoffMin is also the pause after
	// an abort.
	backoffMin, backoffMax = 50 * time.Millisecond, 5 * time.Second
	// fencedMax bounds the backoff of a worker that was fenced by another process with the same name. The first
	// backoff is as long as the session timeout.
	fencedMax = time.Minute
)

// A worker runs one stage for some of the stage's partitions. It owns one client, one static group member
// and one transactional id. Its one goroutine polls, processes the records in a transaction, ends the
// transaction and applies it to the stores.
type worker struct {
	*shared
	*edition // the edition of the app with which the current client was made

	stage  string
	name   string // client id and group.instance.id; the same after a restart
	txnID  string // transactional id; the same after a restart
	log    *slog.Logger
	series stageSeries
	member *membership
	lock   rebalanceLock
	memory memoryUse
	starts *routeStarts // nil in the dedup stage
	bound  transactionBound
	// targets are the partitions to which the worker's progress records go.
	targets progressTargets
	rejoin  atomic.Bool // another goroutine wants the client to join its group again
	// renewsSince is the time at which the worker began to take a new edition; zero if it does not take one.
	renewsSince time.Time
	// fetchingPaused reports that fetching is paused because the disk is filling.
	fetchingPaused atomic.Bool
	pauses         pauses
	// foreign are the partitions whose group offsets were pending in a transaction of another producer when
	// the worker registered its transactional id.
	foreign map[string][]int32

	// These belong to the current client, and are replaced with it.
	txns         *transactions
	cancelClient context.CancelFunc
	ready        chan struct{} // closed once txns is complete

	mu       sync.Mutex
	wakePoll context.CancelFunc // ends the poll in progress; nil between polls
	woken    bool
}

func newWorker(s *shared, stage string, index int) *worker {
	name := fmt.Sprintf("%s-%s-%s-%d", s.cfg.AppID, s.cfg.InstanceID, stage, index)
	w := &worker{
		shared: s, edition: s.newest(), stage: stage, name: name, txnID: app.TransactionalID(s.cfg.AppID, stage, index, s.cfg.InstanceID), log: s.log.With("worker", fmt.Sprintf("%s-%d", stage, index)),
		series: s.metrics.ofStage(stage), member: &membership{name: name, stage: stage}, memory: memoryUse{shared: s.idle},
		bound: newTransactionBound(s.cfg.TransactionTimeout, s.metrics.bound.WithLabelValues(stage, strconv.Itoa(index))),
	}
	if stage == app.StageRoute {
		w.starts = newRouteStarts(s)
	}
	w.subscribe()
	return w
}

// run makes one client after the other until ctx is done, and then returns nil. If an error occurs that an
// operator must resolve, run returns it. After any other error run makes a new client.
func (w *worker) run(ctx context.Context) error {
	if w.starts != nil {
		ctx, stop := context.WithCancel(ctx)
		var looks sync.WaitGroup
		looks.Go(func() { w.starts.run(ctx, w.wake) })
		defer looks.Wait()
		defer stop()
	}
	defer w.endRenewal()
	backoff := backoffMin
	fencedBackoff := min(w.cfg.SessionTimeout, fencedMax)
	patience := security.Patience{Limit: w.patience}
	for ctx.Err() == nil {
		began := time.Now()
		err := w.runClient(ctx)
		if errors.Is(err, errSuperseded) {
			w.log.Info("going over to a changed app")
			continue
		}
		if patience.Stops(err, began) {
			return fmt.Errorf("worker %s: %w", w.name, w.denied(w.missingRights(err)))
		}
		if ctx.Err() != nil {
			if err != nil {
				// The next start reads the outcome from the changelog, as it does after SIGKILL.
				w.log.Warn("stopped with unknown commit outcome", "error", err)
			}
			return nil
		}
		w.metrics.rebuilt.WithLabelValues(w.stage).Inc()
		if w.lostProducer(err) {
			w.noteTwin(err)
		}
		if errors.Is(err, kerr.FencedInstanceID) {
			if time.Since(began) > fencedMax {
				fencedBackoff = min(w.cfg.SessionTimeout, fencedMax)
			}
			w.noteTwin(err)
			// Without the wait both processes would fence each other at every reconnect (A14).
			_ = kafka.Pause(ctx, fencedBackoff) // the loop checks ctx
			fencedBackoff = min(2*fencedBackoff, fencedMax)
			continue
		}
		if time.Since(began) > backoffMax {
			backoff = backoffMin
		}
		// The jitter keeps two processes with the same name from backing off in step.
		wait := backoff/2 + rand.N(backoff)
		w.log.Warn("building a new client", "error", err, "wait", wait.Round(time.Millisecond).String())
		_ = kafka.Pause(ctx, wait) // the loop checks ctx
		backoff = min(2*backoff, backoffMax)
	}
	return nil
}

// runClient makes a client, and polls and commits with it until it fails or ctx is done.
func (w *worker) runClient(ctx context.Context) error {
	if !w.takeEdition(ctx) {
		return nil
	}
	if closed, err := w.closeLast(ctx); !closed {
		return err
	}
	if err := w.connect(ctx); err != nil {
		return err
	}
	defer func() {
		memberID, _ := w.txns.client.GroupMetadata()
		w.disconnect()
		if ctx.Err() != nil && (w.cfg.LeaveOnStop || w.member.joins()) {
			w.leaveGroup(memberID)
		}
	}()
	if err := w.register(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	defer w.observe()()
	for ctx.Err() == nil {
		if err := w.mustReplaceClient(); err != nil {
			return err
		}
		w.memory.releaseIfIdle(w.txns.emitter.Release)
		w.pauseFetching()
		fetches := w.poll(ctx, idlePoll, w.txns.recordsMax())
		if len(fetches) == 0 {
			continue // a poll that returned nothing did not take the rebalance lock
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
			w.txns.logAborted(err)
			_ = kafka.Pause(ctx, backoffMin) // the loop checks ctx
		default:
			return err
		}
	}
	w.endStop(ctx)
	return nil
}

// mustReplaceClient returns the reason why the worker must replace its client before it polls again; nil if it
// can keep the client. If another goroutine asked the worker to join its group again, mustReplaceClient makes
// the client do so.
func (w *worker) mustReplaceClient() error {
	if _, missed := w.txns.oversized.announcements(); missed {
		return errOversize
	}
	if err := w.txns.produced.hangs(); err != nil {
		return err // checked without events, too, because a restore may wait for the hanging transaction
	}
	if w.mayRenew() {
		return errSuperseded
	}
	if w.rejoin.Swap(false) {
		w.txns.client.ForceRebalance()
	}
	return nil
}

// markStop runs the last transaction of the routing stage at a clean stop, which writes the marks. The
// transaction may fail: the next start then uses the group's offsets instead of the marks.
func (w *worker) markStop(ctx context.Context) {
	if w.member.assigned() == nil {
		return
	}
	hurry := time.AfterFunc(w.cfg.markMax(), w.cancelClient) // a rebalance, for example, may delay it
	defer hurry.Stop()
	fetches := w.poll(ctx, 0, w.txns.recordsMax()) // takes the rebalance lock
	rebalanced := w.member.takeRebalanced()
	if fencedErr(fetches) == nil && !rebalanced {
		if err := w.txns.runLast(fetches); err != nil {
			w.log.Info("marks of the stop not written", "error", err)
		}
	}
	w.lock.released()
	w.txns.session.AllowRebalance()
}

// connect makes a client and all that belongs to it. The client's callbacks may run before connect has
// finished, so they wait for ready before they use w.txns.
func (w *worker) connect(ctx context.Context) error {
	transactionVersion, err := app.TransactionVersion(ctx, w.source.Client)
	if err != nil {
		return err
	}
	w.ready = make(chan struct{})
	w.lock.released()
	w.member.reset()
	w.txns = &transactions{shared: w.shared, edition: w.edition, log: w.log, series: w.series, member: w.member, lock: &w.lock, poll: w.poll, bound: &w.bound, targets: &w.targets, limits: *w.rt.Limits.Load(), oversized: newOversized(), starts: w.starts, attempted: map[app.TaskID]int64{}, denied: map[string]bool{}}
	w.txns.follow = func(partitions kadm.TopicsSet, offsets map[string][]int32) { w.follow(w.last(partitions, offsets)) }
	clientCtx, cancel := context.WithCancel(context.Background())
	session, err := kgo.NewGroupTransactSession(append(w.options(transactionVersion), kgo.WithContext(clientCtx))...)
	if err != nil {
		cancel()
		return fmt.Errorf("client of %s: %w", w.name, err)
	}
	w.cancelClient = cancel
	w.txns.session, w.txns.client = session, session.Client()
	w.txns.produced = newProduced(w.txns.client, w.rt.Topology, w.cfg.BatchBytesMax())
	w.txns.emitter = judge.NewEmitter(w.rt, w.txns.produced.send)
	w.txns.emitter.Trace = w.tracer != nil
	w.txns.schemas = newSchemaWaits(clientCtx, w.shared, w.wake)
	w.txns.corrupt = newCorruptReads(clientCtx, w.wake)
	w.fetchingPaused.Store(false)
	w.pauses.reset()
	w.memory.use()
	if w.stage == app.StageRoute {
		w.starts.begin(w.edition)
		w.txns.marks = app.NewMarks(w.rt, w.holds)
		w.txns.observer = &progress.Observer{App: w.rt, Client: w.source.Client, Log: w.log, Positions: w.txns.marks.Positions, DispatchMax: w.cfg.TransactionTimeout, Interval: w.progressInterval, InputsInterval: cmp.Or(w.inputsInterval, progress.InputsInterval(w.rt)), Lag: w.showInputs}
		w.txns.pacer = newPacer(w.shared, w.edition, w.txns.client)
		w.txns.order = newTimeOrder(w.shared, w.rt, w.wake, w.txns.pacer.isPaused, w.txns.isHeld, w.txns.oversized)
		w.txns.router = &judge.Router{App: w.rt, Skips: map[app.TaskID]*wire.UnreadableError{}, Keys: judge.NewKeys(w.cfg.NewDeriver(w.rt.InForce), w.judging)}
	} else {
		w.txns.tasks = newTaskSet(ctx, w.shared, w.edition, w.name, w.log, w.txns.emitter, w.wake)
		w.txns.tasks.corrupt, w.txns.tasks.pauses = w.txns.corrupt, &w.pauses
	}
	close(w.ready)
	return nil
}

// disconnect ends the membership in the group, and closes the client.
func (w *worker) disconnect() {
	w.member.end()
	w.txns.close(w.cancelClient)
}

// leaveGroup sends the request by which a static member leaves its group. It runs at a stop, after the
// tasks are closed.
func (w *worker) leaveGroup(memberID string) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveMax)
	defer cancel()
	if err := w.member.leave(ctx, w.source.Client, app.GroupName(w.cfg.AppID, w.stage), memberID); err != nil {
		w.log.Warn("leave group failed, other processes take over after the session timeout", "error", err, "session_timeout", w.cfg.SessionTimeout.String())
	}
}

// poll waits for records until the limit is over or wake is called, and returns at most so many records. If poll
// returns anything, even if it is only the error of its own context, the worker holds the rebalance lock from
// then on.
func (w *worker) poll(ctx context.Context, limit time.Duration, records int) kgo.Fetches {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w.mu.Lock()
	if w.woken {
		w.woken = false
		cancel()
	}
	w.wakePoll = cancel
	w.mu.Unlock()
	if w.txns.pacer != nil {
		w.txns.pacer.await(ctx)
	}
	fetches := w.txns.pollClient(ctx, min(records, pollRecordsMax))
	w.mu.Lock()
	w.wakePoll = nil
	w.mu.Unlock()
	w.txns.oversized.add(fetches)
	if fetches.NumRecords() == 0 {
		w.wakeFetching()
	}
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

// runOnce does what one poll requires. It first handles a rebalance, then lets tasks and partitions go on whose
// reason to wait is gone, and then runs one transaction if there are records or other work. All of it runs under
// the rebalance lock.
func (w *worker) runOnce(ctx context.Context, fetches kgo.Fetches) error {
	if err := fencedErr(fetches); err != nil {
		return err
	}
	if rebalanced, err := w.resetSession(); err != nil || rebalanced {
		return err
	}
	w.endRenewalIfRunning()
	if w.txns.tasks != nil {
		if w.clock.Suspended() {
			if err := w.observeClock(); err != nil {
				return kafka.AsCommitUnknown(err) // this client does not fetch the polled records again
			}
		}
		if err := w.txns.tasks.reconcile(w.txns.client); err != nil {
			return kafka.AsCommitUnknown(err) // this client does not fetch the polled records again
		}
	} else {
		w.goOn()
	}
	w.resumeRead()
	w.txns.fetchRead()
	if hold := w.heldBy(); hold != nil && w.txns.router != nil {
		return w.hold(fetches, hold)
	}
	if fetches.NumRecords() == 0 && len(w.txns.oversized.batches) == 0 && !w.isDue() {
		if w.txns.tasks != nil && !w.fetchingPaused.Load() {
			w.txns.tasks.flushAged()
		}
		return w.txns.fetchErr(fetches)
	}
	if w.hasWork(fetches) {
		w.memory.use()
	}
	return w.txns.run(ctx, fetches)
}

// hasWork reports whether a transaction has more to do than to process progress records. A process without
// events gets progress records all the time, and must not keep its memory in use because of them.
func (w *worker) hasWork(fetches kgo.Fetches) bool {
	if w.txns.tasks == nil {
		return fetches.NumRecords() > 0 || len(w.txns.oversized.batches) > 0
	}
	var env wire.Envelope
	for records := fetches.RecordIter(); !records.Done(); {
		if r := records.Next(); r.Topic != w.rt.Topology.Repartition || wire.ReadEnvelope(r, &env) != nil || !env.IsProgress {
			return true
		}
	}
	return fetches.NumRecords() == 0 || len(w.txns.oversized.batches) > 0 || w.txns.tasks.due()
}

// wakeFetching makes the client fetch again if it has stopped to fetch (A19). The cause is a race in franz-go up
// to v1.22.3. A goroutine of source.loopFetch can load a session just before SetOffsets or a rebalance ends that
// session, and can be scheduled again only when the next session has begun. The goroutine then ends the fetching
// of this next session, too, and the session's partitions wait until the group rebalances. The empty call
// resumes no partition, but each resume starts the fetching. It has no effect on a client that fetches.
func (w *worker) wakeFetching() { w.txns.client.ResumeFetchPartitions(nil) }

// isDue reports whether a transaction has work to do without input: in the dedup stage work of tasks such as a
// sweep, in the routing stage a progress record.
func (w *worker) isDue() bool {
	if w.txns.tasks != nil {
		return !w.fetchingPaused.Load() && w.txns.tasks.due()
	}
	return w.txns.observer.Due()
}

// observe starts the observer of the routing stage, which finds out how far outcomes were read and how far
// the tasks are, and the pacer. Both run until the caller calls end. In the dedup stage observe does
// nothing.
func (w *worker) observe() (end func()) {
	if w.txns.observer == nil {
		return func() {}
	}
	ctx, stop := context.WithCancel(context.Background())
	var observing sync.WaitGroup
	observing.Go(func() { w.txns.observer.Run(ctx, w.wake) })
	observing.Go(func() { w.txns.pacer.run(ctx) })
	return func() {
		stop()
		observing.Wait()
		w.showInputs(nil)
	}
}

// resumeRead makes the client fetch those partitions again whose awaited schema has been read.
func (w *worker) resumeRead() {
	for _, id := range w.txns.schemas.takeRead() {
		if w.txns.tasks != nil {
			w.txns.tasks.schemaRead(w.txns.client, id)
		} else {
			w.txns.client.ResumeFetchPartitions(map[string][]int32{id.Topic: {id.Partition}})
		}
	}
}

// resetSession ends the client's transaction session after a rebalance outside of a transaction. It reports
// whether there was such a rebalance. It also drops the partitions whose revocation the session did not report
// (A8). It calls End, which sets the client back to the committed offsets. So the caller drops the polled
// records, and the client fetches them again.
func (w *worker) resetSession() (bool, error) {
	if !w.member.takeRebalanced() {
		return false, nil
	}
	w.txns.dropRefusalsIf(true)
	if err := w.txns.endAborting(); err != nil {
		return true, fmt.Errorf("reset the session after a rebalance: %w", err)
	}
	w.txns.dropUnassigned()
	w.txns.dropWaiting()
	w.wake() // the rebalance may have filled the inbox
	return true, nil
}

// missingRights replaces an authorization error about one topic by the list of all rights on topics that the
// broker reports as missing. The topic in the error may be one that the worker may write. The reason is that
// under transaction.version 0 or 1 a broker that denies one partition refuses to add all partitions of the
// request to the transaction, and franz-go then fails the records of all of them.
func (w *worker) missingRights(err error) error {
	if !errors.Is(err, kerr.TopicAuthorizationFailed) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.cfg.TransactionTimeout)
	defer cancel()
	if missing := w.rt.Topology.CheckRights(ctx, w.source.Client); kafka.IsOperatorError(missing) {
		return missing
	}
	return err // the broker lists no rights, or does not answer
}

// denied adds to an error which right on the worker's group or transactional id is missing.
func (w *worker) denied(err error) error {
	err = kafka.Denied(err, "Read", kafka.ResourceGroup, app.GroupName(w.cfg.AppID, w.stage))
	return kafka.Denied(err, "Write", kafka.ResourceTransactionalID, w.txnID)
}
