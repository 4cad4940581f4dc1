package app

import (
	"time"

	"oncebus/processor/security"
)

// Config has the settings of an app's clients and topics. The ingress and the
// commands that read topics need no others.
type Config struct {
	security.Config

	// Partitions is the partition count of the repartition topic at its
	// creation, 1 to PartitionsMax. The manifest pins it. It is the most
	// workers that can share the load.
	Partitions int32 `env:"PARTITIONS" envDefault:"12" help:"partitions of the repartition topic, at its creation"`

	// ReplicationFactor is that of the topics oncebus creates, at most the
	// number of brokers; -1 leaves it and min.insync.replicas to the brokers'
	// defaults.
	ReplicationFactor int16 `env:"REPLICATION_FACTOR" envDefault:"3" help:"replicas of topics at their creation, at most the number of brokers; -1 = the broker's defaults"`

	// MinInsyncReplicas is min.insync.replicas of the topics oncebus creates, at
	// most their replicas: how many replicas must have a record before the broker
	// acknowledges it. 0 is MinInsyncReplicasDefault, -1 the broker's default.
	MinInsyncReplicas int16 `env:"MIN_INSYNC_REPLICAS" envDefault:"2" help:"min.insync.replicas of topics at their creation, at most their replicas; -1 = the broker's default"`

	// CreateTopics also creates missing input, output and dead-letter
	// topics. Internal topics are created in any case.
	CreateTopics bool `env:"CREATE_TOPICS" envDefault:"false" help:"also create missing input and output topics"`

	// Start is the position of an input topic without a committed offset:
	// StartEarliest or StartLatest. The repartition topic is always read from
	// its start.
	Start string `env:"START" envDefault:"earliest" help:"where a raw topic without a committed offset starts: earliest or latest"`

	// TransactionTimeout is the time after which the broker aborts an abandoned
	// transaction: 1s to 15m, the broker's default maximum. After a worker
	// died, read_committed consumers wait for its transaction up to this time.
	TransactionTimeout time.Duration `env:"TRANSACTION_TIMEOUT" envDefault:"15s" help:"after what time the broker aborts an open transaction"`
}

// The values of Config.Start.
const (
	StartEarliest = "earliest"
	StartLatest   = "latest"
)

// PartitionsMax is the most partitions of the repartition topic.
const PartitionsMax = 10_000

// MinInsyncReplicasDefault is the least number with which a record survives the loss of
// one broker.
const MinInsyncReplicasDefault = 2

// Validate returns all mistakes of c at once, joined, or nil.
func (c Config) Validate() error {
	var m security.Mistakes
	m.Add(c.Config.Validate())
	if c.Partitions < 1 || c.Partitions > PartitionsMax {
		m.Addf("ONCEBUS_PARTITIONS: %d is out of range, want 1 to %d", c.Partitions, PartitionsMax)
	}
	if c.ReplicationFactor != -1 && c.ReplicationFactor < 1 {
		m.Addf("ONCEBUS_REPLICATION_FACTOR: %d is out of range, want 1 or more, or -1 for the broker's default", c.ReplicationFactor)
	}
	if c.MinInsyncReplicas < -1 {
		m.Addf("ONCEBUS_MIN_INSYNC_REPLICAS: %d is out of range, want 1 or more, or -1 for the broker's default", c.MinInsyncReplicas)
	}
	if c.Start != StartEarliest && c.Start != StartLatest {
		m.Addf("ONCEBUS_START: %q is unknown, want %s or %s", c.Start, StartEarliest, StartLatest)
	}
	if c.TransactionTimeout < time.Second || c.TransactionTimeout > 15*time.Minute {
		m.Addf("ONCEBUS_TRANSACTION_TIMEOUT: %v is out of range, want %v to %v", c.TransactionTimeout, time.Second, 15*time.Minute)
	}
	return m.Err()
}
