//go:build unix

package bench

import (
	"context"
	"strings"
	"testing"
	"time"

	"oncebus/processor/kafkatest/embedded"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestCheck checks a correct output, and one with each mistake.
func TestCheck(t *testing.T) {
	in := Input{Events: 100_000, Duplicates: 10}
	events, distinct := in.Events, in.Distinct()
	for _, c := range []struct {
		name   string
		tally  Tally
		dedups bool
		want   string // in the error; none if empty
	}{
		{"each id once", Tally{Records: distinct, Distinct: distinct}, true, ""},
		{"every event", Tally{Records: events, Distinct: distinct}, false, ""},
		{"nothing", Tally{}, true, "ids are missing"},
		{"a duplicate was emitted", Tally{Records: distinct + 1, Distinct: distinct}, true, "+1 more"},
		{"all duplicates were emitted", Tally{Records: events, Distinct: distinct}, true, "more than"},
		{"one is lost", Tally{Records: distinct - 1, Distinct: distinct - 1}, true, "1 of"},
		{"one is lost and one is repeated", Tally{Records: distinct, Distinct: distinct - 1}, true, "1 of"},
		{"one is not of the input", Tally{Records: distinct, Distinct: distinct - 1, Foreign: 1}, true, "not of the input"},
		{"the passthrough dropped duplicates", Tally{Records: distinct, Distinct: distinct}, false, "more than"},
		{"the passthrough repeated one", Tally{Records: events + 1, Distinct: distinct}, false, "+1 more"},
	} {
		err := c.tally.Check(in, c.dedups)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
}

// TestReadTally reads the output of a transactional contender: committed and aborted
// records, a repeated one, a foreign one, and an empty partition.
func TestReadTally(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cluster := embedded.Start(t)
	cluster.CreateTopic("out", 3)
	client := cluster.Client(kgo.TransactionalID("t"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	in := Input{Topic: "out", Events: 1000, Duplicates: 10, Start: time.UnixMilli(0)}
	transaction := func(commit bool, records ...*kgo.Record) {
		t.Helper()
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := client.EndTransaction(ctx, kgo.TransactionEndTry(commit)); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 60 { // no duplicates among them
		r := in.Record(n)
		r.Partition = int32(n % 2)
		transaction(n%3 != 0, r) // 20 of 60 are aborted
	}
	transaction(true, in.Record(1), &kgo.Record{Topic: "out", Key: []byte("trace-foreign"), Value: []byte("x")})
	got, err := ReadTally(ctx, cluster.ListenAddrs(), "out", in)
	if want := (Tally{Records: 42, Distinct: 40, Foreign: 1}); err != nil || got != want {
		t.Errorf("the tally is %+v (%v), want %+v", got, err, want)
	}
}
