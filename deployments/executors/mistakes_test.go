//go:build unix

package executors_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"oncebus/processor/conformance"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/security"
)

// planted is a mistake that the test plants in the executor in Go.
type planted struct {
	name, does string
	edits      []string // old and new text in pairs; an old text may be in any file of the program
	breaks     []conformance.Rule
	asksNot    bool // the executor runs with settings with which it does not ask for starts
	waits      bool // the run ends with waiting in vain for an outcome
	asked      bool // the gateway does not accept idempotency keys
	stops      bool // the executor is stopped where the scenario says crash, and another process starts
}

var mistakes = []planted{
	{
		name: "none", does: "the executor as it is",
	},
	{
		name: "none-without-start", does: "the executor as it is, where it does not ask", asksNot: true,
	},
	{
		name: "none-without-keys", does: "the executor as it is, where the gateway knows no idempotency keys", asked: true,
	},
	{
		name: "drops-what-a-stop-finished", stops: true, waits: true, does: "a stop ends the executor without the transaction of what it has finished",
		edits:  []string{"	ctx = context.WithoutCancel(ctx)\n	if err", "	if ctx.Err() != nil {\n		return ctx.Err()\n	}\n	if err"},
		breaks: []conformance.Rule{conformance.OutcomeForEach},
	},
	{
		name: "asks-after-a-note-only", asked: true, does: "the gateway is asked for an earlier charge only if the journal has a note of the work",
		edits: []string{"		if g.ask {\n", "		if g.ask && unsure {\n"},
	},
	{
		name: "not-noted", asked: true, does: "the gateway is asked so, and the journal gets no note before the work",
		edits: []string{
			"		if g.ask {\n", "		if g.ask && unsure {\n",
			"	j.begun[event] = true\n	return false, j.write(line{Event: event})\n", "	return false, nil\n",
		},
		breaks: []conformance.Rule{conformance.EffectOnce},
	},
	{
		name: "never-asks-the-gateway", asked: true, does: "the gateway is not asked for an earlier charge",
		edits:  []string{"		if g.ask {\n", "		if g.ask && c.Reference == \"\" {\n"},
		breaks: []conformance.Rule{conformance.EffectOnce},
	},
	{
		name: "key-not-sent", does: "the charge has no idempotency key",
		edits:  []string{"		request.Header.Set(\"Idempotency-Key\", key)\n", ""},
		breaks: []conformance.Rule{conformance.EffectOnce},
	},
	{
		name: "another-reference", does: "the charge has the position of the event as its reference and key, and not its oncebus-key",
		edits:  []string{"	reference := header(event, \"oncebus-key\")\n", "	reference := \"\"\n"},
		breaks: []conformance.Rule{conformance.EffectOnce, conformance.UnclaimedOnce},
	},
	{
		name: "unclaimed-skipped", does: "an event without a claim is skipped",
		edits:  []string{"claimedOnly: os.Getenv(\"EXECUTOR_CLAIMED_ONLY\") == \"true\",", "claimedOnly: true,"},
		breaks: []conformance.Rule{conformance.UnclaimedOnce},
	},
	{
		name: "no-reply", waits: true, does: "a request that waits for an event without a claim gets no outcome",
		edits:  []string{"	case replyTo == \"\":\n", "	case token == \"\":\n"},
		breaks: []conformance.Rule{conformance.OutcomeForEach},
	},
	{
		name: "outcome-outside-the-transaction", does: "the producer of the questions also sends the outcomes",
		edits:  []string{"		x.session.Produce(ctx, &again, failed.Promise())\n", "		x.client.Produce(ctx, &again, failed.Promise())\n		failed.Err()\n"},
		breaks: []conformance.Rule{conformance.OneTransaction},
	},
	{
		name: "stale-token", waits: true, does: "the outcome of a later attempt has the token of the first one under its record key",
		edits: []string{
			"	outcome, replyTo := x.record(event.Key, token, kind), ", "	if first[string(event.Key)] == \"\" {\n		first[string(event.Key)] = token\n	}\n	outcome, replyTo := x.record(event.Key, first[string(event.Key)], kind), ",
			"const (\n	// eventsMax is", "var first = map[string]string{}\n\nconst (\n	// eventsMax is",
		},
		breaks: []conformance.Rule{conformance.OutcomeForEach, conformance.OutcomeOnce},
	},
	{
		name: "reads-uncommitted", does: "the input is read with read_uncommitted",
		edits:  []string{"		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))", "		kgo.FetchIsolationLevel(kgo.ReadUncommitted()), kgo.RequireStableFetchOffsets(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))"},
		breaks: []conformance.Rule{conformance.ReadsCommitted},
	},
	{
		name: "outcome-again-after-a-crash", asksNot: true, does: "the outcomes are committed in a transaction of their own, before the offsets",
		edits: []string{
			"	if err := x.session.Begin(); err != nil {\n		return err\n	}\n", "	own, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(os.Getenv(\"EXECUTOR_BROKERS\"), \",\")...), kgo.TransactionalID(x.id+\"-own\"))\n	if err != nil {\n		return err\n	}\n	defer own.Close()\n	if err := errors.Join(x.session.Begin(), own.BeginTransaction()); err != nil {\n		return err\n	}\n",
			"		x.session.Produce(ctx, &again, failed.Promise())\n	}\n", "		own.Produce(ctx, &again, failed.Promise())\n	}\n	failed.Err()\n	if err := own.EndTransaction(ctx, kgo.TryCommit); err != nil {\n		return err\n	}\n	time.Sleep(1500 * time.Millisecond)\n",
		},
		breaks: []conformance.Rule{conformance.OutcomeOnce},
	},
	{
		name: "start-ignored", does: "the executor asks, and works without the answer",
		edits: []string{
			"		case granted := <-answered:\n			return granted\n", "		case <-answered:\n			return true\n",
			"	if !granted {\n		a.over[token] = true\n", "	if !granted && header(r, \"oncebus-outcome\") != \"start\" {\n		a.over[token] = true\n",
		},
		breaks: []conformance.Rule{conformance.HonoursStart},
	},
	{
		name: "never-asks", does: "the executor works without a question",
		edits:  []string{" && x.start && !x.ask(", " && x.start && x.id == \"\" && !x.ask("},
		breaks: []conformance.Rule{conformance.AsksStart, conformance.HonoursStart},
	},
	{
		name: "takes-an-old-answer", does: "the executor takes the answer to a question that it asked before it was started again",
		edits:  []string{"id != \"\" && (id != a.id || header(r, runHeader) != a.run)", "id != \"\" && id != a.id"},
		breaks: []conformance.Rule{conformance.HonoursStart},
	},
	{
		name: "lease-not-renewed", does: "the executor renews nothing",
		edits:  []string{"				if a.started[token] == nil && !a.over[token] {\n", "				if a.started[token] == nil && !a.over[token] && key == nil {\n"},
		breaks: []conformance.Rule{conformance.RenewsInTime},
	},
	{
		name: "works-on-when-superseded", does: "the answer superseded does not end the work",
		edits:  []string{"		if cancel := a.cancel[token]; cancel != nil {\n", "				if cancel := a.cancel[token]; cancel == nil && granted {\n"},
		breaks: []conformance.Rule{conformance.StopsWhenOver},
	},
	{
		name: "another-start-id-after-a-crash", waits: true, does: "the start id is drawn at each start",
		edits:  []string{"id: id, run: rand.Text(), renew", "id: id + time.Now().String(), run: rand.Text(), renew"},
		breaks: []conformance.Rule{conformance.KeepsStartID},
	},
	{
		name: "result-differs", does: "the value of the outcome has a blank",
		edits:  []string{"`{\"account\":%q,\"granted\":%d}`", "`{\"account\":%q, \"granted\":%d}`"},
		breaks: []conformance.Rule{conformance.Result},
	},
	{
		name: "open-while-idle", does: "the executor begins the next transaction when it has no event",
		edits: []string{
			"	return errors.Join(err, failed.Err()) //", "	x.idle = true\n	return errors.Join(err, failed.Err()) //",
			"	done map[string]*kgo.Record\n", "	done map[string]*kgo.Record\n	idle bool\n",
			"		fetches := session.PollRecords(ctx, eventsMax)\n", "		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)\n		fetches := session.PollRecords(short, eventsMax)\n		cancel()\n		if len(fetches.Records()) == 0 && x.idle && session.Client().BeginTransaction() == nil {\n			session.Client().ProduceSync(ctx, &kgo.Record{Topic: x.topic, Value: []byte(\"x\")})\n			x.idle = false\n			fetches = session.PollRecords(ctx, eventsMax)\n			_ = session.Client().EndTransaction(ctx, kgo.TryAbort)\n		}\n		if len(fetches.Records()) == 0 {\n			continue\n		}\n",
		},
		breaks: []conformance.Rule{conformance.IdleFree},
	},
}

// TestRealExecutorMistakesAreNamed: oncebus conformance names each mistake that is planted in the executor in Go, and
// finds no mistake in the executor without one. The runs mostly wait, so all run at the same time.
func TestRealExecutorMistakesAreNamed(t *testing.T) {
	t.Parallel()
	verdicts, errs := make([][]conformance.Verdict, len(mistakes)), make([]error, len(mistakes))
	var running sync.WaitGroup
	for i := range mistakes {
		run := mistakes[i].prepare(t)
		running.Go(func() { verdicts[i], errs[i] = run() })
	}
	running.Wait()
	for i, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			must(t, errs[i])
			m.compare(t, verdicts[i])
		})
	}
}

// compare compares the mistakes that conformance found with the mistake that was planted.
func (m *planted) compare(t *testing.T, verdicts []conformance.Verdict) {
	t.Helper()
	broken := conformance.Broken(verdicts)
	for _, v := range verdicts {
		for _, finding := range v.Findings {
			t.Logf("%s: %s", v.Rule, finding)
		}
		if m.name == "none" && !v.Judged {
			t.Errorf("rule %s is not judged", v.Rule)
		}
	}
	for _, rule := range m.breaks {
		if !slices.Contains(broken, rule) {
			t.Errorf("the executor in which %s breaks %v, want %s among them", m.does, broken, rule)
		}
	}
	if len(m.breaks) == 0 && len(broken) > 0 {
		t.Errorf("the executor breaks %v", broken)
	}
}

// prepare builds the executor with the mistake. It returns a function that runs the scenario on an embedded broker.
func (m *planted) prepare(t *testing.T) func() ([]conformance.Verdict, error) {
	t.Helper()
	brokers, scenario := embedded.Start(t).ListenAddrs(), m.scenario(t)
	return newProcess(t, []string{m.build(t)}, brokers, "", scenario, m.stops).judged(t, brokers, scenario)
}

// scenario returns the scenario of this directory with the changes that the mistake needs.
func (m *planted) scenario(t *testing.T) *conformance.Scenario {
	t.Helper()
	file, err := os.ReadFile("scenario.yaml")
	must(t, err)
	text := string(file)
	if m.stops {
		text = stopScenario
	}
	if m.asksNot {
		text = strings.NewReplacer("start: true\n", "", "  - {do: refuse, event: plain}\n", "").Replace(text)
	}
	if m.waits {
		text += "wait: 20s\n"
	}
	if m.asked {
		text += "gateway: ask\n"
	}
	scenario, err := conformance.ParseScenario("scenario.yaml", []byte(text))
	must(t, err)
	return scenario
}

// build builds the program with the mistake and returns its path.
func (m *planted) build(t *testing.T) string {
	t.Helper()
	sources, err := filepath.Glob(absolute(t, filepath.Join("go", "*.go")))
	must(t, err)
	dir := t.TempDir()
	overlay, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "executor")
	files, found := map[string]string{}, make([]int, len(m.edits))
	for _, source := range sources {
		text, err := os.ReadFile(source)
		must(t, err)
		for i := 0; i < len(m.edits); i += 2 {
			found[i] += bytes.Count(text, []byte(m.edits[i]))
			text = bytes.Replace(text, []byte(m.edits[i]), []byte(m.edits[i+1]), 1)
		}
		files[source] = filepath.Join(dir, filepath.Base(source))
		must(t, os.WriteFile(files[source], text, 0o600))
	}
	for i := 0; i < len(m.edits); i += 2 {
		if found[i] != 1 {
			t.Fatalf("%q is %d times in %v", m.edits[i], found[i], sources)
		}
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": files})
	must(t, err)
	must(t, os.WriteFile(overlay, replace, 0o600))
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", binary, "./go").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

// stopScenario is for an executor that gets SIGTERM at the points where conformance would otherwise kill it.
const stopScenario = `
lease: 5s
start: true
events:
  brief: {value: '{"account":"b","amount":6,"work_ms":40}', outcome: completed, result: '{"account":"b","granted":6}'}
steps:
  - {do: crash, event: brief, count: 40}
`

// process is an executor that conformance starts and kills.
type process struct {
	command []string
	environ []string
	prefix  string // of the names of topics and group
	gateway *conformance.Gateway
	running *kafkatest.Process
	log     *os.File
	// stops makes SIGTERM take the place of a crash. Each start is then another process of the group, with its own
	// instance and journal.
	stops  bool
	starts int
}

// newProcess returns an executor with the topics run, outcomes and answers, which charges at a gateway.
func newProcess(t *testing.T, command, brokers []string, prefix string, s *conformance.Scenario, stops bool) *process {
	t.Helper()
	gateway, err := conformance.Listen(t.Context(), "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, gateway.Close()) })
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	log, err := os.Create(path)
	must(t, err)
	x := &process{command: command, log: log, prefix: prefix, gateway: gateway, stops: stops, environ: append(os.Environ(),
		"EXECUTOR_BROKERS="+strings.Join(brokers, ","), "EXECUTOR_INPUT="+prefix+"run", "EXECUTOR_OUTCOMES="+prefix+"outcomes",
		"EXECUTOR_ANSWERS="+prefix+"answers", "EXECUTOR_GROUP="+prefix+"executor",
		"EXECUTOR_RENEW_MS=1000", fmt.Sprint("EXECUTOR_START=", s.Start), "EXECUTOR_JOURNAL="+filepath.Join(dir, "journal"),
		"EXECUTOR_GATEWAY_LIMIT_MS=1000", "EXECUTOR_GATEWAY="+gateway.URL(), fmt.Sprint("EXECUTOR_GATEWAY_ASK=", s.Gateway == conformance.GatewayAsk))}
	t.Cleanup(func() {
		if x.running != nil {
			_ = x.running.Kill()
		}
		if text, err := os.ReadFile(path); t.Failed() && err == nil {
			t.Logf("log of %v:\n%s", command, text)
		}
		_ = log.Close()
	})
	return x
}

// judged returns a function that does the scenario, and judges.
func (x *process) judged(t *testing.T, brokers []string, scenario *conformance.Scenario) func() ([]conformance.Verdict, error) {
	t.Helper()
	return func() ([]conformance.Verdict, error) {
		timeline, err := conformance.Run(t.Context(), conformance.Config{
			Client: security.Config{Brokers: brokers, AppID: "conformance"}, Topic: x.prefix + "run", Outcomes: x.prefix + "outcomes", Answers: x.prefix + "answers",
			Group: x.prefix + "executor", CreateTopics: true, Gateway: x.gateway,
			Control: conformance.Control{Start: x.start, Kill: x.kill, Stop: x.kill, Ended: x.ended},
			Step:    func(int) {},
		}, scenario, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		return conformance.Check(scenario, timeline), nil
	}
}

func (x *process) start(ctx context.Context) (err error) {
	command := exec.CommandContext(context.WithoutCancel(ctx), x.command[0], x.command[1:]...)
	command.Env, command.Stdout, command.Stderr = append(slices.Clip(x.environ), fmt.Sprintf("EXECUTOR_INSTANCE=%sexecutor-%d", x.prefix, x.starts)), x.log, x.log
	if x.stops {
		x.starts++
		command.Env = append(command.Env, fmt.Sprintf("EXECUTOR_JOURNAL=%s-%d", x.log.Name(), x.starts))
	}
	x.running, err = kafkatest.StartProcess(command)
	return err
}

func (x *process) kill(context.Context) error {
	if x.stops {
		return x.running.Stop(20 * time.Second)
	}
	return x.running.Kill()
}

func (x *process) ended() error {
	if x.running == nil || x.running.Running() {
		return nil
	}
	return fmt.Errorf("exit: %w", x.running.Err())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
