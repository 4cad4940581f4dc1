package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafkatest/embedded"
)

// events returns n events that have a claim.
func events(n int) (records []*kgo.Record) {
	for i := range n {
		records = append(records, &kgo.Record{
			Topic: "in", Value: fmt.Appendf(nil, "%d", i), Headers: []kgo.RecordHeader{{Key: "oncebus-claim-token", Value: fmt.Appendf(nil, "token-%d", i)}},
		})
	}
	return records
}

// workbench has a topic of events and a topic of outcomes, and counts how often each event is executed.
type workbench struct {
	*embedded.Cluster
	settings
	client *kgo.Client // reads committed outcomes
	worked [20]atomic.Int32
}

func newWorkbench(t *testing.T, n int, outcomes ...string) *workbench {
	t.Helper()
	w := &workbench{Cluster: embedded.Start(t)}
	w.CreateTopic("in", 1)
	w.CreateTopic("out", 1, outcomes...)
	w.settings = settings{brokers: w.ListenAddrs(), input: "in", outcomes: "out", group: "executor", instance: "executor-1"}
	w.client = w.Client(kgo.ConsumeTopics("out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(t, w.client.ProduceSync(t.Context(), events(n)...).FirstErr())
	return w
}

// count counts an execution and returns the number of the event.
func (w *workbench) count(event *kgo.Record) (n int) {
	_, _ = fmt.Sscan(string(event.Value), &n) // of events
	w.worked[n].Add(1)
	return n
}

// noise returns bytes that do not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// assertWorkedOnce checks that each of n events was executed exactly once.
func (w *workbench) assertWorkedOnce(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		if got := w.worked[i].Load(); got != 1 {
			t.Errorf("event %d was executed %d times", i, got)
		}
	}
}

// TestResultThatTheTopicRefuses: the executor sends the outcome without the result, with the reason, and executes no
// event of the batch again. A result can be refused by the client, which has its own limit, or by the broker, which
// applies the topic's limit.
func TestResultThatTheTopicRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		outcomes []string // settings of the topic
		bytes    int
	}{
		"by the client": {nil, 2 << 20},
		"by the broker": {[]string{"max.message.bytes", "20000"}, 50_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = 12
			w := newWorkbench(t, n, c.outcomes...)
			ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
			defer stop()
			ended := make(chan error, 1)
			go func() {
				ended <- w.run(ctx, func(_ context.Context, event *kgo.Record) ([]byte, error) {
					switch i := w.count(event); i % 4 {
					case 1:
						return noise(c.bytes), nil
					case 2:
						return nil, errors.New(string(noise(c.bytes))) // failed, with a long reason
					default:
						return event.Value, nil
					}
				})
			}()
			for i := 0; i < n; {
				fetches := w.client.PollFetches(ctx)
				must(t, fetches.Err())
				fetches.EachRecord(func(r *kgo.Record) {
					kind, value := "completed", fmt.Sprint(i)
					if i%4 == 2 {
						kind = "failed"
					}
					refused := i%4 == 1 || i%4 == 2
					if refused {
						value = ""
					}
					reason := string(headerOf(r, "executor-reason"))
					if string(r.Value) != value || refused != (r.Value == nil) || string(headerOf(r, "oncebus-outcome")) != kind || string(headerOf(r, "oncebus-claim-token")) != fmt.Sprint("token-", i) ||
						refused != strings.HasPrefix(reason, fmt.Sprintf("the result of %d bytes was not sent: topic out refuses it: MESSAGE_TOO_LARGE", c.bytes)) {
						t.Errorf("outcome %d: %.40q, headers %.200q", i, r.Value, r.Headers)
					}
					i++
				})
			}
			stop()
			must(t, <-ended)
			w.assertWorkedOnce(t, n)
		})
	}
}

// TestOutcomeThatTheTopicRefuses: if the topic refuses an outcome even without its result, the executor ends with an
// error that names the event, the topic and the cause. It has executed no event twice.
func TestOutcomeThatTheTopicRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code int16
		exit int
		want []string
	}{
		"for good":    {kerr.InvalidRecord.Code, 2, []string{"event in/0/0: topic out refuses its outcome, also without the result: INVALID_RECORD", "change the settings of that topic"}},
		"by its user": {kerr.TopicAuthorizationFailed.Code, 1, []string{"send the outcomes from event in/0/0 on to topic out, 5 times: TOPIC_AUTHORIZATION_FAILED"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t, 3)
			w.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
				produce := req.(*kmsg.ProduceRequest)                  //nolint:forcetypeassert // by its key
				resp := produce.ResponseKind().(*kmsg.ProduceResponse) //nolint:forcetypeassert // as above
				for _, topic := range produce.Topics {
					refused := kmsg.NewProduceResponseTopic()
					refused.Topic, refused.TopicID = topic.Topic, topic.TopicID
					for _, p := range topic.Partitions {
						partition := kmsg.NewProduceResponseTopicPartition()
						partition.Partition, partition.ErrorCode = p.Partition, c.code
						refused.Partitions = append(refused.Partitions, partition)
					}
					resp.Topics = append(resp.Topics, refused)
				}
				return resp, nil, true
			}, kmsg.Produce)
			ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
			defer stop()
			err := w.run(ctx, func(_ context.Context, event *kgo.Record) ([]byte, error) {
				w.count(event)
				return event.Value, nil
			})
			if err == nil || exitCode(err) != c.exit {
				t.Fatalf("the executor ended with %v, want exit code %d", err, c.exit)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the executor ended with %v, want %q in it", err, part)
				}
			}
			w.assertWorkedOnce(t, 3)
		})
	}
}
