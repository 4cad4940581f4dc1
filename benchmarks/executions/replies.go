//go:build unix

package main

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest"
)

// replies has what a read_committed reader has read from three topics: the replies, the output and the dead letters.
type replies struct {
	client *kgo.Client
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu       sync.Mutex
	bySource map[string]int  // number of replies, by the position of the event that they answer
	requests map[string]bool // ids of the requests that have a reply
	kinds    map[string]int  // number of replies by verdict and claim status
	results  map[string]string
	wrong    []string
	runs     int // number of events in the output
	dead     int
}

func readReplies(ctx context.Context, y *system) (*replies, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(y.kafka.Seeds()...), kgo.ConsumeTopics("ops.replies", "ops.run", "ops.dead"),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(250*time.Millisecond))
	if err != nil {
		return nil, err
	}
	reading, stop := context.WithCancel(ctx)
	l := &replies{client: client, stop: stop, bySource: map[string]int{}, requests: map[string]bool{}, kinds: map[string]int{}, results: map[string]string{}}
	l.done.Go(func() {
		for reading.Err() == nil {
			l.client.PollFetches(reading).EachRecord(l.note)
		}
	})
	return l, nil
}

func (l *replies) close() {
	l.stop()
	l.done.Wait()
	l.client.Close()
}

func (l *replies) note(r *kgo.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch r.Topic {
	case "ops.run":
		l.runs++
		return
	case "ops.dead":
		l.dead++
		l.wrong = append(l.wrong, fmt.Sprintf("dead letter: %s: %s", headerOf(r, "oncebus-reason"), r.Value))
		return
	}
	source, request, status := headerOf(r, "oncebus-source"), headerOf(r, "oncebus-request-id"), headerOf(r, "oncebus-claim-status")
	l.bySource[source]++
	l.requests[request] = true
	l.kinds[headerOf(r, "oncebus-verdict")+" "+status]++
	if status == "completed" {
		l.results[request] = string(r.Value)
	}
}

func headerOf(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// awaitAnswers waits until each request has a reply and each operation was executed. It returns no error if
// something is still missing at the end, because judge reports that.
func (y *system) awaitAnswers(ctx context.Context, out *senders, log *replies) error {
	ctx, cancel := context.WithTimeout(ctx, drainMax)
	defer cancel()
	return kafkatest.AwaitEvery(ctx, time.Second, "all requests are answered and all operations executed", func(context.Context) error {
		counted, err := countExecutions(y.journals())
		if err != nil {
			return err
		}
		out.mu.Lock()
		operations := map[int]bool{}
		for _, q := range out.sent {
			operations[q.operation] = true
		}
		places := maps.Clone(out.byTopic)
		out.mu.Unlock()
		log.mu.Lock()
		defer log.mu.Unlock()
		missing := 0
		for place := range places {
			if log.bySource[place] == 0 {
				missing++
			}
		}
		if missing > 0 || len(counted) < len(operations) {
			return fmt.Errorf("%d requests by topic have no reply, %d of %d operations were executed", missing, len(counted), len(operations))
		}
		return nil
	})
}
