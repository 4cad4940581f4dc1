//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest"
)

// Tally counts the records in a contender's output that a read_committed consumer reads.
type Tally struct {
	Records  int // all records
	Distinct int // ids of the input that occur in the output
	Foreign  int // records whose key no event of the input has
}

// Check returns an error that names the mistakes in the output of a contender for the whole input. A contender that
// deduplicates must emit each id once; any other contender must emit every event.
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
		errs = append(errs, fmt.Errorf("it has %d records, %+d more than the expected %d", t.Records, t.Records-records, records))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the output is wrong: %w", err)
	}
	return nil
}

// ReadTally reads a topic from its start to its current end.
func ReadTally(ctx context.Context, seeds []string, topic string, in Input) (t Tally, err error) {
	seen := make([]bool, in.Events)
	err = ReadTopic(ctx, seeds, topic, func(r *kgo.Record) { t.add(r, in, seen) })
	return t, err
}

// ReadTopic calls each with the committed records of a topic, from its start to its
// current end.
func ReadTopic(ctx context.Context, seeds []string, topic string, each func(*kgo.Record)) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	if err != nil {
		return err
	}
	defer client.Close()
	return kafkatest.EachCommitted(ctx, client, nil, each, topic)
}

// add counts a record. seen has an entry for each id of the input.
func (t *Tally) add(r *kgo.Record, in Input, seen []bool) {
	t.Records++
	at, ours := in.Index(r.Key)
	switch {
	case !ours:
		t.Foreign++
	case !seen[at]:
		seen[at] = true
		t.Distinct++
	}
}
