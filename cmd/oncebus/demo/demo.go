package demo

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/page"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/ingress"
)

const (
	processCount   = 2
	workerCount    = 2 // of each process
	partitionCount = 6 // of the repartition topic
	eventsDefault  = 20_000
	eventsMin      = 100
	eventsMax      = 2_000_000 // the ledger keeps all events in memory
	// livePercent is how much of the records is live traffic. The rest are retries, which follow after
	// pauseTime.
	livePercent = 85
	// stepCount is the number of steps in which the demo produces the live traffic. Steps make the traffic a
	// stream, which a person can watch.
	stepCount      = 100
	stepRecordsMin = 100 // least records per step; a small demo has fewer steps
	stepTime       = 50 * time.Millisecond
	// pauseTime is the event time between the live traffic and the retries. The demo does not really wait for
	// an hour: it sends the retries as soon as all live traffic is judged.
	pauseTime = time.Hour
	// stayRate is how many records per second --stay sends.
	stayRate = 400
	// stallTime is how long the demo waits without any progress before it counts the result.
	stallTime = 20 * time.Second
)

//go:embed routes.yaml
var routesYAML string

// demo is one run of the demo: a broker, processes of oncebus, and a ledger.
type demo struct {
	options
	out      io.Writer // for the person who watches the demo
	broker   *broker
	config   processor.Config
	ingress  ingress.Config
	routes   *rules.Routes
	client   *kgo.Client // produces the input; the readers of the outputs have their own clients
	admin    *kadm.Client
	registry *prometheus.Registry
	log      *slog.Logger
	kept     *page.Log
	traffic  *traffic
	ledger   ledger
	progress *progress
}

// demonstrate runs the demo and returns its result. It returns an error only if there is no result; a result
// that was not verified is no error.
func demonstrate(ctx context.Context, o options, p cli.Process) (result summary, err error) {
	d := &demo{options: o, out: p.Stderr, registry: prometheus.NewRegistry()}
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelDebug
	}
	d.kept = &page.Log{}
	d.log = slog.New(d.kept.Handler(cli.NewLogger(p.Stderr, level, cli.LogText).Handler()))
	stateDir, err := os.MkdirTemp("", "oncebus-demo-")
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stateDir)) }()
	if d.broker, err = openBroker(o.brokers); err != nil {
		return result, err
	}
	defer d.broker.stop()
	if err := d.configure(p.Environ, stateDir); err != nil {
		return result, err
	}
	options, err := d.config.ClientOptions()
	if err != nil {
		return result, err
	}
	d.client, err = kgo.NewClient(append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.UnknownTopicRetries(-1))...)
	if err != nil {
		return result, err
	}
	defer d.client.Close()
	d.admin = kadm.NewClient(d.client)
	defer func() { err = errors.Join(err, d.broker.remove(ctx, d.admin)) }()
	if d.http != "" {
		return d.takeRequests(ctx)
	}
	return d.run(ctx)
}

// configure sets the settings and routes. From environ it takes only the settings that a given cluster needs.
func (d *demo) configure(environ []string, stateDir string) error {
	var own []string
	for _, v := range environ {
		for _, prefix := range []string{"TLS_", "SASL_", "REPLICATION_FACTOR"} {
			if d.broker.embedded == nil && strings.HasPrefix(v, settings.Prefix+prefix) {
				own = append(own, v)
			}
		}
	}
	own = append(own, d.httpSettings()...)
	s, err := settings.Parse(append(own,
		"ONCEBUS_BROKERS="+strings.Join(d.broker.addrs, ","),
		"ONCEBUS_APP_ID="+d.broker.prefix+"app",
		"ONCEBUS_INSTANCE_ID=demo",
		"ONCEBUS_PARTITIONS="+strconv.Itoa(partitionCount),
		"ONCEBUS_WORKERS="+strconv.Itoa(workerCount),
		"ONCEBUS_CREATE_TOPICS=true",
		"ONCEBUS_STATE_DIR="+stateDir,
		// The demo stores only a few MB, so it must also run on a laptop whose disk is 95 % full.
		"ONCEBUS_DISK_MIN_FREE_PERCENT=0", "ONCEBUS_DISK_START_MIN_FREE_PERCENT=0",
	))
	if err := errors.Join(err, s.Validate()); err != nil {
		return err
	}
	d.config, d.ingress = s.Processor, s.Ingress
	d.routes, err = parseRoutes(d.http != "", d.broker.prefix)
	return err
}

// parseRoutes parses the demo's routes and puts the prefix before the names of their topics.
func parseRoutes(http bool, prefix string) (*rules.Routes, error) {
	text := routesYAML
	if http {
		_, further, _ := strings.Cut(httpRoutesYAML, "routes:\n")
		text += further
	}
	for _, topic := range allTopics {
		text = strings.ReplaceAll(text, topic, prefix+topic)
	}
	routes, err := rules.ParseRoutes("routes.yaml", []byte(text))
	if err != nil {
		return nil, err
	}
	if !http {
		for _, r := range routes.Routes {
			r.HTTP = nil
		}
	}
	return routes, nil
}

// run sends the traffic through oncebus and verifies the output.
func (d *demo) run(ctx context.Context) (result, error) {
	started := time.Now()
	cli.Printf(d.out, "oncebus demo: %d records, seed %d, broker %s, %d processes of %d workers\n",
		d.events, d.seed, strings.Join(d.broker.addrs, ","), processCount, workerCount)
	if err := d.broker.create(ctx, d.admin, d.config.ReplicationFactor, d.broker.prefix+signalsRaw, d.broker.prefix+webhooksRaw); err != nil {
		return result{}, err
	}
	d.progress = newProgress(d.out, d.registry, d.events)
	work, running := d.sendWatched, ctx
	if d.stay {
		// When ctx is done, the processes must still judge the last records, so they do not stop with ctx.
		running = context.WithoutCancel(ctx)
		work = func(running context.Context, procs []*processor.Processor) error {
			return d.sendAndStay(ctx, running, procs)
		}
	}
	if err := d.withProcesses(running, work); err != nil {
		return result{}, err
	}
	if err := d.readBack(running); err != nil {
		return result{}, err
	}
	counts, err := gatherVerdicts(d.registry)
	if err != nil {
		return result{}, err
	}
	result := result{
		Events: len(d.ledger.produced), Unique: d.ledger.emitted, Duplicates: counts["duplicate"], Invalid: d.ledger.invalid,
		Missing: d.ledger.missing, Extra: d.ledger.extra, Altered: d.ledger.altered,
		Seed: d.seed, Seconds: math.Round(time.Since(started).Seconds()*10) / 10,
	}
	d.report(result)
	return result, nil
}

// registererOf returns the registerer of one process: it adds the label process to the metrics.
func (d *demo) registererOf(instance string) prometheus.Registerer {
	return prometheus.WrapRegistererWith(prometheus.Labels{"process": instance}, d.registry)
}

// withProcesses runs work while the processes of oncebus run. The processes share the app like processes on
// several machines. It returns when all processes have stopped.
func (d *demo) withProcesses(ctx context.Context, work func(context.Context, []*processor.Processor) error) error {
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	procs := make([]*processor.Processor, processCount)
	for i := range procs {
		config := d.config
		config.InstanceID += "-" + strconv.Itoa(i+1)
		config.StateDir = filepath.Join(config.StateDir, config.InstanceID)
		var err error
		if procs[i], err = processor.New(config, d.routes, d.registererOf(config.InstanceID), d.log.With("process", config.InstanceID)); err != nil {
			return err
		}
	}
	endPage, err := d.servePage(procs)
	if err != nil {
		return err
	}
	defer endPage()
	var wg sync.WaitGroup
	errs := make([]error, len(procs))
	for i, proc := range procs {
		wg.Go(func() {
			if errs[i] = proc.Run(running); errs[i] != nil {
				fail(errs[i])
			}
		})
	}
	workErr := work(running, procs)
	fail(nil)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err // workErr is a consequence of this error
	}
	return workErr
}

// sendWatched is sendAll with a progress line.
func (d *demo) sendWatched(ctx context.Context, procs []*processor.Processor) error {
	watched, unwatch := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { d.progress.show(watched) })
	defer wg.Wait()
	defer unwatch()
	return d.sendAll(ctx, procs)
}

// sendAll waits until the processes are ready and produces the live traffic. When all of the live traffic is
// judged, it produces the retries.
func (d *demo) sendAll(ctx context.Context, procs []*processor.Processor) error {
	if err := d.awaitProcesses(ctx, procs); err != nil {
		return err
	}
	// The live events begin so far in the past that even the retries have event times before now: an event time
	// after broker time plus the allowed skew is invalid.
	t := newTraffic(d.seed, time.Now().Add(-2*pauseTime))
	d.traffic = t
	live := t.live(d.events * livePercent / 100)
	for i, records := range [][]sentRecord{live, t.retries(d.events - len(live))} {
		d.ledger.add(records, i > 0)
		if err := d.produce(ctx, records); err != nil {
			return err
		}
		n, err := d.await(ctx, len(d.ledger.produced), d.judged)
		if err != nil {
			return err
		}
		if n != len(d.ledger.produced) {
			// This is not an error of the demo, because the ledger counts the missing records.
			cli.Printf(d.out, "  stalled: %d of %d records judged\n", n, len(d.ledger.produced))
		}
	}
	return nil
}

// awaitProcesses waits until every process is ready.
func (d *demo) awaitProcesses(ctx context.Context, procs []*processor.Processor) error {
	ready := make([]func() error, len(procs))
	for i, p := range procs {
		ready[i] = p.Ready
	}
	return d.awaitReady(ctx, ready...)
}

// awaitReady waits until all functions in ready return nil.
func (d *demo) awaitReady(ctx context.Context, ready ...func() error) error {
	var reasons []error // why processes are not ready
	count := func() (int, error) {
		reasons = reasons[:0]
		for _, r := range ready {
			if err := r(); err != nil {
				reasons = append(reasons, err)
			}
		}
		return len(ready) - len(reasons), nil
	}
	if n, err := d.await(ctx, len(ready), count); err != nil {
		return err
	} else if n < len(ready) {
		return fmt.Errorf("only %d of %d processes are ready: %w", n, len(ready), errors.Join(reasons...))
	}
	return nil
}

// judged counts the events with a verdict.
func (d *demo) judged() (int, error) {
	counts, err := gatherVerdicts(d.registry)
	return counts.total(), err
}

// await polls count until its result reaches want, or has not changed for stallTime.
func (d *demo) await(ctx context.Context, want int, count func() (int, error)) (int, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last, moved := -1, time.Now()
	for {
		n, err := count()
		if err != nil || n >= want {
			return n, err
		}
		if n != last {
			last, moved = n, time.Now()
		}
		if time.Since(moved) > stallTime {
			return n, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return n, context.Cause(ctx)
		}
	}
}

// produce sends records in steps. It keeps their order within a partition.
func (d *demo) produce(ctx context.Context, records []sentRecord) error {
	tick := time.NewTicker(stepTime)
	defer tick.Stop()
	for step := range slices.Chunk(records, max(stepRecordsMin, d.events/stepCount)) {
		batch := make([]*kgo.Record, len(step))
		for i, r := range step {
			r.Topic = d.broker.prefix + r.Topic
			batch[i] = r.Record
		}
		if err := d.client.ProduceSync(ctx, batch...).FirstErr(); err != nil {
			return fmt.Errorf("produce sample records: %w", errors.Join(err, context.Cause(ctx)))
		}
		d.progress.produced.Add(int64(len(batch)))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// readBack reads every output and dead-letter topic into the ledger.
func (d *demo) readBack(ctx context.Context) error {
	err := d.readOutputs(ctx, d.ledger.output, d.ledger.deadLetter)
	d.ledger.close()
	return err
}

// readOutputs passes every record of an output topic to output, together with its route, and every record of a
// dead-letter topic to dead.
func (d *demo) readOutputs(ctx context.Context, output func(string, *kgo.Record), dead func(*kgo.Record)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	options, err := d.config.ClientOptions()
	if err != nil {
		return err
	}
	outputs, topics := map[string]string{}, []string{}
	for _, r := range d.routes.Routes {
		outputs[r.Output] = r.Name
		topics = append(topics, r.Output, r.DeadLetter)
	}
	slices.Sort(topics)
	return readTopics(ctx, d.admin, options, func(r *kgo.Record) {
		if route, ok := outputs[r.Topic]; ok {
			output(route, r)
		} else {
			dead(r)
		}
	}, slices.Compact(topics)...)
}

// report prints the result as text.
func (d *demo) report(r result) {
	cli.Printf(d.out, "\nRead the output topics and compared them with the produced records, after %.1f s:\n", r.Seconds)
	for _, line := range []struct {
		n    int
		what string
	}{
		{r.Events, "records produced"},
		{r.Unique, fmt.Sprintf("unique events emitted, of %d produced", d.ledger.unique())},
		{r.Duplicates, fmt.Sprintf("duplicates dropped, of %d produced", d.ledger.duplicates())},
		{r.Invalid, fmt.Sprintf("bad records in the dead-letter topic, of %d produced", d.ledger.bad)},
		{r.Missing, "missing"},
		{r.Extra, "extra: emitted twice or never produced"},
		{r.Altered, "altered, or not the first of its partition"},
	} {
		cli.Printf(d.out, "  %8d  %s\n", line.n, line.what)
	}
	for _, fault := range d.ledger.faults {
		cli.Printf(d.out, "  ! %s\n", fault)
	}
}
