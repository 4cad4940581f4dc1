package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/security"
	"oncebus/state"
)

// TestExecutorBehindOperations: each operation is sent twice and executed once; both
// senders get the result. Also if the executor asks for the start of each.
func TestExecutorBehindOperations(t *testing.T) {
	t.Run("executes at once", func(t *testing.T) {
		behindOperations(t, &settings{})
	})
	t.Run("executes at once and counts", func(t *testing.T) {
		behindOperations(t, &settings{journal: filepath.Join(t.TempDir(), "journal")})
	})
	t.Run("asks before", func(t *testing.T) {
		behindOperations(t, &settings{answers: "economy.answers", journal: filepath.Join(t.TempDir(), "journal"), renewEvery: time.Millisecond})
	})
}

func behindOperations(t *testing.T, s *settings) {
	t.Helper()
	file, err := os.ReadFile("../routes/operations.yaml")
	must(t, err)
	routes, err := rules.ParseRoutes("operations.yaml", file)
	must(t, err)
	brokers := embedded.Start(t).ListenAddrs()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	p, err := processor.New(processor.Config{
		Config: app.Config{
			Config: security.Config{
				Brokers:    brokers,
				AppID:      "app",
				InstanceID: "one",
			},
			Partitions:         2,
			ReplicationFactor:  1,
			CreateTopics:       true,
			Start:              app.StartEarliest,
			TransactionTimeout: 5 * time.Second,
		},
		StateDir:       t.TempDir(),
		Workers:        1,
		CommitInterval: 10 * time.Millisecond,
		SessionTimeout: 2 * time.Second,
		StopTimeout:    20 * time.Second,
		State:          state.DefaultConfig(),
	}, routes, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	must(t, err)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- p.Run(running) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for p.Ready() != nil {
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-tick.C:
		}
	}
	s.brokers, s.input, s.outcomes, s.group, s.instance = brokers, "economy.run", "economy.outcomes", "executor", "executor-1"
	go func() { ended <- s.run(running, grant) }()

	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics("economy.replies"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(t, err)
	defer client.Close()
	for _, sender := range []string{"first", "second"} {
		for _, payload := range []string{
			`{"account":"a","requestId":"r1","operation":"grant","amount":5}`,
			`{"account":"a","requestId":"r2","operation":"grant","amount":5000}`,
		} {
			must(t, client.ProduceSync(ctx, &kgo.Record{Topic: "economy.raw", Key: []byte(sender), Value: []byte(payload)}).FirstErr())
		}
	}
	// r1 and its duplicate; r2 is rejected, so it is executed for each sender.
	want := map[string]string{"first r1": "completed", "second r1": "completed", "first r2": "rejected", "second r2": "rejected"}
	for len(want) > 0 {
		fetches := client.PollFetches(ctx)
		must(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			reply := string(r.Key) + " " + string(headerOf(r, "oncebus-request-id"))
			if status := string(headerOf(r, "oncebus-claim-status")); status != want[reply] {
				t.Errorf("%s: status %q, want %q", reply, status, want[reply])
			}
			delete(want, reply)
			if strings.HasSuffix(reply, "r1") && string(r.Value) != `{"account":"a","granted":5}` {
				t.Errorf("%s got %s", reply, r.Value)
			}
		})
	}
	stop()
	for range 2 {
		must(t, <-ended)
	}
	if s.journal != "" {
		text, err := os.ReadFile(s.journal)
		must(t, err)
		if n := strings.Count(string(text), `"outcome":"completed"`); n != 1 {
			t.Errorf("r1 was executed %d times by the journal:\n%s", n, text)
		}
	}
}

// TestLateEndTxn: the response to an EndTxn does not arrive, so the request may be late. The
// executor must not send it again and go on: on Kafka 3 the first one would then end the
// next transaction.
func TestLateEndTxn(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("in", 1)
	cluster.CreateTopic("out", 1)
	brokers := cluster.ListenAddrs()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	must(t, err)
	defer client.Close()
	must(t, client.ProduceSync(ctx, &kgo.Record{Topic: "in", Value: []byte(`{"account":"a","amount":5}`)}).FirstErr())
	var requests atomic.Int32
	cluster.Intercept(func(kmsg.Request) (kmsg.Response, error, bool) {
		requests.Add(1)
		return nil, errors.New("the connection breaks"), true
	}, kmsg.EndTxn)
	s := settings{brokers: brokers, input: "in", outcomes: "out", group: "executor", instance: "executor-1"}
	if err := s.run(ctx, grant); err == nil || ctx.Err() != nil {
		t.Errorf("the executor ended with %v, want the error of the transaction", err)
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestOutcomeSaysWhatItsSenderGets: an error has a status and its text. The outcome of an event without a claim is for the request that
// waits for it alone.
func TestOutcomeSaysWhatItsSenderGets(t *testing.T) {
	s := &settings{outcomes: "outcomes"}
	work := func(_ context.Context, event *kgo.Record) ([]byte, error) {
		switch string(event.Value) {
		case "refuse":
			return nil, fmt.Errorf("%w: no funds", errRejected)
		case "break":
			return nil, errors.New("no database")
		}
		return []byte("done"), nil
	}
	const claimed, waiting = "oncebus-claim-token", "oncebus-reply-to"
	for _, v := range []struct{ value, header, kind, status, result string }{
		{"run", claimed, "completed", "", "done"},
		{"refuse", claimed, "rejected", "422", "rejected: no funds"},
		{"break", claimed, "failed", "502", "no database"},
		{"run", waiting, "completed", "", "done"},
		{"refuse", waiting, "rejected", "422", "rejected: no funds"},
		{"run", "other", "", "", ""},
	} {
		event := &kgo.Record{Key: []byte("k"), Value: []byte(v.value), Headers: []kgo.RecordHeader{{Key: v.header, Value: []byte("x")}}}
		got := s.outcomeOf(t.Context(), event, work)
		if (got == nil) != (v.kind == "") {
			t.Fatalf("%+v: %v", v, got)
		}
		if got == nil {
			continue
		}
		if string(got.Value) != v.result || string(headerOf(got, v.header)) != "x" || string(headerOf(got, "oncebus-outcome")) != v.kind || string(headerOf(got, "http-status")) != v.status {
			t.Errorf("%+v: %s %v", v, got.Value, got.Headers)
		}
	}
}
