//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest"
)

// Tally is what a read_committed consumer finds in a contender's output.
type Tally struct {
	Records  int // all
	Distinct int // ids of the input among them
	Foreign  int // records with a key that no event of the input has
}

// Check says what is wrong with the output of a contender that was given the
// whole input: one that deduplicates has to put out each id once, another
// every event.
func (t Tally) Check(in Input, dedups bool) error {
	records, distinct := in.Events, in.Distinct()
	if dedups {
		records = distinct
	}
	var errs []error
	if t.Foreign != 0 {
		errs = append(errs, fmt.Errorf("%d records are not of the input", t.Foreign))
	}
	if t.Distinct != distinct {
		errs = append(errs, fmt.Errorf("%d of %d ids are missing", distinct-t.Distinct, distinct))
	}
	if t.Records != records {
		errs = append(errs, fmt.Errorf("it holds %d records, %+d more than the %d it should", t.Records, t.Records-records, records))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the output is wrong: %w", err)
	}
	return nil
}

// ReadTally reads a topic from its start to its present end.
func ReadTally(ctx context.Context, seeds []string, topic string, in Input) (t Tally, err error) {
	seen := make([]bool, in.Events)
	err = ReadTopic(ctx, seeds, topic, func(r *kgo.Record) { t.add(r, in, seen) })
	return t, err
}

// ReadTopic calls each with the records of a topic as its users see them, from
// its start to its present end.
func ReadTopic(ctx context.Context, seeds []string, topic string, each func(*kgo.Record)) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	if err != nil {
		return err
	}
	defer client.Close()
	return kafkatest.EachCommitted(ctx, client, nil, each, topic)
}

// add counts a record; seen has a place for each id.
func (t *Tally) add(r *kgo.Record, in Input, seen []bool) {
	t.Records++
	at, ours := in.index(r.Key)
	switch {
	case !ours:
		t.Foreign++
	case !seen[at]:
		seen[at] = true
		t.Distinct++
	}
}
