package processor

import (
	"strings"
	"testing"
	"time"

	"oncebus/processor/app"
	"oncebus/processor/security"
	"oncebus/state"
)

// goodConfig returns the configuration that cmd/oncebus makes of an environment that sets only the brokers.
func goodConfig() Config {
	return Config{
		Config: app.Config{
			Config: security.Config{
				Brokers:    []string{"kafka-1:9092", "kafka-2:9092"},
				AppID:      "oncebus",
				InstanceID: "host-1.example",
			},
			Partitions:         12,
			ReplicationFactor:  -1,
			Start:              app.StartEarliest,
			TransactionTimeout: 15 * time.Second,
		},
		StateDir:       "./oncebus-state",
		CommitInterval: 100 * time.Millisecond,
		SessionTimeout: 10 * time.Second,
		StopTimeout:    20 * time.Second,
		State:          state.DefaultConfig(),
	}
}

func TestConfigValidateAcceptsDefaults(t *testing.T) {
	if err := goodConfig().Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestConfigValidateNamesTheVariable(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Config)
		want   string // the whole message; "" accepts
	}{
		{"no brokers", func(c *Config) { c.Brokers = nil }, "ONCEBUS_BROKERS: not set, want one or more host:port, comma separated"},
		{"empty broker", func(c *Config) { c.Brokers = []string{"a:1", ""} }, `ONCEBUS_BROKERS: entry 2 of 2 is empty: take out the comma before or after it`},
		{"brokers with another separator", func(c *Config) { c.Brokers = []string{"a;b"} }, `ONCEBUS_BROKERS: "a;b" has ';' in its host, want host:port, and a comma between two brokers`},
		{"broker with scheme", func(c *Config) { c.Brokers = []string{"kafka://a:1"} }, `ONCEBUS_BROKERS: "kafka://a:1": too many colons in address, want host:port`},
		{"broker with bad port", func(c *Config) { c.Brokers = []string{"a:70000"} }, `ONCEBUS_BROKERS: "a:70000": port "70000" is invalid, want a number from 1 to 65535`},
		{"broker without port", func(c *Config) { c.Brokers = []string{"kafka"} }, ""},
		{"broker with spaces around", func(c *Config) { c.Brokers = []string{" kafka:9092 "} }, ""},
		{"broker over IPv6", func(c *Config) { c.Brokers = []string{"[::1]:9092", "[::1]"} }, ""},
		{"empty app id", func(c *Config) { c.AppID = "" }, "ONCEBUS_APP_ID: empty, want a name of letters, digits, '.', '_' and '-'"},
		{"app id with slash", func(c *Config) { c.AppID = "a/b" }, `ONCEBUS_APP_ID: "a/b" contains '/', want letters, digits, '.', '_' and '-' only`},
		{"app id of dots", func(c *Config) { c.AppID = ".." }, `ONCEBUS_APP_ID: Kafka rejects the name "..", want letters or digits in it`},
		{"app id at the limit", func(c *Config) { c.AppID = strings.Repeat("a", security.AppIDMax) }, ""},
		{"app id over the limit", func(c *Config) { c.AppID = strings.Repeat("a", security.AppIDMax+1) }, "ONCEBUS_APP_ID: 101 characters are too many, want at most 100"},
		{"empty instance id", func(c *Config) { c.InstanceID = "" }, "ONCEBUS_INSTANCE_ID: empty, want a name of letters, digits, '.', '_' and '-'"},
		{"no partitions", func(c *Config) { c.Partitions = 0 }, "ONCEBUS_PARTITIONS: 0 is out of range, want 1 to 10000"},
		{"tiny batches", func(c *Config) { c.MaxDecompressedBatchBytes = 1<<20 - 1 }, "ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES: 1048575 is out of range, want 1048576 to 1073741824"},
		{"no memory for batches", func(c *Config) { c.MaxDecompressedBytes = 1 }, "ONCEBUS_MAX_DECOMPRESSED_BYTES: 1 is out of range, want 1048576 to 1099511627776"},
		{"too many partitions", func(c *Config) { c.Partitions = app.PartitionsMax + 1 }, "ONCEBUS_PARTITIONS: 10001 is out of range, want 1 to 10000"},
		{"replication factor 0", func(c *Config) { c.ReplicationFactor = 0 }, "ONCEBUS_REPLICATION_FACTOR: 0 is out of range, want 1 or more, or -1 for the broker's default"},
		{"minimum in sync -2", func(c *Config) { c.MinInsyncReplicas = -2 }, "ONCEBUS_MIN_INSYNC_REPLICAS: -2 is out of range, want 1 or more, or -1 for the broker's default"},
		{"minimum in sync -1", func(c *Config) { c.MinInsyncReplicas = -1 }, ""},
		{"replication factor 3", func(c *Config) { c.ReplicationFactor = 3 }, ""},
		{"no state directory", func(c *Config) { c.StateDir = " " }, "ONCEBUS_STATE_DIR: empty, want a directory"},
		{"negative workers", func(c *Config) { c.Workers = -1 }, "ONCEBUS_WORKERS: -1 is out of range, want 0 (one per core) to 1024"},
		{"unknown start", func(c *Config) { c.Start = "Earliest" }, `ONCEBUS_START: "Earliest" is unknown, want earliest or latest`},
		{"no commit interval", func(c *Config) { c.CommitInterval = 0 }, "ONCEBUS_COMMIT_INTERVAL: 0s is too short, want at least 1ms"},
		{"commit interval at a third", func(c *Config) { c.CommitInterval = 5 * time.Second },
			"ONCEBUS_COMMIT_INTERVAL: 5s must be less than a third of ONCEBUS_TRANSACTION_TIMEOUT (15s), else the broker aborts a slow transaction"},
		{"session too short", func(c *Config) { c.SessionTimeout = time.Millisecond }, "ONCEBUS_SESSION_TIMEOUT: 1ms is out of range, want 100ms to 30m0s"},
		{"transaction too long", func(c *Config) { c.TransactionTimeout = time.Hour }, "ONCEBUS_TRANSACTION_TIMEOUT: 1h0m0s is out of range, want 1s to 15m0s"},
		{"stop before a commit", func(c *Config) { c.StopTimeout = 100 * time.Millisecond },
			"ONCEBUS_STOP_TIMEOUT: 100ms must be more than ONCEBUS_COMMIT_INTERVAL (100ms), else a stop cannot commit the open transactions"},
		{"short secret", func(c *Config) { c.KeySecret = "fifteen bytes.." },
			"ONCEBUS_KEY_SECRET: 15 bytes are too few, want at least 16"},
		{"long enough secret", func(c *Config) { c.KeySecret = "sixteen bytes..." }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := goodConfig()
			tt.change(&c)
			var got string
			if err := c.Validate(); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

// TestMarksOfAStopHaveTime protects the time that a stop has for writing its marks. Two seconds were too short with
// many partitions on a busy machine, and the next start found no marks.
func TestMarksOfAStopHaveTime(t *testing.T) {
	for _, tt := range []struct{ stop, transaction, want time.Duration }{
		{20 * time.Second, 15 * time.Second, 5 * time.Second}, // the defaults
		{2 * time.Minute, 15 * time.Second, 15 * time.Second},
		{2 * time.Second, 15 * time.Second, leaveMax},
		{20 * time.Second, time.Second, leaveMax},
	} {
		c := goodConfig()
		c.StopTimeout, c.TransactionTimeout = tt.stop, tt.transaction
		if got := c.markMax(); got != tt.want {
			t.Errorf("stop %v, transaction %v: %v, want %v", tt.stop, tt.transaction, got, tt.want)
		}
	}
}

func TestConfigValidateReportsAllAtOnce(t *testing.T) {
	got := strings.Split(Config{}.Validate().Error(), "\n")
	for i, variable := range []string{
		"BROKERS", "APP_ID", "INSTANCE_ID", "PARTITIONS", "REPLICATION_FACTOR", "START", "TRANSACTION_TIMEOUT", "STATE_DIR",
		"SESSION_TIMEOUT", "COMMIT_INTERVAL", "COMMIT_INTERVAL", "STOP_TIMEOUT",
		"STATE_FLUSH_ROWS", "STATE_MEMORY_ROWS", "STATE_PAGE_BYTES", "STATE_MERGE_FAN_IN", "STATE_BACKGROUND_JOBS", "STATE_FLUSH_AGE",
	} {
		if i >= len(got) || !strings.HasPrefix(got[i], "ONCEBUS_"+variable) {
			t.Fatalf("mistake %d is not about %s:\n%s", i, variable, strings.Join(got, "\n"))
		}
	}
}
