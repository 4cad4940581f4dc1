package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
)

// The topics of the demo's executor.
const (
	operationsTopic = "operations.run"
	outcomesTopic   = "operations.outcomes"
)

// workTime is how long an operation takes: long enough that a duplicate finds the operation in progress, and
// short enough that the operation is completed before the user enters the next command.
const workTime = 500 * time.Millisecond

// executeOperations executes the operations until ctx is done. It commits no offsets, because it runs as long
// as the broker exists; the example deployments/executor commits them.
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
		// The outcome is sent even if ctx is done, because without an outcome the claim would stay in progress
		// until its lease ends.
		if err := client.ProduceSync(context.WithoutCancel(ctx), outcomes...).FirstErr(); err != nil {
			return fmt.Errorf("executor: produce outcomes: %w", err)
		}
	}
}

// workOn executes an operation, counts it in done, and returns its outcome. It returns nil for an event without
// a claim, and for an operation whose outcome the user of the demo should send.
func (d *demo) workOn(event *kgo.Record, done *int) *kgo.Record {
	var operation struct {
		RequestID string `json:"requestId"`
		Operation string `json:"operation"`
	}
	_ = json.Unmarshal(event.Value, &operation) // we execute an operation that is not JSON too
	token, attempt := header(event, "oncebus-claim-token"), header(event, "oncebus-attempt")
	report := func(what string) {
		cli.Printf(d.out, "  executor  %.40q %.40q, attempt %s: %s\n", operation.Operation, operation.RequestID, attempt, what)
	}
	outcome := func(kind, result string) *kgo.Record {
		report(kind + " " + result)
		return &kgo.Record{Topic: d.broker.prefix + outcomesTopic, Value: []byte(result), Headers: []kgo.RecordHeader{
			{Key: "oncebus-claim-token", Value: []byte(token)}, {Key: "oncebus-outcome", Value: []byte(kind)},
		}}
	}
	switch {
	case token == "":
		report("done without a claim: missing request id")
		return nil
	case operation.Operation == "WITHDRAW":
		report("waits for your outcome\n\n  CLAIM=" + token + "\n")
		return nil
	case operation.Operation == "SELL" && attempt == "1":
		return outcome("failed", `{"error":"no market"}`)
	}
	*done++
	completed := outcome("completed", fmt.Sprintf(`{"number":%d}`, *done))
	// A duplicate gets the result with this status and this content type.
	completed.Headers = append(completed.Headers,
		kgo.RecordHeader{Key: "http-status", Value: []byte("201")}, kgo.RecordHeader{Key: "content-type", Value: []byte("application/json")})
	return completed
}
