package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
)

// What the demo's executor works on, and where it says what came of it.
const (
	operationsTopic = "operations.run"
	outcomesTopic   = "operations.outcomes"
)

// workTime is how long the executor takes: long enough to see that an
// operation runs, and no longer than it takes to type the next command.
const workTime = 500 * time.Millisecond

// executeOperations works on the operations until ctx is done. It lives as long
// as the broker and so keeps no place of its own; deployments/executor does.
func (d *demo) executeOperations(ctx context.Context) error {
	options, err := d.config.ClientOptions()
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(append(options, kgo.ConsumeTopics(d.broker.prefix+operationsTopic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
	if err != nil {
		return err
	}
	defer client.Close()
	done := 0
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("executor: %w", err)
		}
		select {
		case <-time.After(workTime):
		case <-ctx.Done():
			return nil
		}
		var outcomes []*kgo.Record
		fetches.EachRecord(func(event *kgo.Record) {
			if outcome := d.workOn(event, &done); outcome != nil {
				outcomes = append(outcomes, outcome)
			}
		})
		// An outcome is better told late than not: the claim would wait for its lease.
		if err := client.ProduceSync(context.WithoutCancel(ctx), outcomes...).FirstErr(); err != nil {
			return fmt.Errorf("executor: produce outcomes: %w", err)
		}
	}
}

// workOn does an operation, adds it to those done, and returns its outcome; nil
// if nobody asks for one, or the person watching is to give it.
func (d *demo) workOn(event *kgo.Record, done *int) *kgo.Record {
	var asked struct {
		RequestID string `json:"requestId"`
		Operation string `json:"operation"`
	}
	_ = json.Unmarshal(event.Value, &asked) // whatever is asked for is done
	token, attempt := header(event, "oncebus-claim-token"), header(event, "oncebus-attempt")
	say := func(what string) {
		cli.Printf(d.out, "  executor  %.40q %.40q, attempt %s: %s\n", asked.Operation, asked.RequestID, attempt, what)
	}
	outcome := func(kind, result string) *kgo.Record {
		say(kind + " " + result)
		return &kgo.Record{Topic: d.broker.prefix + outcomesTopic, Value: []byte(result), Headers: []kgo.RecordHeader{
			{Key: "oncebus-claim-token", Value: []byte(token)}, {Key: "oncebus-outcome", Value: []byte(kind)},
		}}
	}
	switch {
	case token == "":
		say("done without a claim, as it has no request id")
		return nil
	case asked.Operation == "WITHDRAW":
		say("waits for you\n\n  CLAIM=" + token + "\n")
		return nil
	case asked.Operation == "SELL" && attempt == "1":
		return outcome("failed", `{"error":"no market"}`)
	}
	*done++
	completed := outcome("completed", fmt.Sprintf(`{"number":%d}`, *done))
	// What a sender who asks again is answered with, beside the result.
	completed.Headers = append(completed.Headers,
		kgo.RecordHeader{Key: "http-status", Value: []byte("201")}, kgo.RecordHeader{Key: "content-type", Value: []byte("application/json")})
	return completed
}
