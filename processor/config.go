package processor

import (
	"strings"
	"time"

	"oncebus/processor/app"
	"oncebus/processor/restore"
	"oncebus/processor/security"
	"oncebus/state"
)

// Config has all settings of the processor. The env, envDefault
// and help tags are read by cmd/oncebus, which puts ONCEBUS_ in front of every
// name; this package reads no environment. Errors name a field by its
// environment variable, because that is where the reader can change it.
type Config struct {
	app.Config

	// StateDir has one directory of local state per task. If it is lost, the
	// process rebuilds it from the changelog. Two processes must not share one.
	StateDir string `env:"STATE_DIR" envDefault:"./oncebus-state" help:"local state; rebuilt from the changelog when lost"`

	// Workers is how many workers run tasks in this process; 0 means one per
	// core. A worker without a task is idle.
	Workers int `env:"WORKERS" envDefault:"0" help:"workers for the tasks; 0 = one per core"`

	// CommitInterval is the longest time a transaction stays open. While a worker is busy, its transactions end
	// this far apart. That is most of the delay of an event from input to output. An event that comes after a
	// pause, or for which a request by HTTP waits, only waits until its transactions are committed. At least
	// 1ms, and less than a third of TransactionTimeout, so that the broker aborts no slow commit.
	CommitInterval time.Duration `env:"COMMIT_INTERVAL" envDefault:"100ms" help:"longest time a transaction stays open"`

	// SessionTimeout is how long the group waits for a heartbeat of a member
	// before it assigns its partitions to others: 100ms to 30m. Brokers refuse
	// less than their group.min.session.timeout.ms, 6s by default.
	SessionTimeout time.Duration `env:"SESSION_TIMEOUT" envDefault:"10s" help:"how long the group waits for a silent member before others take over"`

	// StopTimeout is how long a process may take to end its open transactions
	// and leave its groups after SIGTERM. More than CommitInterval, less than
	// the grace period of the supervisor.
	StopTimeout time.Duration `env:"STOP_TIMEOUT" envDefault:"20s" help:"how long a stop may take to commit and leave the group"`

	// LeaveOnStop says that a clean stop leaves the group, so that other processes take over the partitions at
	// once. With false, the group keeps the membership for SessionTimeout. This is for a process that comes back
	// within that time under the same InstanceID: its partitions wait for it, and no other process restores
	// them. A stop in the middle of a rebalance leaves the group with either value (A23).
	LeaveOnStop bool `env:"LEAVE_ON_STOP" envDefault:"true" help:"leave the group at a stop, so that others take over at once; false for a process that comes back under its ONCEBUS_INSTANCE_ID within ONCEBUS_SESSION_TIMEOUT"`

	// Standby makes the process follow the changelogs of tasks of other processes. One process follows each
	// task. The process needs as much disk for these copies as for the stores of its own tasks.
	Standby bool `env:"STANDBY" envDefault:"false" help:"follow the changelogs of tasks of other processes on the local disk, so that a takeover reads only their tails; needs disk for these tasks too"`

	// ConnectHeaders adds the headers to dead letters by which Kafka Connect says where a record
	// came from and why it failed.
	ConnectHeaders bool `env:"DEAD_LETTER_CONNECT_HEADERS" envDefault:"false" help:"dead letters also have the headers of Kafka Connect, __connect.errors.*, for tools that read those"`

	// DuplicateLog says how duplicates are logged.
	DuplicateLog app.DuplicateLog `envPrefix:"LOG_DUPLICATES_"`

	// State is how the local stores use memory and disk.
	State state.Config `envPrefix:"STATE_"`

	// Disk is the free space that the disk of StateDir must have.
	Disk restore.Disk `envPrefix:"DISK_"`

	// RebuildsPerHour is how many times within an hour the processor quarantines the damaged local state of one
	// task and rebuilds it. If one more rebuild is needed within the hour, the process stops, and stops again at
	// every start until the hour is over. 0 is no limit.
	RebuildsPerHour int `env:"REBUILDS_PER_HOUR" envDefault:"2" help:"rebuilds of one task's damaged local state within an hour, over restarts; one more stops the process; 0 = no limit"`

	// StateFailOpenAfter is how long local state may be unusable before events of
	// routes with on_state_failure: fail_open are forwarded unchecked: 0 to 1h.
	StateFailOpenAfter time.Duration `env:"STATE_FAIL_OPEN_AFTER" envDefault:"5s" help:"how long local state may fail before events of routes with on_state_failure: fail_open are forwarded unchecked"`
}

// Limits of Config.
const (
	WorkersMax  = 1024
	DiskMax     = 50 // percent
	RebuildsMax = 1000
)

// Validate returns all mistakes of c, joined by errors.Join, or nil. It re-checks
// required fields: env parses `NAME=` as the default or the zero value. It reads the
// certificate files and opens no connection.
func (c Config) Validate() error {
	var m security.Mistakes
	m.Add(c.Config.Validate())
	if strings.TrimSpace(c.StateDir) == "" {
		m.Addf("ONCEBUS_STATE_DIR: empty, want a directory")
	}
	if c.Workers < 0 || c.Workers > WorkersMax {
		m.Addf("ONCEBUS_WORKERS: %d is out of range, want 0 (one per core) to %d", c.Workers, WorkersMax)
	}
	if c.DuplicateLog.Max < 0 || c.DuplicateLog.Max > app.DuplicateLogMax {
		m.Addf("ONCEBUS_LOG_DUPLICATES_MAX: %d is out of range, want 0 (none) to %d", c.DuplicateLog.Max, app.DuplicateLogMax)
	}
	c.validateTimes(&m)
	c.validateState(&m)
	c.validateLimits(&m)
	return m.Err()
}

// validateState adds the mistakes of State, with the whole names of the variables.
func (c Config) validateState(m *security.Mistakes) {
	err := c.State.Validate()
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			m.Addf("ONCEBUS_STATE_%w", e)
		}
	} else if err != nil {
		m.Addf("ONCEBUS_STATE_%w", err)
	}
}

// validateLimits checks what bounds disk and rebuilds.
func (c Config) validateLimits(m *security.Mistakes) {
	if c.Disk.MinFreePercent < 0 || c.Disk.MinFreePercent > DiskMax {
		m.Addf("ONCEBUS_DISK_MIN_FREE_PERCENT: %d is out of range, want 0 to %d", c.Disk.MinFreePercent, DiskMax)
	}
	if c.Disk.StartMinFreePercent < 0 || c.Disk.StartMinFreePercent > c.Disk.MinFreePercent {
		m.Addf("ONCEBUS_DISK_START_MIN_FREE_PERCENT: %d is out of range, want 0 to ONCEBUS_DISK_MIN_FREE_PERCENT (%d)", c.Disk.StartMinFreePercent, c.Disk.MinFreePercent)
	}
	if c.Disk.MinFreeBytes < 0 {
		m.Addf("ONCEBUS_DISK_MIN_FREE_BYTES: %d is out of range, want 0 or more", c.Disk.MinFreeBytes)
	}
	if c.RebuildsPerHour < 0 || c.RebuildsPerHour > RebuildsMax {
		m.Addf("ONCEBUS_REBUILDS_PER_HOUR: %d is out of range, want 0 (no limit) to %d", c.RebuildsPerHour, RebuildsMax)
	}
}

// markMax bounds the last transaction of the routing stage at a stop. It is a quarter of the
// time of a stop, because the client leaves its group afterwards; a short stop does not
// shorten it below leaveMax. No transaction lasts longer than its timeout.
func (c Config) markMax() time.Duration {
	return max(leaveMax, min(c.StopTimeout/4, c.TransactionTimeout))
}

// validateTimes checks every duration and the relations between them.
func (c Config) validateTimes(m *security.Mistakes) {
	between := func(name string, d, low, high time.Duration) {
		if d < low || d > high {
			m.Addf("%s: %v is out of range, want %v to %v", name, d, low, high)
		}
	}
	between("ONCEBUS_STATE_FAIL_OPEN_AFTER", c.StateFailOpenAfter, 0, time.Hour)
	between("ONCEBUS_SESSION_TIMEOUT", c.SessionTimeout, 100*time.Millisecond, 30*time.Minute)
	if c.CommitInterval < time.Millisecond {
		m.Addf("ONCEBUS_COMMIT_INTERVAL: %v is too short, want at least 1ms", c.CommitInterval)
	}
	if c.CommitInterval >= c.TransactionTimeout/3 {
		m.Addf("ONCEBUS_COMMIT_INTERVAL: %v must be less than a third of ONCEBUS_TRANSACTION_TIMEOUT (%v), else the broker aborts a slow transaction",
			c.CommitInterval, c.TransactionTimeout)
	}
	if c.StopTimeout <= c.CommitInterval {
		m.Addf("ONCEBUS_STOP_TIMEOUT: %v must be more than ONCEBUS_COMMIT_INTERVAL (%v), else a stop cannot commit the open transactions",
			c.StopTimeout, c.CommitInterval)
	}
}
