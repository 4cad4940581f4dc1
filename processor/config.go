package processor

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"oncebus/state"
)

// Config is everything the processor is told from outside. The env, envDefault
// and help tags are read by cmd/oncebus, which puts ONCEBUS_ in front of every
// name; this package reads no environment. Errors name a field by its
// environment variable, because that is where the reader can change it.
type Config struct {
	// Brokers are the seed brokers as host:port; the port is 9092 unless
	// given. At least one; the client learns of the others from it.
	Brokers []string `env:"BROKERS" help:"seed brokers, comma separated host:port; required by run"`

	// AppID is the prefix of the consumer group, the transactional ids and
	// the internal topics. Processes with the same AppID share the work.
	// It follows the rule for Kafka topic names and has at most AppIDMax
	// characters, which leaves room for what is appended to it.
	AppID string `env:"APP_ID" envDefault:"oncebus" help:"prefix of group, transactional ids and internal topics"`

	// InstanceID is the stable name of this process within the app: static
	// membership and transactional ids are built on it, so two processes
	// with the same one fence each other. It follows the same rule as AppID;
	// at most InstanceIDMax characters. cmd fills in the host name.
	InstanceID string `env:"INSTANCE_ID" help:"stable name of this process within the app (static membership, transactional ids); default: the host name"`

	// Partitions is the partition count of the repartition topic, used when
	// that topic is created. Afterwards it is pinned in the app's manifest:
	// 1 to PartitionsMax. It bounds how many workers can share the load.
	Partitions int32 `env:"PARTITIONS" envDefault:"12" help:"partitions of the repartition topic, at its creation"`

	// ReplicationFactor is that of the topics oncebus creates; -1 leaves it
	// to the broker's default.replication.factor.
	ReplicationFactor int16 `env:"REPLICATION_FACTOR" envDefault:"-1" help:"of internal topics; -1 = the broker's default"`

	// CreateTopics also creates missing input, output and dead-letter
	// topics. Internal topics are created in any case.
	CreateTopics bool `env:"CREATE_TOPICS" envDefault:"false" help:"also create missing input and output topics"`

	// StateDir holds one directory of local state per task. Losing it costs
	// a rebuild from the changelog and nothing else. Two processes must not
	// share one.
	StateDir string `env:"STATE_DIR" envDefault:"./oncebus-state" help:"local state; rebuilt from the changelog when lost"`

	// Workers is how many workers run tasks in this process; 0 means one per
	// core. More workers than tasks stand idle.
	Workers int `env:"WORKERS" envDefault:"0" help:"workers for the tasks; 0 = one per core"`

	// CommitInterval is the longest time a transaction stays open, and so
	// most of the delay an event gets from input to output. At least 1ms and
	// less than a third of TransactionTimeout, so that a slow commit is not
	// aborted by the broker.
	CommitInterval time.Duration `env:"COMMIT_INTERVAL" envDefault:"100ms" help:"longest time a transaction stays open"`

	// Start is where an input topic without a committed offset starts:
	// StartEarliest or StartLatest. It never applies to the repartition
	// topic, which is always read from its start.
	Start string `env:"START" envDefault:"earliest" help:"where a raw topic without a committed offset starts: earliest or latest"`

	// SessionTimeout is how long the group waits for a silent member before
	// it gives its partitions to others: 100ms to 30m. Brokers refuse less
	// than their group.min.session.timeout.ms, 6s by default.
	SessionTimeout time.Duration `env:"SESSION_TIMEOUT" envDefault:"10s" help:"how long the group waits for a silent member before others take over"`

	// TransactionTimeout is after what time the broker aborts a transaction
	// nobody ends: 1s to 15m, the broker's default maximum. Readers of the
	// output wait up to this long behind a worker that died.
	TransactionTimeout time.Duration `env:"TRANSACTION_TIMEOUT" envDefault:"15s" help:"after what time the broker aborts a transaction nobody ends"`

	// StopTimeout is how long a process asked to stop may take to finish its
	// open transaction and leave. More than CommitInterval; keep it below
	// the grace period of whatever sends the SIGTERM.
	StopTimeout time.Duration `env:"STOP_TIMEOUT" envDefault:"20s" help:"how long a process asked to stop may take to commit and leave"`

	// KeySecret turns SHA-256 into HMAC-SHA-256 for the routes that ask for
	// it. At least KeySecretMin bytes when set, and required as soon as one
	// route asks. Changing it makes every known key unknown.
	KeySecret Secret `env:"KEY_SECRET" help:"secret of HMAC-SHA-256 for routes with secret: true, at least 16 bytes"`

	TLS  TLS  `envPrefix:"TLS_"`
	SASL SASL `envPrefix:"SASL_"`

	// State is how the local stores use memory and disk.
	State state.Config `envPrefix:"STATE_"`

	// Disk is what has to stay free on the disk of StateDir.
	Disk Disk `envPrefix:"DISK_"`

	// RebuildsPerHour is how many times within an hour the damaged local
	// state of one task is set aside and rebuilt; once more stops the
	// process, now and at every start until the hour is over. 0 is no limit.
	RebuildsPerHour int `env:"REBUILDS_PER_HOUR" envDefault:"2" help:"rebuilds of one task's damaged local state within an hour, over restarts; one more stops the process; 0 = no limit"`

	// StateFailOpenAfter is how long local state may be unusable before events of
	// routes with on_state_failure: fail_open go on without it: 0 to 1h.
	StateFailOpenAfter time.Duration `env:"STATE_FAIL_OPEN_AFTER" envDefault:"5s" help:"how long local state may fail before events of routes with on_state_failure: fail_open go out unchecked"`

	// MaxDecompressedBatchBytes is what a batch of an input topic may unpack to; a larger
	// one is stepped over with a dead letter that says where it stands. 0
	// is DecompressedBatchBytesDefault.
	MaxDecompressedBatchBytes int `env:"MAX_DECOMPRESSED_BATCH_BYTES" envDefault:"67108864" help:"bytes a compressed batch of an input may unpack to; a larger one goes to the dead-letter topic as a pointer"`
}

// Disk holds the levels of diskGuard. All zero turns it off.
type Disk struct {
	// MinFreePercent is the free space, in percent of the disk as df counts
	// it, below which tasks pause, until a fifth more is free again.
	MinFreePercent int `env:"MIN_FREE_PERCENT" envDefault:"10" help:"free disk space of the state directory below which tasks pause until there is more; 0 = never"`
	// StartMinFreePercent is that below which the process does not start. At most
	// MinFreePercent.
	StartMinFreePercent int `env:"START_MIN_FREE_PERCENT" envDefault:"5" help:"free disk space of the state directory below which the process does not start; 0 = never"`
	// MinFreeBytes raises the pause level of a small disk to so many bytes,
	// and the refuse level to half of it.
	MinFreeBytes int64 `env:"MIN_FREE_BYTES" envDefault:"67108864" help:"tasks also pause below so many free bytes; half of it refuses a start"`
}

// The values of Config.Start.
const (
	StartEarliest = "earliest"
	StartLatest   = "latest"
)

// Limits of Config. A Kafka name has at most 249 characters; what follows an
// app id in one of ours (topic, role, worker) must fit behind it.
const (
	AppIDMax                  = 100
	InstanceIDMax             = 100
	PartitionsMax             = 10_000
	WorkersMax                = 1024
	KeySecretMin              = 16
	DiskMax                   = 50 // percent
	RebuildsMax               = 1000
	DecompressedBatchBytesMin = 1 << 20
	DecompressedBatchBytesMax = 1 << 30
	// DecompressedBatchBytesDefault is 64 times the largest batch that a broker with
	// default settings takes.
	DecompressedBatchBytesDefault = 64 << 20
)

// Validate reports everything wrong with c at once, joined by errors.Join, or
// nil. It trusts no tag: a variable that is set but empty arrives here as its
// default or as nothing. Certificate files are read, the network is not touched.
func (c Config) Validate() error {
	var m mistakes
	c.validateBrokers(&m)
	m.add(validateName("ONCEBUS_APP_ID", c.AppID, AppIDMax))
	m.add(validateName("ONCEBUS_INSTANCE_ID", c.InstanceID, InstanceIDMax))
	if c.Partitions < 1 || c.Partitions > PartitionsMax {
		m.addf("ONCEBUS_PARTITIONS: %d is out of range, want 1 to %d", c.Partitions, PartitionsMax)
	}
	if c.ReplicationFactor != -1 && c.ReplicationFactor < 1 {
		m.addf("ONCEBUS_REPLICATION_FACTOR: %d is out of range, want 1 or more, or -1 for the broker's default", c.ReplicationFactor)
	}
	if strings.TrimSpace(c.StateDir) == "" {
		m.addf("ONCEBUS_STATE_DIR: empty, want a directory")
	}
	if c.Workers < 0 || c.Workers > WorkersMax {
		m.addf("ONCEBUS_WORKERS: %d is out of range, want 0 (one per core) to %d", c.Workers, WorkersMax)
	}
	if c.Start != StartEarliest && c.Start != StartLatest {
		m.addf("ONCEBUS_START: %q is unknown, want %s or %s", c.Start, StartEarliest, StartLatest)
	}
	c.validateTimes(&m)
	if n := len(c.KeySecret); n > 0 && n < KeySecretMin {
		m.addf("ONCEBUS_KEY_SECRET: %d bytes are too few to keep keys from being guessed, want at least %d", n, KeySecretMin)
	}
	c.validateSecurity(&m)
	c.validateState(&m)
	c.validateLimits(&m)
	return m.err()
}

// validateBrokers checks the form of the seed brokers, not whether they answer.
func (c Config) validateBrokers(m *mistakes) {
	if len(c.Brokers) == 0 {
		m.addf("ONCEBUS_BROKERS: not set, want one or more host:port, comma separated")
	}
	for _, b := range c.Brokers {
		m.add(validateBroker(b))
	}
}

// validateState passes on what the stores find wrong with their part, with the
// whole names of the variables.
func (c Config) validateState(m *mistakes) {
	err := c.State.Validate()
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			m.addf("ONCEBUS_STATE_%w", e)
		}
	} else if err != nil {
		m.addf("ONCEBUS_STATE_%w", err)
	}
}

// validateLimits checks what bounds disk, rebuilds and memory.
func (c Config) validateLimits(m *mistakes) {
	if c.Disk.MinFreePercent < 0 || c.Disk.MinFreePercent > DiskMax {
		m.addf("ONCEBUS_DISK_MIN_FREE_PERCENT: %d is out of range, want 0 to %d", c.Disk.MinFreePercent, DiskMax)
	}
	if c.Disk.StartMinFreePercent < 0 || c.Disk.StartMinFreePercent > c.Disk.MinFreePercent {
		m.addf("ONCEBUS_DISK_START_MIN_FREE_PERCENT: %d is out of range, want 0 to ONCEBUS_DISK_MIN_FREE_PERCENT (%d)", c.Disk.StartMinFreePercent, c.Disk.MinFreePercent)
	}
	if c.Disk.MinFreeBytes < 0 {
		m.addf("ONCEBUS_DISK_MIN_FREE_BYTES: %d is out of range, want 0 or more", c.Disk.MinFreeBytes)
	}
	if c.RebuildsPerHour < 0 || c.RebuildsPerHour > RebuildsMax {
		m.addf("ONCEBUS_REBUILDS_PER_HOUR: %d is out of range, want 0 (no limit) to %d", c.RebuildsPerHour, RebuildsMax)
	}
	if c.MaxDecompressedBatchBytes != 0 && (c.MaxDecompressedBatchBytes < DecompressedBatchBytesMin || c.MaxDecompressedBatchBytes > DecompressedBatchBytesMax) {
		m.addf("ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES: %d is out of range, want %d to %d", c.MaxDecompressedBatchBytes, DecompressedBatchBytesMin, DecompressedBatchBytesMax)
	}
}

// batchBytes is MaxDecompressedBatchBytes with its default.
func (c Config) maxDecompressedBatchBytes() int {
	return cmp.Or(c.MaxDecompressedBatchBytes, DecompressedBatchBytesDefault)
}

// validateTimes checks every duration and how they stand to one another.
func (c Config) validateTimes(m *mistakes) {
	between := func(name string, d, low, high time.Duration) {
		if d < low || d > high {
			m.addf("%s: %v is out of range, want %v to %v", name, d, low, high)
		}
	}
	between("ONCEBUS_STATE_FAIL_OPEN_AFTER", c.StateFailOpenAfter, 0, time.Hour)
	between("ONCEBUS_SESSION_TIMEOUT", c.SessionTimeout, 100*time.Millisecond, 30*time.Minute)
	between("ONCEBUS_TRANSACTION_TIMEOUT", c.TransactionTimeout, time.Second, 15*time.Minute)
	if c.CommitInterval < time.Millisecond {
		m.addf("ONCEBUS_COMMIT_INTERVAL: %v is too short, want at least 1ms", c.CommitInterval)
	}
	if c.CommitInterval >= c.TransactionTimeout/3 {
		m.addf("ONCEBUS_COMMIT_INTERVAL: %v must be less than a third of ONCEBUS_TRANSACTION_TIMEOUT (%v), or the broker aborts a transaction that is merely slow",
			c.CommitInterval, c.TransactionTimeout)
	}
	if c.StopTimeout <= c.CommitInterval {
		m.addf("ONCEBUS_STOP_TIMEOUT: %v must be more than ONCEBUS_COMMIT_INTERVAL (%v), or no stop can commit what is open",
			c.StopTimeout, c.CommitInterval)
	}
}

// validateName checks a name that becomes part of topic names, group ids and
// group instance ids; Kafka holds all of them to the topic rule.
func validateName(variable, name string, limit int) error {
	switch {
	case name == "":
		return fmt.Errorf("%s: empty, want a name of letters, digits, '.', '_' and '-'", variable)
	case name == "." || name == "..":
		return fmt.Errorf("%s: %q is not a name Kafka takes", variable, name)
	case len(name) > limit:
		return fmt.Errorf("%s: %d characters are too many, want at most %d", variable, len(name), limit)
	}
	for _, r := range name {
		if !isNameRune(r) {
			return fmt.Errorf("%s: %q contains %q, want letters, digits, '.', '_' and '-' only", variable, name, r)
		}
	}
	return nil
}

func isNameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
}

func validateBroker(broker string) error {
	host, port, err := splitBroker(broker)
	if err != nil {
		return fmt.Errorf("ONCEBUS_BROKERS: %q: %w, want host:port", broker, err)
	}
	if host == "" || strings.ContainsAny(host, " \t/") {
		return fmt.Errorf("ONCEBUS_BROKERS: %q has no usable host, want host:port without a scheme", broker)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("ONCEBUS_BROKERS: %q: port %q is no number from 1 to 65535", broker, port)
	}
	return nil
}

// splitBroker splits a seed broker, surrounding spaces removed, with 9092 for
// a missing port.
func splitBroker(broker string) (host, port string, err error) {
	broker = strings.TrimSpace(broker)
	if !strings.Contains(broker, ":") || strings.HasPrefix(broker, "[") && strings.HasSuffix(broker, "]") {
		broker += ":9092"
	}
	host, port, err = net.SplitHostPort(broker)
	var addr *net.AddrError
	if errors.As(err, &addr) {
		err = errors.New(addr.Err)
	}
	return host, port, err
}

// mistakes collects what is wrong, in the order found.
type mistakes struct{ errs []error }

func (m *mistakes) add(err error) {
	if err != nil {
		m.errs = append(m.errs, err)
	}
}

func (m *mistakes) addf(format string, args ...any) {
	m.add(fmt.Errorf(format, args...))
}

// err joins the mistakes; nil when there are none.
func (m *mistakes) err() error { return errors.Join(m.errs...) }
