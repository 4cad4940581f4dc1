//go:build unix

package main_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest/program"
)

// execute runs the Go executor of deployments/executors on a route, as its README says, until the test ends.
func (s *system) execute(input, outcomes string, more ...string) {
	s.t.Helper()
	binary := filepath.Join(s.dir, "executor")
	if out, err := exec.CommandContext(s.t.Context(), "go", "build", "-o", binary, "../../deployments/executors/go").CombinedOutput(); err != nil {
		s.t.Fatalf("build of the executor: %v\n%s", err, out)
	}
	var logs strings.Builder
	executor := exec.CommandContext(s.t.Context(), binary)
	executor.Stdout, executor.Stderr = &logs, &logs
	executor.Env = append(append(program.Inherited(), "EXECUTOR_BROKERS="+strings.Join(s.seeds, ","), "EXECUTOR_INPUT="+s.topic(input), "EXECUTOR_OUTCOMES="+s.topic(outcomes),
		"EXECUTOR_GROUP="+s.app+"-executor", "EXECUTOR_INSTANCE="+s.app+"-1", "EXECUTOR_JOURNAL="+filepath.Join(s.dir, "journal"), "EXECUTOR_RENEW_MS=10000"), more...)
	if err := executor.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := executor.Wait(); s.t.Failed() {
			s.t.Logf("executor: %v\n%s", err, &logs)
		}
	})
}

// TestSystemFirstCallerGetsTheResultOfTheShippedExecutor: with each claim file as it stands the first request is answered with the
// executor's bytes, and so are its twins by HTTP and by Kafka, which run nothing. A rejection reaches its caller with the text, and the
// key runs again. An operation without a request id runs too.
func TestSystemFirstCallerGetsTheResultOfTheShippedExecutor(t *testing.T) {
	for name, c := range map[string]struct {
		file, path, secret            string
		input, run, outcomes, replies string
		event                         string // with gaps for request id and amount
		settings                      []string
	}{
		"user operations": {
			"user-operations.yaml", "/operations", "OPERATIONS", "operations.raw", "operations.run", "operations.outcomes", "operations.replies",
			`{"requestId":%q,"amount":%d,"accountId":"a1","account":"A","operation":"BUY"}`, nil,
		},
		"orders": {
			"orders.yaml", "/orders", "ORDERS", "orders.raw", "orders.unique", "orders.outcomes", "orders.replies",
			`{"requestId":%q,"amount":%[2]d,"account":"A","symbol":"X","side":"buy","quantity":%[2]d,"type":"market","timestamp":1700000000000,"clientOrderId":"c"}`, nil,
		},
		"economy": {
			"operations.yaml", "/economy", "ECONOMY", "economy.raw", "economy.run", "economy.outcomes", "economy.replies",
			`{"requestId":%q,"amount":%d,"account":"A","operation":"grant"}`, []string{"EXECUTOR_START=true", "EXECUTOR_ANSWERS=economy.answers"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inputs := []string{c.input, c.outcomes}
			if name == "economy" {
				inputs = append(inputs, "economy.webhooks.raw")
			}
			inOneProcess(t, c.file, unchanged, inputs, func(t *testing.T, s *system, d *sender) {
				s.inputs = []string{c.input} // the marker of the executor's transaction ends the outcomes, and is never read
				s.execute(c.run, c.outcomes, c.settings...)
				send := func(request string, amount int) answer {
					t.Helper()
					return d.post(c.path, withHMAC(c.secret), fmt.Sprintf(c.event, request, amount))
				}
				byKafka := ""
				const granted = `{"account":"A","granted":5}`
				first := send("r1", 5)
				first.is("the first caller", http.StatusOK, granted)
				first.replays("the first caller", false)
				twin := send("r1", 5)
				twin.is("its twin", http.StatusOK, granted)
				twin.replays("its twin", true)
				s.produce(&kgo.Record{Topic: s.topic(c.input), Key: []byte("by Kafka"), Timestamp: time.Now(), Value: fmt.Appendf(nil, c.event, "r1", 5)})
				s.awaitProcessed()
				for _, r := range s.output(c.replies) {
					if string(r.Key) == "by Kafka" {
						byKafka = string(r.Value)
						expect(t, r, "verdict", "replayed", "claim-status", "completed")
					}
				}
				if byKafka != granted {
					t.Errorf("the twin by Kafka got %q", byKafka)
				}
				for n := range 2 {
					send("r2", 5000).isOf(fmt.Sprintf("rejection %d", n+1), http.StatusUnprocessableEntity, "text/plain; charset=utf-8", "rejected: 5000 is more than 1000")
				}
				s.awaitProcessed()
				s.count(c.run, 3)
				if name == "user operations" {
					d.post(c.path, withHMAC(c.secret), `{"amount":5,"account":"A","operation":"BUY"}`).is("an operation without a request id", http.StatusOK, granted)
				}
			})
		})
	}
}
