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

	// ReplicationFactor is that of the topics oncebus creates; -1 leaves it
	// to the broker's default.replication.factor.
	ReplicationFactor int16 `env:"REPLICATION_FACTOR" envDefault:"-1" help:"of internal topics; -1 = the broker's default"`

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
	if c.Start != StartEarliest && c.Start != StartLatest {
		m.Addf("ONCEBUS_START: %q is unknown, want %s or %s", c.Start, StartEarliest, StartLatest)
	}
	if c.TransactionTimeout < time.Second || c.TransactionTimeout > 15*time.Minute {
		m.Addf("ONCEBUS_TRANSACTION_TIMEOUT: %v is out of range, want %v to %v", c.TransactionTimeout, time.Second, 15*time.Minute)
	}
	return m.Err()
}
