package embedded_test

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"oncebus/processor/kafkatest/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTopicsAndClients: a topic has its settings, and a client writes to it.
func TestTopicsAndClients(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("events", 3, "max.message.bytes", "12345")
	if err := cluster.Client().ProduceSync(t.Context(), &kgo.Record{Topic: "events", Value: []byte("x")}).FirstErr(); err != nil {
		t.Error(err)
	}
	described, err := cluster.Admin().DescribeTopicConfigs(t.Context(), "events")
	if err != nil || len(cluster.PartitionInfos("events")) != 3 {
		t.Fatalf("partitions %v, error %v", cluster.PartitionInfos("events"), err)
	}
	for _, config := range described[0].Configs {
		if config.Key == "max.message.bytes" && config.MaybeValue() != "12345" {
			t.Errorf("max.message.bytes is %s", config.MaybeValue())
		}
	}
}

// TestInterceptKeepsItsFunction: the function handles every request of its kinds, not
// only the first.
func TestInterceptKeepsItsFunction(t *testing.T) {
	cluster := embedded.Start(t)
	admin := cluster.Admin()
	lists := 0
	cluster.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		if lists++; req.Key() != kmsg.ListGroups.Int16() {
			t.Errorf("intercepted %T", req)
		}
		return nil, nil, false
	}, kmsg.ListGroups)
	for range 3 {
		if _, err := admin.ListGroups(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if lists != 3 {
		t.Errorf("intercepted %d requests, want 3", lists)
	}
	all := 0
	cluster.Intercept(func(kmsg.Request) (kmsg.Response, error, bool) {
		all++
		return nil, errors.New("cut"), all < 3
	})
	if _, err := admin.ListGroups(t.Context()); err != nil || all < 3 {
		t.Errorf("after %d requests: %v", all, err)
	}
}
