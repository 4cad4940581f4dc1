package selfaudit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/oracle"
	"oncebus/processor/security"
)

// fetchBudget bounds the memory of fetched records in bytes: there are up to twice parallelReads fetches, and
// earlier fetches that the garbage collector has not freed yet.
const fetchBudget = 256 << 20

// Options are the bounds of an audit.
type Options struct {
	// Keys is the largest number of keys in memory, which need some 80 bytes each. Open is the largest number
	// of records that wait for their counterpart, which need some 300 bytes each.
	Keys, Open int
	// Watch, if not nil, is called with how many offsets were read, and how many there are.
	Watch func(read, total int64)
}

type (
	// Finding is a violation that the oracle has found.
	Finding = oracle.Finding
	// RouteCounts has what the oracle has seen of a route.
	RouteCounts = oracle.RouteCounts
	// Report has what the oracle has checked.
	Report = oracle.LedgerReport
)

// MaxFindings is how many findings of an invariant a result describes at most. It counts all of them.
const MaxFindings = oracle.MaxFindings

// Result is the result of an audit.
type Result struct {
	// Begins reports that nothing was checked, because there is no known position from which the audit could
	// have begun. The next audit continues from the position To.
	Begins bool
	// Since says why: which records were deleted, or what has changed in the routes.
	Since    []string
	Findings []Finding
	Report   Report
	Records  int64 // how many records were read
	// Cut is how long it took to take the cut; the audit has to wait until open transactions have ended. Took
	// is how long the reading took.
	Cut, Took time.Duration
	From      *Position // nil if the audit has no position to begin from
	To        *Position // where the next audit continues
}

// Held reports whether the audit found no violation: no record that was read contradicts the app's promise.
func (r *Result) Held() bool { return len(r.Findings) == 0 }

// Auditor audits an app. It only reads from Kafka.
type Auditor struct {
	cfg     app.Config
	routes  *rules.Routes
	redact  *security.Redactor
	client  *kgo.Client
	admin   *kadm.Client
	leaders *kafka.Leaders
	app     *app.App
	topics  map[string]app.Topic
}

// New connects to the brokers and reads the app's manifest. A missing app is an operator error, and so is a
// routes file that does not belong to the app.
func New(ctx context.Context, cfg app.Config, routes *rules.Routes, log *slog.Logger, extra ...kgo.Opt) (*Auditor, error) {
	if err := errors.Join(cfg.Validate(), cfg.CheckSecret(routes.NeedsSecret())); err != nil {
		return nil, err
	}
	redact := security.NewRedactor(cfg.Config)
	opts, err := security.ClientOptions(cfg.Config, prometheus.NewRegistry(), slog.New(redact.Handler(log.Handler())), redact)
	if err != nil {
		return nil, err
	}
	a := &Auditor{cfg: cfg, routes: routes, redact: redact}
	cfg.MaxDecompressedBytes = fetchBudget
	a.client, err = kgo.NewClient(append(append(opts, cfg.FetchOptions()...), extra...)...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	a.admin, a.leaders = kadm.NewClient(a.client), kafka.NewLeaders(a.client)
	if err := a.open(ctx); err != nil {
		a.Close()
		return nil, a.explain(err)
	}
	return a, nil
}

// Routes returns the routes in force, in the order of Report.Routes.
func (a *Auditor) Routes() *rules.Routes { return a.routes }

// Close ends the connections.
func (a *Auditor) Close() { a.client.Close() }

func (a *Auditor) explain(err error) error {
	return a.redact.Err(security.ExplainCredentials(err, a.cfg.SASL))
}

func (a *Auditor) open(ctx context.Context) error {
	found, err := app.Find(ctx, a.client, a.cfg.AppID, a.routes)
	if err != nil {
		return err
	}
	if err := found.Ran(); err != nil {
		return err
	}
	if unknown := found.Unknown(); len(unknown) > 0 {
		return kafka.OperatorErrorf("app %s has never run with these routes: %s; audit with the routes file of the app", a.cfg.AppID, strings.Join(unknown, ", "))
	}
	if err := found.Check(a.cfg.KeySecret.Bytes()); err != nil {
		return err
	}
	a.routes = found.Routes() // the routes in force, even if the routes file differs
	a.app = found.App()
	if left := found.Topology.Forwarded; len(left) > 0 {
		return kafka.OperatorErrorf("the keys of app %s have moved to other partitions, and %s is forwarded, which an audit cannot judge: run oncebus move --finish, and begin a new audit", a.cfg.AppID, strings.Join(left, ", "))
	}
	if left := found.Topology.Moved; len(left) > 0 {
		return kafka.OperatorErrorf("topic %s of app %s was prepartitioned until a move, and an audit cannot judge its events of before: run oncebus move --finish, and begin a new audit", strings.Join(left, ", "), a.cfg.AppID)
	}
	a.topics = maps.Clone(found.Topology.Topics)
	described, err := app.DescribeTopics(ctx, a.admin, a.emissions()...)
	if err != nil {
		return err
	}
	maps.Copy(a.topics, described)
	for _, topic := range a.everyTopic() {
		if _, ok := a.topics[topic]; !ok {
			return kafka.OperatorErrorf("topic %s of the routes file does not exist", topic)
		}
	}
	return nil
}

// inputs returns the input topics, including the topics of outcomes.
func (a *Auditor) inputs() []string {
	return slices.Concat(a.app.Topology.Routed, a.app.Topology.Prepartitioned)
}

// emissions returns the topics to which the app emits, except for the topics of verdicts and answers.
func (a *Auditor) emissions() []string {
	var names []string
	for _, r := range a.routes.Routes {
		for _, topic := range []string{r.Output, r.Duplicates.Topic, r.DeadLetter, r.Claim.Replies} {
			if topic != "" {
				names = append(names, topic)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (a *Auditor) changelogs() []string {
	var names []string
	for _, topic := range a.app.Topology.TaskTopics() {
		names = append(names, a.app.ChangelogOf(topic))
	}
	return names
}

func (a *Auditor) everyTopic() []string {
	return slices.Concat(a.inputs(), a.emissions(), a.changelogs(), a.app.Topology.TaskTopics())
}

// policyOf returns a policy of the routes file in the oracle's spelling.
func policyOf(p rules.Policy) oracle.Policy { return oracle.Policy(p.String()) }

// ledgerConfig returns the configuration of the ledger for a range that begins with this route set.
func (a *Auditor) ledgerConfig(set int64, o Options) oracle.LedgerConfig {
	cfg := oracle.LedgerConfig{Keys: o.Keys, Open: o.Open, Sets: a.windowsSince(set)}
	for number := range uint16(len(a.app.Manifest.Topics)) {
		cfg.Names = append(cfg.Names, a.app.TopicName(number))
	}
	if topic := a.app.Topology.Repartition; topic != "" {
		cfg.Repartition, cfg.HasRepartition = a.app.TopicNumbers[topic], true
	}
	for _, r := range a.routes.Routes {
		route := oracle.LedgerRoute{
			Name: r.Name, NamespaceID: a.app.ByName[r.Name].NamespaceID,
			Window: r.Window.Milliseconds(), Grace: r.Grace.Milliseconds(),
			Claims: r.Mode == rules.ClaimMode, Clamp: r.OnFuture == rules.Clamp, Duplicates: policyOf(r.Duplicates.Policy),
			Late: policyOf(r.OnLate), MissingKey: policyOf(r.OnMissingKey), FailOpen: r.FailOpen || r.Off,
			RejectsAfterWindow: r.RejectsAfterWindow, Limited: r.Limits.LiveKeys > 0, Fingerprint: len(r.Fingerprint) > 0,
		}
		route.Skew, route.LongestSkew = a.skewsSince(set, r)
		if route.Claims {
			route.Duplicates = oracle.Drop
		}
		cfg.Routes = append(cfg.Routes, route)
	}
	return cfg
}

// Audit audits the range from a position to a cut that it takes at the call. If from is nil, it audits the app
// from the app's start, provided that all records since then still exist; if they do not, it only takes a
// position.
func (a *Auditor) Audit(ctx context.Context, from *Position, o Options) (*Result, error) {
	result, err := a.audit(ctx, from, o)
	if err != nil {
		return nil, a.explain(err)
	}
	return result, nil
}

// audit audits the range from a position to a new cut. If the range cannot be checked, it only takes a position
// (begin). If a task has judged by routes that the auditor has not read, it reads these routes and starts
// again.
func (a *Auditor) audit(ctx context.Context, from *Position, o Options) (*Result, error) {
	result := &Result{}
	start := from == nil
	if start {
		var err error
		if from, result.Since, err = a.whole(ctx); err != nil {
			return nil, err
		}
	} else {
		var err error
		if result.Since, err = a.continues(ctx, from); err != nil {
			return nil, err
		}
	}
	if len(result.Since) > 0 {
		return a.begin(ctx, result, o)
	}
	began := time.Now()
	cut, err := a.cut(ctx)
	if err != nil {
		return nil, err
	}
	if a.isBehind(cut) {
		return a.again(ctx, from, start, o)
	}
	result.Cut = time.Since(began)
	ledger, err := oracle.RestoreLedger(a.ledgerConfig(from.Set, o), from.ledger)
	if err != nil {
		return nil, kafka.OperatorErrorf("the saved position: %v; audit without it to begin again", err)
	}
	span := newSpan(a.app, from, cut)
	ledger.Begin(span, from.Edge)
	if result.Records, err = a.read(ctx, ledger, span, o.Watch); err != nil {
		return nil, err
	}
	result.Report = ledger.Close()
	result.Findings = ledger.Findings()
	result.From, result.To = from, cut
	cut.ledger = ledger.AppendState(nil, a.horizons(cut))
	result.Took = time.Since(began) - result.Cut
	return result, nil
}

// again reads the routes again, because they have changed, and audits the range by the new routes.
func (a *Auditor) again(ctx context.Context, from *Position, start bool, o Options) (*Result, error) {
	if start {
		from = nil
	}
	if err := a.open(ctx); err != nil {
		return nil, err
	}
	return a.audit(ctx, from, o)
}

// begin takes a position and reads the keys from the changelogs, without checking anything.
func (a *Auditor) begin(ctx context.Context, result *Result, o Options) (*Result, error) {
	began := time.Now()
	cut, sure, err := a.edge(ctx)
	if err != nil {
		return nil, err
	}
	if a.isBehind(cut) {
		if err := a.open(ctx); err != nil {
			return nil, err
		}
		return a.begin(ctx, result, o)
	}
	result.Cut = time.Since(began)
	ledger := oracle.NewLedger(a.ledgerConfig(cut.Set, o))
	ledger.Begin(newSpan(a.app, cut, cut), true)
	if result.Records, err = a.readKeys(ctx, ledger, sure, cut, o.Watch); err != nil {
		return nil, err
	}
	result.Report = ledger.Report()
	result.Begins, result.To = true, cut
	cut.ledger = ledger.AppendState(nil, a.horizons(cut))
	result.Took = time.Since(began) - result.Cut
	return result, nil
}
