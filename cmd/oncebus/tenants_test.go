package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest/embedded"
)

// TestTenantsPage runs the commands of TENANTS.md, with the routes file and the event that it
// shows.
func TestTenantsPage(t *testing.T) {
	steps := pageSteps(t, "../dedup/TENANTS.md", "")
	event, err := os.ReadFile("order.json")
	if err != nil {
		t.Fatal(err)
	}
	assertTwoSteps(t, steps, string(event))
	got := execute(t.Context(), nil, `{"orderId":"A-1"}`, "key", "--routes", "routes.yaml", "--route", "orders")
	if want := "tenant: header x-tenant has none: send it there"; got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, want) {
		t.Errorf("without a tenant: exit code %d, stderr %q, want %q", got.Code, got.Stderr, want)
	}
}

// TestStatsByTenant: stats shows what the page shows, for the events of three tenants of which
// one is over its quota.
func TestStatsByTenant(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(moduleRoot, "dedup", "TENANTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ := strings.Cut(string(page), "```text\n")
	want, _, _ = strings.Cut(want, "```\n")
	cluster := embedded.Start(t)
	cluster.CreateTopic("orders.raw", 1)
	brokers := strings.Join(cluster.ListenAddrs(), ",")
	const routes = `routes:
  - name: orders
    topics: [orders.raw]
    key: [{field: orderId}]
    tenant: {header: x-tenant}
    quota: {tenants: {noisy: {keys: 20}}}
    window: 24h
    output: orders.unique
`
	environ := runEnviron(t, "ONCEBUS_BROKERS="+brokers, "ONCEBUS_PARTITIONS=1", "ONCEBUS_ROUTES="+clitest.WriteFile(t, "routes.yaml", routes))
	serves(t, environ...)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var records []*kgo.Record
	for tenant, events := range map[string]int{"noisy": 60, "acme": 30, "globex": 25} {
		for n := range events {
			id := n
			if tenant == "acme" {
				id %= 25
			}
			records = append(records, &kgo.Record{Topic: "orders.raw", Value: fmt.Appendf(nil, `{"orderId":%d}`, id), Headers: []kgo.RecordHeader{{Key: "x-tenant", Value: []byte(tenant)}}})
		}
	}
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	await(t, "the app to judge all events", func() bool {
		out := execute(t.Context(), environ, "", "stats", "-o", "json").Stdout
		return strings.Contains(out, `"tenant":"noisy","events":60,`) && strings.Contains(out, `"tenant":"acme","events":30,`) && strings.Contains(out, `"tenant":"globex","events":25,`)
	})
	if got := execute(t.Context(), environ, "", "stats"); !strings.Contains(got.Stdout, "\n"+want) || got.Code != cli.ExitStopped {
		t.Errorf("stats: exit code %d, output\n%s\nthe page has\n%s", got.Code, got.Stdout, want)
	}
}
