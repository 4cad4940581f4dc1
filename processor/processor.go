package processor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/kafka"
	"oncebus/processor/progress"
	"oncebus/processor/registry"
	"oncebus/processor/restore"
	"oncebus/processor/security"
	"oncebus/processor/tracing"
	"oncebus/state"
)

const (
	// probeInterval is the time between two pings of the brokers.
	probeInterval = 2 * time.Second
)

// Processor runs the two stages of one process: it sets up the app, makes the workers, and runs them
// together with the goroutines that watch the process, its groups and the manifest topic.
type Processor struct {
	shared

	client  *kgo.Client // for all requests that no worker's client sends
	workers []*worker
	routes  *rules.Routes // of the routes file
	redact  *security.Redactor
	stops   chan error // errors for which the probe stops the process
}

// New validates the settings and returns a processor. It opens no connection and writes nothing. Every
// client gets the options in extra after its own options.
func New(cfg Config, routes *rules.Routes, reg prometheus.Registerer, log *slog.Logger, extra ...kgo.Opt) (*Processor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := cfg.CheckSecret(routes.NeedsSecret()); err != nil {
		return nil, err
	}
	redact := security.NewRedactor(cfg.Config.Config)
	log = slog.New(redact.Handler(log.Handler()))
	opts, err := security.ClientOptions(cfg.Config.Config, reg, log, redact)
	if err != nil {
		return nil, err
	}
	restores := restore.NewMetrics(reg)
	stores, err := restore.NewStores(restore.Config{
		Dir: cfg.StateDir, App: cfg.AppID, State: cfg.State, Disk: cfg.Disk, RebuildsPerHour: cfg.RebuildsPerHour, Openings: openingsMax(goruntime.GOMAXPROCS(0)),
	}, reg, restores, log)
	if err != nil {
		return nil, err
	}
	if cfg.Schemas() == nil {
		schemas, err := registry.New(cfg.Schema, log)
		if err != nil {
			return nil, err
		}
		cfg.Config = cfg.WithSchemas(schemas)
	}
	if err := cfg.Schemas().Check(context.Background(), routes); err != nil {
		return nil, err
	}
	reg.MustRegister(cfg.Schemas())
	budget, board := cfg.Budget(), newBoard()
	p := &Processor{
		shared: shared{
			cfg: cfg, log: log, renewing: make(chan struct{}, 1), baseOptions: append(append(opts, append(budget.ClientOptions(cfg.BatchBytesMax()), kgo.WithHooks(board))...), extra...), counted: map[string]kgo.Opt{}, budget: budget, stores: stores, standbys: restore.NewStandbys(log), idle: newIdleMemory(), board: board, limits: make(chan struct{}, 1), clock: app.NewBrokerClock(),
			metrics: newMetrics(reg), judging: judge.NewMetrics(reg, routes), restores: restores,
			patience: security.CredentialsPatience, stallAfter: restore.StallAfter, counting: func(context.Context) {}, ownersInterval: ownersInterval, purgeInterval: purgeInterval, progressInterval: progress.Interval,
			manifestInterval: manifestInterval, hangInterval: hangInterval, manifestDue: make(chan struct{}, 1), followDue: make(chan struct{}, 1), erasures: newErasures(), holds: app.NewHolds(),
			pacing: pacing{backlog: backlogMin, room: firstRoom, interval: paceInterval},
		},
		routes: routes, redact: redact, stops: make(chan error, 1),
	}
	for _, kind := range []string{app.StageRoute, app.StageDedup, security.ClientProcess} {
		p.counted[kind] = security.ClientMetrics(reg, kind)
	}
	reg.MustRegister(newKeyCounts(p.board), newSenderCounts(p.board), newTenantCounts(p.board), newShadowEvents(&p.shared), newBehind(p.board), newLagTimes(p.board, p.clock))
	registerClock(reg, p.clock)
	RegisterBudget(reg, budget)
	p.clock.OnStep = func(by time.Duration) {
		log.Warn("broker time changed by a step: the machine was suspended, or a clock was set; leases begin again", "by", by.Round(time.Millisecond).String())
	}
	return p, nil
}

// Trace makes the processor export spans. Call it before Run.
func (p *Processor) Trace(t *tracing.Tracer) { p.tracer = t }

// Run processes until ctx is done. Then every worker ends its transaction and closes its tasks, and Run
// returns nil if they did so within StopTimeout. Any other error is one that an operator has to resolve.
// Run can be called once.
func (p *Processor) Run(ctx context.Context) error {
	return p.redact.Err(security.ExplainCredentials(p.run(ctx), p.cfg.SASL))
}

func (p *Processor) run(ctx context.Context) error {
	unlock, err := p.stores.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	// This client is not idempotent, so it may write a record twice. An idempotent client would never write
	// again after its first InitProducerID request had failed.
	p.client, err = kgo.NewClient(append([]kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableIdempotentWrite()}, p.processOptions()...)...)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	defer p.client.Close()
	p.admin = kadm.NewClient(p.client)

	background, stopBackground := context.WithCancel(ctx)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer stopBackground()
	helpers.Go(func() { p.probe(background) })
	helpers.Go(func() { p.stores.WatchDisk(background) })
	if err := p.setUp(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	helpers.Go(func() { p.logFindings(background) })
	helpers.Go(func() { newOwnerWatch(&p.shared, p.workers).run(background) })
	helpers.Go(func() { (&followedTasks{shared: &p.shared}).run(background) })
	helpers.Go(func() {
		newManifestWatch(&p.shared, p.client, p.workers, &erasureFollower{&p.shared, p.client}, newSetFollower(&p.shared, p.conn()), &holdFollower{&p.shared, p.conn()}).run(background)
	})
	helpers.Go(func() { newPurger(&p.shared).run(background) })
	helpers.Go(func() { newHangWatch(&p.shared, p.workers, p.conn()).run(background) })
	return p.explainCluster(ctx, p.work(ctx))
}

// explainCluster adds to the error that ends the process that its cluster was replaced, if that is so. A worker
// may have met topics of the other cluster, and returned an error about them, before the probe noticed the
// replacement.
func (p *Processor) explainCluster(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, kafka.ErrOtherCluster) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeInterval)
	defer cancel()
	return errors.Join(kafka.CheckCluster(ctx, p.client, p.newest().rt.Topology.Cluster), err)
}

// work runs the workers until ctx is done or one of them returns an error. It bounds the time in which they
// have to stop.
func (p *Processor) work(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		var wg sync.WaitGroup
		errs := make([]error, len(p.workers))
		for i, w := range p.workers {
			wg.Go(func() {
				if errs[i] = w.run(ctx); errs[i] != nil {
					cancel(errs[i])
				}
			})
		}
		wg.Wait()
		p.standbys.Close()
		done <- errors.Join(errors.Join(errs...), p.stores.Close())
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	case err := <-p.stops:
		// Most workers meet the same error themselves and end. A worker that waits for the acknowledgement of a
		// record does not, and is cancelled here.
		cancel(err)
	}
	// cause is the error that stops the process; nil if ctx is done.
	cause := context.Cause(ctx)
	if errors.Is(cause, context.Canceled) {
		cause = nil
	}
	p.log.Info("stopping", "timeout", p.cfg.StopTimeout.String())
	timer := time.NewTimer(p.cfg.StopTimeout)
	defer timer.Stop()
	select {
	case err := <-done:
		if err == nil {
			err = cause
		}
		return err
	case <-timer.C:
		return errors.Join(cause, fmt.Errorf("not stopped within %v (ONCEBUS_STOP_TIMEOUT): a broker does not answer, or the disk is slow; the brokers abort the open transactions", p.cfg.StopTimeout))
	}
}

// setUp waits for a broker, creates topics and manifest, and makes the workers.
func (p *Processor) setUp(ctx context.Context) error {
	for {
		rt, err := p.setUpApp(ctx)
		if err == nil {
			rt.ConnectHeaders, rt.DuplicateLog = p.cfg.ConnectHeaders, p.cfg.DuplicateLog
			p.stores.RemoveFormer(rt.Topology, p.log)
			p.makeWorkers(rt)
			return nil
		}
		if ctx.Err() != nil || kafka.Classify(err) == kafka.Stop || security.CredentialsRefused(err) {
			return err
		}
		p.board.setUpFails(p.redact.Err(err))
		p.log.Warn("setup failed, retrying", "error", security.ExplainCredentials(err, p.cfg.SASL))
		if err := kafka.Pause(ctx, probeInterval/2); err != nil {
			return err
		}
	}
}

// setUpApp creates the topics and the manifest. Before that it checks the coordination of groups and
// transactions, without which no worker could work.
func (p *Processor) setUpApp(ctx context.Context) (*app.App, error) {
	if err := p.cfg.diagnosis(p.conn(), p.routes).CheckCoordination(ctx); err != nil {
		return nil, err
	}
	return app.SetUp(ctx, p.conn(), p.cfg.Config, p.routes)
}

// openingsMax returns how many stores may open at the same time: one fewer than the number of processors
// (GOMAXPROCS), but two with two processors. An opening store writes to mapped files. While the kernel provides
// pages for a write, the goroutine keeps its processor, and the Go runtime cannot take the processor away. If
// each processor had such a goroutine, none would be left for heartbeats, for as long as hundreds of stores
// open. With two processors that state lasts only milliseconds, and 1,000 stores open in 4.7 s instead of 6.3 to
// 9.8 s (benchmarks/growth -only starts, 2026-11-24).
func openingsMax(processors int) int { return max(min(2, processors), processors-1) }

// processOptions returns the options of every client that is not a worker's.
func (p *Processor) processOptions() []kgo.Opt {
	return append(slices.Clone(p.baseOptions), p.counted[security.ClientProcess])
}

// conn returns the process's own clients in the form that package app takes.
func (p *Processor) conn() app.Conn {
	return app.Conn{Client: p.client, Admin: p.admin, Options: p.processOptions(), Log: p.log, Clock: p.clock, MaxDecompressedBatchBytes: p.cfg.BatchBytesMax()}
}

// editionOf returns an edition that runs rt.
func (p *Processor) editionOf(rt *app.App) *edition {
	source := &restore.Source{Client: p.client, Leaders: kafka.NewLeaders(p.client), Admin: p.admin, App: rt, Stores: p.stores, Metrics: p.restores, Explain: p.board.explain, StallAfter: p.stallAfter, Counting: p.counting, Instance: p.cfg.InstanceID}
	return &edition{rt: rt, source: source, superseded: make(chan struct{})}
}

func (p *Processor) makeWorkers(rt *app.App) {
	t := rt.Topology
	p.newEdition, p.workersMax = p.editionOf, 2*p.workerCount()
	p.judging.Prepare(rt.InForce)
	p.adopt(p.newEdition(rt))
	for i := range p.workerCount() {
		p.workers = append(p.workers, newWorker(&p.shared, app.StageRoute, i), newWorker(&p.shared, app.StageDedup, i))
	}
	for _, w := range p.workers {
		p.board.addMember(w.member)
	}
	p.wakeAll = func() {
		for _, w := range p.workers {
			w.wake()
		}
	}
	warnOfPartitions(p.log, t)
	p.log.Info("started", "app", p.cfg.AppID, "cluster", t.Cluster, "routed", t.Routed, "prepartitioned", t.Prepartitioned, "workers", p.workerCount())
}

// partitionsSensible is how many task partitions an app may have without notable cost; with more than
// partitionsMany a start logs a warning (deployments/OPERATIONS.md, Scale).
const partitionsSensible, partitionsMany = 100, 400

// warnOfPartitions logs that an app has many partitions with tasks.
func warnOfPartitions(log *slog.Logger, t *app.Topology) {
	var n int32
	for _, topic := range t.TaskTopics() {
		n += t.Topics[topic].Partitions
	}
	if n > partitionsMany {
		log.Warn("many partitions: each costs the brokers time at every commit, and its owner a store", "partitions", n, "sensible", partitionsSensible)
	}
}

// workerCount is how many workers each stage has.
func (p *Processor) workerCount() int {
	if p.cfg.Workers > 0 {
		return p.cfg.Workers
	}
	return goruntime.GOMAXPROCS(0)
}

// Ready returns nil if every worker is in its group and every task assigned
// to it runs, else the reason why not.
func (p *Processor) Ready() error { return p.board.ready(p.stores.Paused()) }

// State returns a snapshot of the process for people and scripts.
func (p *Processor) State() State {
	s := State{App: p.cfg.AppID, Instance: p.cfg.InstanceID, Ready: true, BrokerUp: p.board.brokerUp.Load(), Hold: p.holds.InForce(), Workers: p.board.workers(), Tasks: p.board.allTasks(), Routes: p.setState(), Standbys: p.standbys.State(), SchemaWaits: p.board.schemaWaits()}
	s.Keys, s.TimeHeld, s.Inputs = sumKeys(s.Tasks), shownHeldTimes(s.Tasks), p.board.allInputs()
	if e := p.newest(); e != nil {
		s.RoutesOff = e.rt.InForce.Off()
	}
	now := p.clock.Now()
	for i := range s.Tasks {
		s.Tasks[i].LagSeconds = s.Tasks[i].clock.seconds(now)
	}
	if err := p.Ready(); err != nil {
		s.Ready, s.Reason = false, err.Error()
	}
	return s
}

// probe pings the brokers again and again, for the gauge broker_up and for readiness. It stops the process if
// the brokers have refused its credentials for longer than patience, or if the brokers are of another cluster.
func (p *Processor) probe(ctx context.Context) {
	patience := security.Patience{Limit: p.patience}
	for {
		began := time.Now()
		probeCtx, cancel := context.WithTimeout(ctx, probeInterval)
		err := p.client.Ping(probeCtx)
		switch {
		case err == nil:
			patience.Since = time.Time{}
			if e := p.newest(); e != nil {
				p.stop(kafka.CheckCluster(probeCtx, p.client, e.rt.Topology.Cluster))
			}
		case security.CredentialsRefused(err) && patience.Stops(err, time.Now()):
			p.stop(err)
		}
		cancel()
		if ctx.Err() == nil {
			p.setBrokerUp(p.board.brokerResponds(err, began), err)
		}
		if kafka.Pause(ctx, probeInterval) != nil {
			return
		}
	}
}

// stop stops the process if err is not nil.
func (p *Processor) stop(err error) {
	if err == nil {
		return
	}
	select {
	case p.stops <- err:
	default: // the process stops already
	}
}

// setBrokerUp publishes whether a broker responds. err is the error of the ping.
func (p *Processor) setBrokerUp(up bool, err error) {
	if up {
		p.metrics.brokerUp.Set(1)
	} else {
		p.metrics.brokerUp.Set(0)
	}
	switch was := p.board.brokerUp.Swap(up); {
	case up && !was:
		p.log.Info("broker answers")
	case !up && was:
		p.log.Warn("no broker responds", "error", err)
	}
}

// diagnosisTimeout is how long a start waits for the facts of its diagnosis.
const diagnosisTimeout = 30 * time.Second

// Diagnose connects as a service with these settings would, and returns its findings. It writes nothing,
// neither to the cluster nor to the disk. It reads until ctx is done. clock returns the time of this
// machine.
func Diagnose(ctx context.Context, cfg Config, routes *rules.Routes, log *slog.Logger, clock func() time.Time, extra ...kgo.Opt) ([]app.Finding, error) {
	if err := errors.Join(cfg.Validate(), cfg.CheckSecret(routes.NeedsSecret())); err != nil {
		return nil, err
	}
	redact := security.NewRedactor(cfg.Config.Config)
	log = slog.New(redact.Handler(log.Handler()))
	opts, err := security.ClientOptions(cfg.Config.Config, prometheus.NewRegistry(), log, redact)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(append(append([]kgo.Opt{kgo.DisableIdempotentWrite()}, opts...), extra...)...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	defer client.Close()
	d := cfg.diagnosis(app.Conn{Client: client, Admin: kadm.NewClient(client), Options: opts, Log: log, MaxDecompressedBatchBytes: cfg.BatchBytesMax()}, routes)
	d.Clock = clock
	findings := append(d.Read(ctx).Judge(), schemaFindings(ctx, cfg.Schemas(), routes)...)
	for i := range findings {
		findings[i].Text = redact.Err(errors.New(findings[i].Text)).Error()
	}
	return findings, nil
}

// diagnosis returns the diagnosis of an app with these settings.
func (c Config) diagnosis(conn app.Conn, routes *rules.Routes) app.Diagnosis {
	d := app.Diagnosis{Conn: conn, Config: c.Config, Routes: routes, SessionTimeout: c.SessionTimeout, Stages: []string{app.StageDedup}, Clock: time.Now, Disk: c.disk()}
	if routed, _ := routes.Inputs(); len(routed) > 0 {
		d.Stages = append(d.Stages, app.StageRoute)
	}
	return d
}

// disk returns the facts about the disk of the state directory. Only a start creates the directory; before
// the first start its nearest existing parent shows the disk.
func (c Config) disk() app.Disk {
	if err := restore.CheckDir(c.StateDir, c.AppID); err != nil {
		return app.Disk{Dir: c.StateDir, Refused: err}
	}
	dir, err := filepath.Abs(c.StateDir)
	for err == nil {
		if _, err = os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			break
		}
		dir, err = filepath.Dir(dir), nil
	}
	d := app.Disk{Dir: dir, Err: err}
	if d.Err != nil {
		return d
	}
	space, err := state.DiskSpace(dir)
	network, netErr := state.NetworkFS(dir)
	d.Free, d.Total, d.Network, d.Err = space.Free, space.Total, network, errors.Join(err, netErr)
	d.Start, d.Pause = c.Disk.Levels(space)
	return d
}

// logFindings logs the findings of a diagnosis at the start, unless all is fine. The start does not wait
// for it.
func (p *Processor) logFindings(ctx context.Context) {
	reading, cancel := context.WithTimeout(ctx, diagnosisTimeout)
	defer cancel()
	d := p.cfg.diagnosis(p.conn(), p.routes)
	d.Running, d.Broker = true, p.newest().rt.Clock
	facts := d.Read(reading)
	if ctx.Err() == nil {
		app.LogFindings(ctx, p.log, facts.Judge())
	}
}
