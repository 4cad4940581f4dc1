package state

import (
	"errors"
	"fmt"
	"time"
)

// Config is the configuration that the stores of one process share. The tags define the name, default and
// help text of each setting. The embedding program chooses the prefix of the variables.
type Config struct {
	// FlushRows is how many rows a task collects in memory before it writes them as one run. Larger runs cost
	// less CPU and more memory, and after a kill a restore reads more of the changelog.
	FlushRows int `env:"FLUSH_ROWS" envDefault:"262144" help:"rows a task collects in memory before they are written to disk as one run"`
	// FlushAge is the longest time for which a row is only in memory. It also bounds how far the durable
	// changelog position lags while events arrive.
	FlushAge time.Duration `env:"FLUSH_AGE" envDefault:"1m" help:"longest time a row is only in memory; bounds what a restart reads again"`
	// MemoryRows is the process's budget of rows in memory, about 70 bytes
	// each. The open stores share it equally; each store gets at least 4096
	// rows and at most FlushRows.
	MemoryRows int `env:"MEMORY_ROWS" envDefault:"2097152" help:"rows in memory of all tasks of the process, about 70 bytes each"`
	// PageBytes is the target size of a page. A look-up in a run reads and verifies one page.
	PageBytes int `env:"PAGE_BYTES" envDefault:"8192" help:"target size of a page of rows; one look-up on disk reads one page"`
	// MergeFanIn is how many runs of similar size one merge joins.
	MergeFanIn int `env:"MERGE_FAN_IN" envDefault:"4" help:"runs of similar size that are merged into one"`
	// BackgroundJobs is how many stores may flush at the same time, and also how many may merge or collect
	// the value log at the same time.
	BackgroundJobs int `env:"BACKGROUND_JOBS" envDefault:"2" help:"stores that flush, and stores that merge, at the same time"`
}

// DefaultConfig returns the defaults of the env tags.
func DefaultConfig() Config {
	return Config{
		FlushRows:      256 << 10,
		FlushAge:       time.Minute,
		MemoryRows:     2 << 20,
		PageBytes:      8 << 10,
		MergeFanIn:     4,
		BackgroundJobs: 2,
	}
}

// minStoreRows is the least share of MemoryRows that a store gets. With fewer rows the runs are so small that
// the store spends its time on merges.
const minStoreRows = 4096

// Validate returns one error for every value out of range, joined.
func (c Config) Validate() error {
	var errs []error
	bound := func(name string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s is %d, must be between %d and %d", name, v, low, high))
		}
	}
	bound("FLUSH_ROWS", c.FlushRows, 1, 4<<20)
	bound("MEMORY_ROWS", c.MemoryRows, 1, 1<<30)
	bound("PAGE_BYTES", c.PageBytes, 128, 256<<10)
	bound("MERGE_FAN_IN", c.MergeFanIn, 2, 16)
	bound("BACKGROUND_JOBS", c.BackgroundJobs, 1, 64)
	if c.FlushAge < 10*time.Millisecond || c.FlushAge > 24*time.Hour {
		errs = append(errs, fmt.Errorf("FLUSH_AGE is %v, must be between 10ms and 24h", c.FlushAge))
	}
	return errors.Join(errs...)
}
