package app

import (
	"cmp"
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/registry"
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

	// MaxDecompressedBatchBytes is the bytes to which a batch of an input topic
	// may decompress. A larger one is skipped with a dead letter that names its
	// offsets, and so is one whose records take more memory than this, than
	// MaxDecompressedBytes and than kafka.BudgetDefault. 0 is DecompressedBatchBytesDefault.
	MaxDecompressedBatchBytes int `env:"MAX_DECOMPRESSED_BATCH_BYTES" envDefault:"67108864" help:"bytes to which a batch of an input may decompress; for a larger one a dead letter names its offsets"`

	// MaxDecompressedBytes bounds the memory of all decompressed batches of a
	// process at a time, their records included: about 200 bytes for each, and 40
	// for each header. A fetch ends before a batch that does not fit. A batch larger
	// than all of it is decompressed alone. 0 is kafka.BudgetDefault.
	MaxDecompressedBytes int64 `env:"MAX_DECOMPRESSED_BYTES" envDefault:"67108864" help:"memory of all decompressed batches of the process at a time, with their records, about 200 bytes each; a larger batch is decompressed alone, and skipped with a dead letter if its records alone take more than this, 64 MiB and ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES"`

	// Schema says where the schemas of Avro and Protobuf records are.
	Schema registry.Config `envPrefix:"SCHEMA_"`

	budget  *kafka.Budget      // of the process; nil for one of its own
	schemas *registry.Registry // of the process; nil without formats that have schemas
}

// The values of Config.Start.
const (
	StartEarliest = "earliest"
	StartLatest   = "latest"
)

// Limits of Config.
const (
	DecompressedBatchBytesMin = 1 << 20
	DecompressedBatchBytesMax = 1 << 30
	// DecompressedBatchBytesDefault is 64 times the largest batch that a broker
	// with default settings accepts.
	DecompressedBatchBytesDefault = 64 << 20
	DecompressedBytesMin          = 1 << 20
	DecompressedBytesMax          = 1 << 40
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
	m.Add(c.Schema.Validate())
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
	if b := c.MaxDecompressedBatchBytes; b != 0 && (b < DecompressedBatchBytesMin || b > DecompressedBatchBytesMax) {
		m.Addf("ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES: %d is out of range, want %d to %d", b, DecompressedBatchBytesMin, DecompressedBatchBytesMax)
	}
	if b := c.MaxDecompressedBytes; b != 0 && (b < DecompressedBytesMin || b > DecompressedBytesMax) {
		m.Addf("ONCEBUS_MAX_DECOMPRESSED_BYTES: %d is out of range, want %d to %d", b, DecompressedBytesMin, int64(DecompressedBytesMax))
	}
	return m.Err()
}

// BatchBytesMax is MaxDecompressedBatchBytes with its default.
func (c Config) BatchBytesMax() int {
	return cmp.Or(c.MaxDecompressedBatchBytes, DecompressedBatchBytesDefault)
}

// WithBudget returns c with a budget of decompressed batches. All that is made with it
// shares the budget.
func (c Config) WithBudget() Config {
	c.budget = kafka.NewBudget(c.MaxDecompressedBytes)
	return c
}

// WithSchemas returns c with the schemas of record values. All that is made with it shares them.
func (c Config) WithSchemas(schemas *registry.Registry) Config {
	c.schemas = schemas
	return c
}

// Schemas returns what WithSchemas was given; nil without it.
func (c Config) Schemas() *registry.Registry { return c.schemas }

// NewDeriver returns a deriver of keys with the secret and the schemas.
func (c Config) NewDeriver(routes *rules.Routes) *rules.Deriver {
	return c.using(routes.NewDeriver(c.KeySecret.Bytes()))
}

// NewShadowDeriver is NewDeriver for the new key of a shadow.
func (c Config) NewShadowDeriver(shadow *rules.Shadow) *rules.Deriver {
	return c.using(shadow.NewDeriver(c.KeySecret.Bytes()))
}

func (c Config) using(d *rules.Deriver) *rules.Deriver {
	if c.schemas == nil {
		return d
	}
	return d.Using(c.schemas.Schemas)
}

// Derive derives the key of a record. It reads the record's schema for that if need be; the
// error says why it could not.
func (c Config) Derive(ctx context.Context, d *rules.Deriver, in *rules.Input) (rules.Derived, error) {
	if c.schemas == nil {
		out := d.Derive(in)
		if out.Finding == rules.SchemaPending {
			return out, kafka.OperatorErrorf("the records of %s have schemas, and none was read", in.Topic)
		}
		return out, nil
	}
	return c.schemas.Derive(ctx, d, in)
}

// Budget returns the budget that WithBudget made, or else a new one.
func (c Config) Budget() *kafka.Budget {
	if c.budget != nil {
		return c.budget
	}
	return kafka.NewBudget(c.MaxDecompressedBytes)
}

// FetchOptions are the options of a client that fetches records.
func (c Config) FetchOptions() []kgo.Opt { return c.Budget().ClientOptions(c.BatchBytesMax()) }
