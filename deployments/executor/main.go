package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// settings has the topics and the identity of an executor.
type settings struct {
	brokers         []string
	input, outcomes string
	group           string
	instance        string // the transactional id of this process
	// answers is the topic with the answers to requests for a start; "" to execute without asking. journal is the
	// file that records what was started and executed; "" for no file, which requires that answers is "" too.
	answers, journal string
	renewEvery       time.Duration
	// repeatable allows work that a crash cut off to run again. claimedOnly makes the executor skip events without a
	// claim.
	repeatable, claimedOnly bool
}

func main() {
	s := settings{group: "executor"}
	brokers := flag.String("brokers", "localhost:9092", "seed brokers, comma separated")
	flag.StringVar(&s.input, "input", "economy.run", "output topic of the route")
	flag.StringVar(&s.outcomes, "outcomes", "economy.outcomes", "outcomes topic of the route")
	flag.StringVar(&s.instance, "instance", "executor-1", "transactional id of this process, different for each")
	flag.StringVar(&s.answers, "answers", "", "answers topic of the route: each event is executed only after its start was granted, and never twice; needs -journal")
	flag.StringVar(&s.journal, "journal", "", "file of what this process started and executed, different for each, kept across restarts")
	flag.DurationVar(&s.renewEvery, "renew", 10*time.Second, "time between renewals of an event that is being executed")
	flag.BoolVar(&s.repeatable, "repeatable", false, "work that a crash cut off may run again: its only effect is the result, or the other system knows oncebus-key")
	flag.BoolVar(&s.claimedOnly, "claimed-only", false, "skip an event that was let through without a claim")
	flag.Parse()
	if s.answers != "" && s.journal == "" || s.renewEvery <= 0 {
		fmt.Fprintln(os.Stderr, "want -journal with -answers, and a positive -renew")
		os.Exit(exitSettings)
	}
	s.brokers = strings.Split(*brokers, ",")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := s.run(ctx, grant)
	stop()
	if err != nil {
		slog.Error("executor failed", "error", err)
		os.Exit(exitCode(err))
	}
}

// errRejected refuses an event permanently. After any other error the event may be tried again.
var errRejected = errors.New("rejected")

// grant is the work of this example: it grants the amount that the event names. Its only effect is the result, so
// repeating it does no harm and it may run with -repeatable.
func grant(_ context.Context, event *kgo.Record) (result []byte, err error) {
	var request struct {
		Account string `json:"account"`
		Amount  int    `json:"amount"`
	}
	if err := json.Unmarshal(event.Value, &request); err != nil {
		return nil, fmt.Errorf("%w: %w", errRejected, err)
	}
	if request.Amount > 1000 {
		return nil, fmt.Errorf("%w: %d is more than 1000", errRejected, request.Amount)
	}
	return json.Marshal(map[string]any{"account": request.Account, "granted": request.Amount})
}

// run processes events until ctx is done. If a transaction is aborted, this process sends the same outcomes again
// without repeating the work. If another process gets the partition meanwhile, it processes the same events again.
func (s *settings) run(ctx context.Context, work func(context.Context, *kgo.Record) ([]byte, error)) (err error) {
	if s.answers != "" {
		return s.runStarted(ctx, work)
	}
	if s.journal != "" {
		journal, err := openJournal(s.journal)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, journal.close()) }()
		work = journal.counting(work)
	}
	o := outbox{settings: s, work: work, executed: map[eventID]*outcome{}}
	session, err := kgo.NewGroupTransactSession(
		kgo.OnPartitionsRevoked(o.dropLost), kgo.OnPartitionsLost(o.dropLost),
		kgo.SeedBrokers(s.brokers...), kgo.ConsumerGroup(s.group), kgo.ConsumeTopics(s.input), kgo.TransactionalID(s.instance),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), endOnce(),
		kgo.BlockRebalanceOnPoll(), kgo.RebalanceTimeout(rebalanceMax))
	if err != nil {
		return err
	}
	defer session.CloseAllowingRebalance()
	o.session = session
	for {
		fetches := session.PollRecords(ctx, o.pollMax())
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		if err := o.process(ctx, fetches.Records()); err != nil {
			return err
		}
		session.AllowRebalance()
	}
}

// endOnce makes the client send each EndTxn and each TxnOffsetCommit only once. Before Kafka 4 all transactions of a
// process have the same epoch. If the response to such a request is lost, the request may still arrive late. If the
// client had sent it again meanwhile, the late request would end the next transaction or set its offsets back.
// Instead End fails and the process ends. The next process registers the transactional id, which fences the late
// request.
func endOnce() kgo.Opt {
	return kgo.RetryTimeoutFn(func(key int16) time.Duration {
		switch kmsg.Key(key) {
		case kmsg.EndTxn, kmsg.TxnOffsetCommit:
			return time.Nanosecond // shorter than any backoff, so the client does not retry; 0 would mean no limit
		case kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat:
			return sessionTimeout
		}
		return requestRetryMax
	})
}

const (
	// sessionTimeout and requestRetryMax are defaults of the client.
	sessionTimeout  = 45 * time.Second
	requestRetryMax = 30 * time.Second
	// rebalanceMax is how long a rebalance waits for this process to finish its events. After that, another process
	// of the group gets the events.
	rebalanceMax = 5 * time.Minute
)

// outcomeOf executes an event and returns the outcome. An event without a token was forwarded without a claim; its
// outcome goes only to a request that waits for it.
func (s *settings) outcomeOf(ctx context.Context, event *kgo.Record, work func(context.Context, *kgo.Record) ([]byte, error)) *kgo.Record {
	token := headerOf(event, "oncebus-claim-token")
	if token == nil && s.claimedOnly {
		slog.Warn("event without a claim, skipped", "verdict", string(headerOf(event, "oncebus-verdict")))
		return nil
	}
	kind, result := outcomeOfWork(work(ctx, event))
	name := "oncebus-claim-token"
	if token == nil {
		slog.Warn("event without a claim", "outcome", kind, "verdict", string(headerOf(event, "oncebus-verdict")))
		name, token = "oncebus-reply-to", headerOf(event, "oncebus-reply-to") // the address of the request that waits for the outcome
	}
	if token == nil {
		return nil
	}
	return &kgo.Record{
		Topic: s.outcomes, Key: event.Key, Value: result,
		Headers: append([]kgo.RecordHeader{{Key: name, Value: token}, {Key: "oncebus-outcome", Value: []byte(kind)}}, responseHeaders(kind)...),
	}
}

// responseHeaders returns the headers with the status and the content type of the HTTP response. Without these
// headers oncebus answers an error with its own problem document, which contains the text.
func responseHeaders(kind string) []kgo.RecordHeader {
	status := map[string]string{"rejected": "422", "failed": "502"}[kind]
	if status == "" {
		return nil
	}
	return []kgo.RecordHeader{{Key: "http-status", Value: []byte(status)}, {Key: "content-type", Value: []byte("text/plain; charset=utf-8")}}
}

// outcomeOfWork returns the kind and the value of the outcome.
func outcomeOfWork(result []byte, err error) (string, []byte) {
	switch {
	case errors.Is(err, errRejected):
		return "rejected", []byte(err.Error())
	case err != nil:
		return "failed", []byte(err.Error())
	}
	return "completed", result
}

func headerOf(r *kgo.Record, name string) []byte {
	for _, h := range r.Headers {
		if h.Key == name {
			return h.Value
		}
	}
	return nil
}
