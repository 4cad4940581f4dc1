//go:build unix

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/benchmarks/internal/bench"
)

// occurrences returns how often each id of the input is in a topic.
func occurrences(ctx context.Context, brokers []string, topic string, in bench.Input) ([]int, error) {
	counts, foreign := make([]int, in.Events), 0
	err := bench.ReadTopic(ctx, brokers, topic, func(r *kgo.Record) {
		if id, ours := in.Index(r.Key); ours {
			counts[id]++
		} else {
			foreign++
		}
	})
	if err == nil && foreign > 0 {
		err = fmt.Errorf("%d records of %s are not of the input", foreign, topic)
	}
	return counts, err
}

// checkInput returns an error if the input does not contain every event as often as planned: the producer itself must
// neither lose nor double events.
func checkInput(counts []int, in bench.Input) error {
	planned := make([]int, in.Events)
	for n := range in.Events {
		if id, ours := in.Index(in.Record(n).Key); ours {
			planned[id]++
		}
	}
	for id, n := range counts {
		if n != planned[id] {
			return fmt.Errorf("the input has event %d %d times, planned are %d", id, n, planned[id])
		}
	}
	return nil
}

// around is a time before a fault: the fault may lose or double events that were sent within that time, because
// they can still be in an open transaction or in a batch.
const around = 2 * time.Second

// count adds lost and doubled events to the fault that caused them: each event to the last fault before it, or to a
// fault shortly after it.
func count(input, output []int, sent func(id int) time.Duration, outcomes []outcome) (lost, doubled int) {
	for id, n := range input {
		if n == 0 {
			continue
		}
		at := 0
		for at+1 < len(outcomes) && sent(id) >= outcomes[at+1].At-around {
			at++
		}
		missing, more := 0, 0
		if output[id] == 0 {
			missing = 1
		} else {
			more = output[id] - 1
		}
		lost, doubled = lost+missing, doubled+more
		if len(outcomes) > 0 {
			outcomes[at].Lost += missing
			outcomes[at].Doubled += more
		}
	}
	return lost, doubled
}
