package processor_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// diagnose returns the findings of a diagnosis while the clock of this machine is ahead by this duration.
func (b *bench) diagnose(cfg processor.Config, ahead time.Duration, extra ...kgo.Opt) []app.Finding {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	findings, err := processor.Diagnose(ctx, cfg, b.routes, slog.New(slog.DiscardHandler), func() time.Time { return time.Now().Add(ahead) }, extra...)
	must(b.t, err)
	return findings
}

// assertFinding checks the worst level of all findings, and that a finding of this check contains the text.
func assertFinding(t *testing.T, findings []app.Finding, level app.Level, check, text string) {
	t.Helper()
	if got := app.Worst(findings); got != level {
		t.Errorf("%v, want %v: %+v", got, level, findings)
	}
	if !slices.ContainsFunc(findings, func(f app.Finding) bool {
		return f.Check == check && f.Level == level && strings.Contains(f.Text+" -> "+f.Action, text)
	}) {
		t.Errorf("no finding %v of %s with %q: %+v", level, check, text, findings)
	}
}

// withBrokerSettings makes the broker report these settings until undo is called.
func (b *bench) withBrokerSettings(settings map[string]string) (undo func()) {
	var undone atomic.Bool
	b.cluster.Intercept(func(r kmsg.Request) (kmsg.Response, error, bool) {
		req, ok := r.(*kmsg.DescribeConfigsRequest)
		if undone.Load() || !ok || len(req.Resources) != 1 || req.Resources[0].ResourceType != kmsg.ConfigResourceTypeBroker {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		one := kmsg.NewDescribeConfigsResponseResource()
		one.ResourceType, one.ResourceName = kmsg.ConfigResourceTypeBroker, req.Resources[0].ResourceName
		for name, value := range settings {
			config := kmsg.NewDescribeConfigsResponseResourceConfig()
			config.Name, config.Value = name, kmsg.StringPtr(value)
			one.Configs = append(one.Configs, config)
		}
		resp.Resources = append(resp.Resources, one)
		return resp, nil, true
	})
	return func() { undone.Store(true) }
}

// TestBrokersThatLetNoWorkerWorkAreNamed protects that a start and a diagnosis name the broker setting that lets no
// worker work. A start writes nothing then, and waits for brokers that may yet come.
func TestBrokersThatLetNoWorkerWorkAreNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	cfg := b.config("one")
	undo := b.withBrokerSettings(map[string]string{"offsets.topic.replication.factor": "3", "transaction.state.log.replication.factor": "3"})
	const named = "set offsets.topic.replication.factor=1, transaction.state.log.replication.factor=1"
	assertFinding(t, b.diagnose(cfg, 0), app.Fails, "coordinators", named)
	i := b.start(cfg)
	b.wait("the reason in /readyz", func() bool {
		err := i.Ready()
		return err != nil && strings.Contains(err.Error(), "topics and manifest are not set up yet: Kafka cannot create topic __consumer_offsets") && strings.Contains(err.Error(), named)
	})
	undo()
	b.ready(i)
	must(t, i.stop())

	other := newBench(t, benchRoutes)
	other.createTopic("signals.raw", 4)
	other.withBrokerSettings(map[string]string{"group.min.session.timeout.ms": "6000", "group.max.session.timeout.ms": "1800000"})
	cfg = other.config("one")
	cfg.SessionTimeout = time.Second
	const refused = "the brokers refuse ONCEBUS_SESSION_TIMEOUT=1s: group.min.session.timeout.ms is 6s"
	assertFinding(t, other.diagnose(cfg, 0), app.Fails, "coordinators", refused)
	ended := other.start(cfg)
	if <-ended.done; !errors.Is(ended.err, kafka.ErrOperator) || !strings.Contains(ended.err.Error(), refused) {
		t.Errorf("a start with that setting: %v", ended.err)
	}
	if topics, err := other.admin.ListTopics(t.Context()); err != nil || len(topics) != 1 {
		t.Errorf("it created topics: %v, %v", topics.Names(), err)
	}
}

// TestDiagnosisWritesNothing protects that a diagnosis sends no request that changes the cluster, neither before the
// first start nor while the app runs, and makes no directory. The running app does not notice the diagnosis.
func TestDiagnosisWritesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	for _, topic := range []string{"signals.raw", "signals.unique", "dead"} {
		b.createTopic(topic, 4)
	}
	cfg := b.config("one")
	cfg.StateDir = filepath.Join(cfg.StateDir, "not", "there")
	var mu sync.Mutex
	var wrote []string
	doctors := func(r kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		switch req := r.(type) {
		case *kmsg.CreateTopicsRequest:
			if !req.ValidateOnly {
				wrote = append(wrote, "CreateTopics")
			}
		case *kmsg.ProduceRequest, *kmsg.InitProducerIDRequest, *kmsg.JoinGroupRequest, *kmsg.OffsetCommitRequest, *kmsg.AddPartitionsToTxnRequest, *kmsg.DeleteRecordsRequest, *kmsg.IncrementalAlterConfigsRequest:
			wrote = append(wrote, kmsg.NameForKey(r.Key()))
		}
		return nil, nil, false
	}
	b.cluster.Intercept(doctors)
	before := b.diagnose(cfg, 0)
	assertFinding(t, before, app.Note, "replicas", "the cluster has one broker")
	if _, err := os.Stat(cfg.StateDir); err == nil {
		t.Errorf("%s exists", cfg.StateDir)
	}
	if len(wrote) > 0 {
		t.Errorf("before the first start it sent %v", wrote)
	}

	i := b.ready(b.start(cfg))
	records, sent := traffic(20)
	b.produce(records...)
	b.drain(i, "signals.raw")
	groups := b.cluster.GroupInfo("app-dedup")
	for range 5 {
		assertFinding(t, b.diagnose(cfg, 0), app.Note, "replicas", "the cluster has one broker")
	}
	if now := b.cluster.GroupInfo("app-dedup"); now.Epoch != groups.Epoch || len(now.Members) != len(groups.Members) {
		t.Errorf("the group changed from %+v to %+v", groups, now)
	}
	b.produce(signal("after", 0, testTime))
	sent["after"] = signal("after", 0, testTime)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
}

// TestDiagnosisFindsWhatAStartRefuses protects that each reason for which a start ends is a finding with the same way
// out.
func TestDiagnosisFindsWhatAStartRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	cfg.CreateTopics = false
	assertFinding(t, b.diagnose(cfg, 0), app.Fails, "topics", "topic signals.raw does not exist: create it, or set ONCEBUS_CREATE_TOPICS=true")
	cfg.CreateTopics = true
	b.runOnce(cfg, "signals.raw")
	b.alter("app-repartition-changelog", "retention.bytes", "1000000")
	assertFinding(t, b.diagnose(cfg, 0), app.Fails, "settings", "app-repartition-changelog has retention.bytes=1000000, it must be -1")
	b.alter("app-repartition-changelog", "retention.bytes", "-1")
	b.useRoutes(strings.Replace(benchRoutes, "field: id", "field: other", 1))
	assertFinding(t, b.diagnose(cfg, 0), app.Fails, "routes", "differs from route set 1, which app app has in force; run: oncebus plan")
	b.useRoutes(benchRoutes)
	cfg.Partitions = 5
	assertFinding(t, b.diagnose(cfg, 0), app.Fails, "topics", "ONCEBUS_PARTITIONS is 5")
	cfg.Partitions = 4
	assertFinding(t, b.diagnose(cfg, 0), app.Note, "replicas", "one broker")
}

// TestDiagnosisComparesClocks protects the comparison of clocks. The embedded broker does not state its time, so the
// newest records show it. The diagnosis finds a machine that is behind them, and events from the future. A start
// reads the brokers' clock exactly.
func TestDiagnosisComparesClocks(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	assertFinding(t, b.diagnose(cfg, -10*time.Minute), app.AtRisk, "clocks", "behind the brokers")
	must(t, i.stop())
	b.produce(signal("future", 0, time.Now().Add(20*time.Minute).UnixMilli()))
	assertFinding(t, b.diagnose(cfg, 0), app.AtRisk, "clocks", "topic signals.raw: the newest event is ")
	b.ready(b.start(cfg))
	b.wait("the check of the clocks", func() bool {
		return slices.ContainsFunc(b.startChecks(), func(line string) bool {
			return strings.Contains(line, "level=WARN") && strings.Contains(line, "check=clocks") && strings.Contains(line, "topic signals.raw: the newest event")
		})
	})
}

// TestDiagnosisReadsEventTime protects that a diagnosis reads the event time of a route from the field that has it.
func TestDiagnosisReadsEventTime(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes+"    time: {field: at, format: unix_ms}\n")
	b.createTopic("signals.raw", 1)
	b.produce(&kgo.Record{Topic: "signals.raw", Value: []byte(`{"id":"1","at":` + unixMilli(time.Now().Add(30*time.Minute)) + `}`)})
	assertFinding(t, b.diagnose(b.config("one"), 0), app.AtRisk, "clocks", "it moves stream time")
}

// TestDiagnosisComparesTheUnitOfTime protects that a diagnosis reports an event as invalid if its time is in another
// unit than the route says, and names an event that is years older than its record.
func TestDiagnosisComparesTheUnitOfTime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, of := range []struct {
		at    string
		level app.Level
		text  string
	}{
		{strconv.FormatInt(now.Unix(), 10), app.AtRisk, "set format: unix_s"},
		{unixMilli(now.AddDate(-1, 0, 0)), app.Note, "is time.format right?"},
		{unixMilli(now), app.Note, "one broker"},
	} {
		b := newBench(t, benchRoutes+"    time: {field: at, format: unix_ms}\n")
		b.createTopic("signals.raw", 1)
		b.produce(&kgo.Record{Topic: "signals.raw", Value: []byte(`{"id":"1","at":` + of.at + `}`)})
		findings := b.diagnose(b.config("one"), 0)
		check := "clocks"
		if of.text == "one broker" {
			check = "replicas"
		}
		assertFinding(t, findings, of.level, check, of.text)
	}
}

// TestDiagnosisOfAnOldBroker protects that a diagnosis recognizes old clusters by their requests: a cluster with the
// requests of Kafka 3.6 has the old transaction protocol, and a cluster with those of 3.4 is older than the versions
// that oncebus is tested with.
func TestDiagnosisOfAnOldBroker(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		versions    *kversion.Versions
		level       app.Level
		check, text string
	}{
		{"3.6", kversion.V3_6_0(), app.Note, "features", "transaction.version is 0"},
		{"3.4", kversion.V3_4_0(), app.AtRisk, "versions", "broker 0 has Kafka older than 3.6"},
		{"2.4", kversion.V2_4_0(), app.Fails, "versions", "lacks topic ids"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes, kfake.MaxVersions(tt.versions))
			findings := b.diagnose(b.config("one"), 0)
			assertFinding(t, findings, tt.level, tt.check, tt.text)
		})
	}
}

// TestDiagnosisWithoutABroker protects that the only finding of a diagnosis without a broker names the address.
func TestDiagnosisWithoutABroker(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	closed, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	must(t, closed.Close())
	cfg := b.config("one")
	cfg.Brokers = []string{closed.Addr().String()}
	findings := b.diagnose(cfg, 0)
	assertFinding(t, findings, app.Fails, "brokers", closed.Addr().String())
	if len(findings) != 1 {
		t.Errorf("%d findings: %+v", len(findings), findings)
	}
}

func unixMilli(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }
