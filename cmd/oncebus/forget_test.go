//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/rules"
	"oncebus/processor/kafkatest"
)

// forgotten is a route with an event, and the arguments that select its key.
type forgotten struct {
	input, event, output string
	outcomes             string // of a route in claim mode
	stdin                string
	// args gets the first event as the output has it.
	args func(first *kgo.Record) []string
}

const (
	forgottenOrder        = `{"account":"A","symbol":"X","side":"buy","quantity":"1","type":"MARKET","timestamp":1700000000000,"clientOrderId":"c","requestId":"r1"}`
	forgottenModification = `{"action":"modify","account":"A","orderId":"X-7","limit":178.5,"requestId":"r2"}`
	forgottenClose        = `{"action":"close","account":"A","symbol":"X","timestamp":1700000000000,"requestId":"r3"}`
	forgottenWebhook      = `{"eventId":"w1","resourceId":"r","eventType":"t"}`
)

func always(args ...string) func(*kgo.Record) []string {
	return func(*kgo.Record) []string { return args }
}

// forgottenRoutes has every route of deployments/routes, and a prepartitioned one.
var forgottenRoutes = map[string]forgotten{
	"operations": {input: "economy.raw", event: `{"account":"a","requestId":"r1","operation":"grant","amount":5}`, output: "economy.run", outcomes: "economy.outcomes",
		args: always("--route", "operations", "--id", "a", "--id", "r1", "--id", "grant")},
	"economy-webhooks": {input: "economy.webhooks.raw", event: `{"eventId":"e1"}`, output: "economy.webhooks.unique", args: always("--id", "e1")},
	"orders":           {input: "orders.raw", event: forgottenOrder, output: "orders.unique", outcomes: "orders.outcomes", stdin: forgottenOrder, args: always("--route", "orders")},
	"order-modifications": {input: "orders.raw", event: forgottenModification, output: "orders.unique", outcomes: "orders.outcomes", stdin: forgottenModification,
		args: always("--route", "order-modifications")},
	"order-closes": {input: "orders.raw", event: forgottenClose, output: "orders.unique", outcomes: "orders.outcomes", stdin: forgottenClose,
		args: always("--route", "order-closes")},
	"signals": {input: "signals.raw", event: `{"traceId":"t-1"}`, output: "signals.unique", stdin: "t-1\nnever-seen\n", args: always("--file", "-", "--route", "signals")},
	"account-changes": {input: "operations.raw", event: `{"requestId":"r2","operation":"reset","userId":"u"}`, output: "operations.run", outcomes: "operations.outcomes",
		args: func(first *kgo.Record) []string {
			return []string{"--record", fmt.Sprintf("%s/%d/%d", first.Topic, first.Partition, first.Offset)}
		}},
	"user-operations": {input: "operations.raw", event: `{"accountId":"a","requestId":"r3","operation":"buy"}`, output: "operations.run", outcomes: "operations.outcomes",
		args: func(first *kgo.Record) []string {
			return []string{"--header", "oncebus-key: " + headerOf(first, "oncebus-key"), "--header", "oncebus-verdict: unique"}
		}},
	"webhooks": {input: "webhooks.raw", event: forgottenWebhook, output: "webhooks.unique", stdin: forgottenWebhook, args: always("--route", "webhooks", "-")},
	"keyed":    {input: "keyed.raw", event: `{"id":"k1"}`, output: "keyed.unique", args: always("--id", "k1")},
}

const keyedRoute = `  - name: keyed
    topics: [APP.keyed.raw]
    prepartitioned: true
    key:
      - field: id
    window: 1h
    output: APP.keyed.unique
    dead_letter: APP.oncebus.dead-letter
`

// allShippedRoutes returns one routes file with every shipped route, and its text.
func allShippedRoutes(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(deployments, "routes", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no shipped routes: %v", err)
	}
	all := "routes:\n"
	for _, file := range files {
		_, routes, ok := strings.Cut(shippedRoutes(t, filepath.Base(file), unchanged), "routes:\n")
		if !ok {
			t.Fatalf("%s has no routes", file)
		}
		all += routes
	}
	all += keyedRoute
	parsed, err := rules.ParseRoutes("routes.yaml", []byte(all))
	if err != nil {
		t.Fatal(err)
	}
	for _, route := range parsed.Routes {
		if forgottenRoutes[route.Name].event == "" {
			t.Fatalf("route %s has no event in this test", route.Name)
		}
	}
	return all
}

// shownForget is the JSON of forget.
type shownForget struct {
	Erased, Requested, Superseded int
	WithoutRow                    int `json:"without_row"`
	Results                       []struct {
		Route string
		Rows  []struct{ Status, Result string }
	}
	Remains []struct{ Topic, What string }
}

func (s *system) forget(want int, route string, args ...string) shownForget {
	s.t.Helper()
	stdout, stderr, code := s.oncebus(forgottenRoutes[route].stdin, append([]string{"forget", "--json"}, args...)...)
	var shown shownForget
	if err := json.Unmarshal([]byte(stdout), &shown); err != nil || code != want || len(shown.Results) == 0 || shown.Results[0].Route != route {
		s.t.Fatalf("forget %v: %d, %v\n%s%s", args, code, err, stdout, stderr)
	}
	return shown
}

// erasures returns the newest value of each request in the manifest topic, nil of a removed one.
func (s *system) erasures(ctx context.Context) (map[string]*kgo.Record, error) {
	records, err := s.read(ctx, s.app+"-manifest", nil)
	newest := map[string]*kgo.Record{}
	for _, r := range records {
		if strings.HasPrefix(string(r.Key), "erase/") {
			newest[string(r.Key)] = r
		}
	}
	return newest, err
}

func (s *system) erasuresApplied() {
	s.t.Helper()
	eventually(s.t, "all requests to erase rows are applied", func(ctx context.Context) error {
		all, err := s.erasures(ctx)
		for name, r := range all {
			if r.Value != nil {
				return fmt.Errorf("%s is pending", name)
			}
		}
		return err
	})
}

// sendForgotten sends the event of each route n times, and checks how many went to the output.
func (s *system) sendForgotten(n, want int) {
	s.t.Helper()
	for range n {
		var records []*kgo.Record
		for _, f := range forgottenRoutes {
			records = append(records, &kgo.Record{Topic: s.topic(f.input), Timestamp: time.Now(), Value: []byte(f.event)})
		}
		s.produce(records...)
	}
	s.awaitProcessed()
	for route := range forgottenRoutes {
		if got := len(s.emitted(route)); got != want {
			s.t.Errorf("route %s emitted its event %d times, want %d", route, got, want)
		}
	}
}

// emitted returns the records of a route's event in the output.
func (s *system) emitted(route string) (all []*kgo.Record) {
	s.t.Helper()
	for _, r := range s.output(forgottenRoutes[route].output) {
		if string(r.Value) == forgottenRoutes[route].event {
			all = append(all, r)
		}
	}
	return all
}

// TestRealForgetOnShippedRoutes: on each shipped route the next event after forget is unique.
// The request is written while no process runs, after a kill -9. The service applies it, is
// killed again and rebuilds its state from the changelog. The request again erases no later
// row.
func TestRealForgetOnShippedRoutes(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Shared(t)
	s := newSystem(newWorldAt(t, allShippedRoutes(t), broker.Seeds(), broker.Admin(), broker.External()))
	s.settings = []string{"COMMIT_INTERVAL=20ms"}
	s.begin("economy.raw", "economy.outcomes", "economy.webhooks.raw", "orders.raw", "orders.outcomes", "signals.raw", "operations.raw", "operations.outcomes", "webhooks.raw", "keyed.raw")
	s.sendForgotten(2, 1)
	firsts := map[string]*kgo.Record{}
	var outcomes []*kgo.Record
	for route, f := range forgottenRoutes {
		firsts[route] = s.emitted(route)[0]
		if f.outcomes != "" {
			outcomes = append(outcomes, &kgo.Record{Topic: s.topic(f.outcomes), Value: []byte("result of " + route), Headers: []kgo.RecordHeader{
				withHeader("oncebus-claim-token", []byte(headerOf(firsts[route], "oncebus-claim-token"))), withHeader("oncebus-outcome", []byte("completed")),
			}})
		}
	}
	s.produce(outcomes...)
	s.awaitProcessed()

	s.service.kill()
	for route, f := range forgottenRoutes {
		shown := s.forget(cli.ExitFailed, route, append([]string{"--timeout", "1ms"}, f.args(firsts[route])...)...)
		want := "seen"
		if f.outcomes != "" {
			want = "completed"
		}
		if shown.Requested != 1 || shown.Results[0].Rows[0].Status != want || shown.WithoutRow != len(shown.Results)-1 || len(shown.Remains) < 3 {
			t.Errorf("forget of route %s without a process: %+v", route, shown)
		}
	}
	requests, err := s.erasures(t.Context())
	if err != nil || len(requests) != len(forgottenRoutes) {
		t.Fatalf("%d requests, want %d: %v", len(requests), len(forgottenRoutes), err)
	}
	s.service = s.start("a", s.settings...)
	s.erasuresApplied()

	s.service.kill()
	if err := os.RemoveAll(s.stateDir("a")); err != nil {
		t.Fatal(err)
	}
	s.service = s.start("a", s.settings...)
	s.service.awaitReady()
	if restored := s.service.restores(); restored.fromStart == 0 {
		t.Errorf("no task was rebuilt from the changelog: %+v", restored)
	}
	s.sendForgotten(2, 2)
	for route, f := range forgottenRoutes {
		if second := s.emitted(route)[1]; f.outcomes != "" && headerOf(second, "oncebus-attempt") != "2" {
			t.Errorf("route %s: the event after forget has attempt %q, want 2", route, headerOf(second, "oncebus-attempt"))
		}
	}

	for name, r := range requests {
		s.produce(&kgo.Record{Topic: r.Topic, Key: []byte(name), Value: r.Value})
	}
	s.erasuresApplied()
	s.sendForgotten(1, 2)
	if shown := s.forget(cli.ExitStopped, "keyed", forgottenRoutes["keyed"].args(nil)...); shown.Erased != 1 {
		t.Errorf("forget with a running service: %+v", shown)
	}
	s.produce(&kgo.Record{Topic: s.topic("keyed.raw"), Timestamp: time.Now(), Value: []byte(forgottenRoutes["keyed"].event)})
	s.awaitProcessed()
	if n := len(s.emitted("keyed")); n != 3 {
		t.Errorf("keyed was emitted %d times, want 3", n)
	}
	s.service.stop()
}
