package kafka_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
	"oncebus/processor/kafkatest/embedded"
)

// TestOffsetsAreReadWhileABootstrapServerIsAway: of two bootstrap servers one accepts no connection, and no question for the
// offsets of a group fails for that.
func TestOffsetsAreReadWhileABootstrapServerIsAway(t *testing.T) {
	t.Parallel()
	away, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	c := embedded.Start(t)
	c.CreateTopic("events", 1)
	client := c.Client(kgo.SeedBrokers(append(c.ListenAddrs(), away.Addr().String())...))
	for n := range 10 {
		group := fmt.Sprint("group-", n) // the client knows no coordinator of it yet
		if _, err := kafka.CommittedOffsets(t.Context(), client, group, map[string][]int32{"events": {0}}); err != nil {
			t.Error(err)
		}
	}
}
