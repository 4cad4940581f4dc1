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

// Config has the settings that every client and every topic of an app needs. The ingress and the commands that
// read topics need only these.
type Config struct {
	security.Config

	// Partitions is the partition count of the repartition topic, 1 to PartitionsMax. It is used only when the
	// topic is created, because the manifest pins it then. It is also the largest number of workers that can
	// share the load.
	Partitions int32 `env:"PARTITIONS" envDefault:"12" help:"partitions of the repartition topic, at its creation"`

	// ReplicationFactor is the replication factor of the topics that oncebus creates, at most the number of
	// brokers. -1 leaves the replication factor and min.insync.replicas to the brokers' defaults.
	ReplicationFactor int16 `env:"REPLICATION_FACTOR" envDefault:"3" help:"replicas of topics at their creation, at most the number of brokers; -1 = the broker's defaults"`

	// MinInsyncReplicas is min.insync.replicas of the topics that oncebus creates: how many replicas must have a
	// record before the broker acknowledges it. It is at most the number of replicas. 0 means
	// MinInsyncReplicasDefault, -1 the broker's default.
	MinInsyncReplicas int16 `env:"MIN_INSYNC_REPLICAS" envDefault:"2" help:"min.insync.replicas of topics at their creation, at most their replicas; -1 = the broker's default"`

	// CreateTopics makes a start also create missing input, output and dead-letter topics. A start creates
	// internal topics with either value.
	CreateTopics bool `env:"CREATE_TOPICS" envDefault:"false" help:"also create missing input and output topics"`

	// Start is where the app begins to read a partition of an input topic that has no committed offset:
	// StartEarliest or StartLatest. The app always reads the repartition topic from its start.
	Start string `env:"START" envDefault:"earliest" help:"where a raw topic without a committed offset starts: earliest or latest"`

	// TransactionTimeout is the time after which the broker aborts an abandoned transaction: 1s to 15m, which is
	// the broker's default maximum. After a worker has died, read_committed consumers wait up to this time for
	// its transaction.
	TransactionTimeout time.Duration `env:"TRANSACTION_TIMEOUT" envDefault:"15s" help:"after what time the broker aborts an open transaction"`

	// MaxDecompressedBatchBytes is the size in bytes to which a batch of an input topic may decompress. The app
	// skips a larger batch and writes a dead letter that names the batch's offsets. It also skips a batch whose
	// records take too much memory: more than the largest of this setting, MaxDecompressedBytes and
	// kafka.BudgetDefault. 0 means DecompressedBatchBytesDefault.
	MaxDecompressedBatchBytes int `env:"MAX_DECOMPRESSED_BATCH_BYTES" envDefault:"67108864" help:"bytes to which a batch of an input may decompress; for a larger one a dead letter names its offsets"`

	// MaxDecompressedBytes bounds the memory of all batches of a process that are decompressed at the same time,
	// in bytes. It includes about 200 bytes for each record and 40 bytes for each header. A fetch ends before a
	// batch that does not fit. A batch that is larger than the whole bound is decompressed alone. 0 means
	// kafka.BudgetDefault.
	MaxDecompressedBytes int64 `env:"MAX_DECOMPRESSED_BYTES" envDefault:"67108864" help:"memory of all decompressed batches of the process at a time, with their records, about 200 bytes each; a larger batch is decompressed alone, and skipped with a dead letter if its records alone take more than this, 64 MiB and ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES"`

	// Schema says where the schemas of Avro and Protobuf records are.
	Schema registry.Config `envPrefix:"SCHEMA_"`

	budget  *kafka.Budget      // shared by the process; nil makes each user create its own
	schemas *registry.Registry // shared by the process; nil if no format has schemas
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

// PartitionsMax is the largest permitted number of partitions of the repartition topic.
const PartitionsMax = 10_000

// MinInsyncReplicasDefault is the smallest number of replicas with which an acknowledged record survives the
// loss of one broker.
const MinInsyncReplicasDefault = 2

// Validate returns all mistakes of c, joined by errors.Join, or nil.
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

// BatchBytesMax returns MaxDecompressedBatchBytes, or its default if it is 0.
func (c Config) BatchBytesMax() int {
	return cmp.Or(c.MaxDecompressedBatchBytes, DecompressedBatchBytesDefault)
}

// WithBudget returns c with a new budget of decompressed batches, which all clients that are made with this
// Config share.
func (c Config) WithBudget() Config {
	c.budget = kafka.NewBudget(c.MaxDecompressedBytes)
	return c
}

// WithSchemas returns c with the schemas of record values, which all derivers that are made with this Config
// share.
func (c Config) WithSchemas(schemas *registry.Registry) Config {
	c.schemas = schemas
	return c
}

// Schemas returns the schemas that WithSchemas got; nil without them.
func (c Config) Schemas() *registry.Registry { return c.schemas }

// NewDeriver returns a deriver of the keys of these routes, with the key secret and the schemas of c.
func (c Config) NewDeriver(routes *rules.Routes) *rules.Deriver {
	return c.using(routes.NewDeriver(c.KeySecret.Bytes()))
}

// NewShadowDeriver returns a deriver of the new key of a shadow, with the key secret and the schemas of c.
func (c Config) NewShadowDeriver(shadow *rules.Shadow) *rules.Deriver {
	return c.using(shadow.NewDeriver(c.KeySecret.Bytes()))
}

func (c Config) using(d *rules.Deriver) *rules.Deriver {
	if c.schemas == nil {
		return d
	}
	return d.Using(c.schemas.Schemas)
}

// Derive derives the key of a record. If the record's schema is not known, Derive first reads it; the error
// says why it could not.
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

// Budget returns the budget that WithBudget made, or a new budget without it.
func (c Config) Budget() *kafka.Budget {
	if c.budget != nil {
		return c.budget
	}
	return kafka.NewBudget(c.MaxDecompressedBytes)
}

// FetchOptions returns the options of a client that fetches records: they bound the memory of decompressed
// batches.
func (c Config) FetchOptions() []kgo.Opt { return c.Budget().ClientOptions(c.BatchBytesMax()) }
