//go:build unix

package main

import (
	"context"
	"strings"
	"testing"

	"oncebus/processor/kafkatest/embedded"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestCheck: requests 0 and 2 are of event 0, request 1 is of event 1.
func TestCheck(t *testing.T) {
	event := func(n int) int { return n % 2 }
	for _, test := range []struct {
		name     string
		p        promise
		statuses [3]int
		records  map[int]int
		foreign  int
		want     string // empty: no mistake
	}{
		{"as promised", promiseVerdict, [3]int{202, 202, 409}, map[int]int{0: 1, 1: 1}, 0, ""},
		{"the duplicate got 202", promiseVerdict, [3]int{409, 202, 202}, map[int]int{0: 1, 1: 1}, 0, ""},
		{"no verdict, and in the output", promiseVerdict, [3]int{504, 202, 409}, map[int]int{0: 1, 1: 1}, 0, ""},
		{"rejected, and not in the output", promiseVerdict, [3]int{202, 503, 409}, map[int]int{0: 1}, 0, ""},
		{"no response", promiseVerdict, [3]int{202, 0, 409}, map[int]int{0: 1}, 0, "1 requests have no response"},
		{"accepted twice", promiseVerdict, [3]int{202, 202, 202}, map[int]int{0: 1, 1: 1}, 0, "1 events were accepted twice"},
		{"accepted for no request", promiseVerdict, [3]int{202, 409, 409}, map[int]int{0: 1}, 0, "1 events got the verdict duplicate each time"},
		{"lost", promiseVerdict, [3]int{202, 202, 409}, map[int]int{0: 1}, 0, "1 events are in the topic less often"},
		{"repeated", promiseVerdict, [3]int{202, 202, 409}, map[int]int{0: 2, 1: 1}, 0, "1 events are in the topic more often"},
		{"never sent", promiseVerdict, [3]int{202, 202, 409}, map[int]int{0: 1, 1: 1, 7: 1}, 2, "3 records are of events that were never sent"},
		{"once", promiseOnce, [3]int{202, 202, 202}, map[int]int{0: 1, 1: 1}, 0, ""},
		{"twice for once", promiseOnce, [3]int{202, 202, 202}, map[int]int{0: 2, 1: 1}, 0, "1 events are in the topic more often"},
		{"a duplicate without a verdict", promiseOnce, [3]int{202, 202, 409}, map[int]int{0: 1, 1: 1}, 0, "from a server without verdicts"},
		{"each", promiseEach, [3]int{202, 202, 202}, map[int]int{0: 2, 1: 1}, 0, ""},
		{"once for each", promiseEach, [3]int{202, 202, 202}, map[int]int{0: 1, 1: 1}, 0, "1 events are in the topic less often"},
	} {
		t.Run(test.name, func(t *testing.T) {
			list := make([]response, len(test.statuses))
			for n, status := range test.statuses {
				list[n].status = status
			}
			err := check(test.p, list, event, tally{records: test.records, foreign: test.foreign})
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("found %v, want %q", err, test.want)
			}
		})
	}
}

// TestReadTally reads committed records, followed by the marker of an aborted
// transaction.
func TestReadTally(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("output", 3)
	client := cluster.Client(kgo.DefaultProduceTopic("output"), kgo.TransactionalID("test"))
	ctx := context.Background()
	for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for n := range 10 {
			r := newRequest()
			r.of(n % 9)
			if err := client.ProduceSync(ctx, &kgo.Record{Value: r.body}, &kgo.Record{Value: []byte("other")}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := client.EndTransaction(ctx, end); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readTally(ctx, cluster.ListenAddrs(), "output")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.records) != 9 || got.records[0] != 2 || got.records[8] != 1 || got.foreign != 10 {
		t.Errorf("found %+v", got)
	}
}
