//go:build unix

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/benchmarks/internal/bench"
)

const (
	inputTopic = "restart-input"
	appID      = "restart"
)

// input writes new keys, each once.
type input struct {
	client *kgo.Client
	sent   int
	start  int64       // event time of the first key, ms
	ticks  []time.Time // times of notes
	totals []int       // how many keys had been sent at each of them
}

func newInput(ctx context.Context, broker *bench.Broker, partitions int) (*input, error) {
	if err := broker.CreateTopics(ctx, partitions, inputTopic, appID+"-output", appID+"-dead"); err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Seeds()...), kgo.DefaultProduceTopic(inputTopic), kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return nil, err
	}
	return &input{client: client, start: time.Now().UnixMilli()}, nil
}

func (in *input) close() { in.client.Close() }

// produce writes n new keys, at rate a second, or at the highest rate if rate is 0.
func (in *input) produce(ctx context.Context, n, rate int) error {
	promise := kgo.AbortingFirstErrPromise(in.client)
	tick := time.NewTicker(time.Second / 10)
	defer tick.Stop()
	for i := range n {
		if rate > 0 && i%(rate/10) == 0 {
			<-tick.C
			in.note()
		}
		key := fmt.Appendf(nil, "%012d", in.sent)
		in.client.Produce(ctx, &kgo.Record{Key: key, Value: fmt.Appendf(nil, `{"id":"%s"}`, key), Timestamp: time.UnixMilli(in.start)}, promise.Promise())
		in.sent++
	}
	in.note()
	return promise.Err()
}

func (in *input) note() {
	in.ticks, in.totals = append(in.ticks, time.Now()), append(in.totals, in.sent)
}

// since returns how many keys were sent in the last d.
func (in *input) since(d time.Duration) int {
	for i, at := range in.ticks {
		if time.Since(at) < d {
			if i == 0 {
				return in.sent
			}
			return in.sent - in.totals[i-1]
		}
	}
	return 0
}
