package state

import (
	"errors"
	"fmt"
	"time"
)

// Config is what the stores of one process share. The tags are the one source
// of name, default and meaning to an operator; the prefix of the variables is
// chosen by the program that embeds it.
type Config struct {
	// FlushRows is how many rows a task collects in memory before they are
	// written as one run. Larger runs cost less CPU and more memory, and
	// more of the changelog is read again after a kill.
	FlushRows int `env:"FLUSH_ROWS" envDefault:"262144" help:"rows a task collects in memory before they are written to disk as one run"`
	// FlushAge bounds the age of rows that are only in memory, and so how
	// far the durable changelog position stays behind while events arrive.
	FlushAge time.Duration `env:"FLUSH_AGE" envDefault:"1m" help:"longest time a row is only in memory; bounds what a restart reads again"`
	// MemoryRows is the budget of unflushed rows of the whole process,
	// about 70 bytes each. It is divided over the open stores; a store gets
	// at least 4096 rows and at most FlushRows.
	MemoryRows int `env:"MEMORY_ROWS" envDefault:"2097152" help:"rows in memory of all tasks of the process, about 70 bytes each"`
	// PageBytes is the size at which rows are packed into pages: what one
	// look-up reads and checks.
	PageBytes int `env:"PAGE_BYTES" envDefault:"8192" help:"size at which rows are packed into a page, the unit of a look-up on disk"`
	// MergeFanIn is how many runs of similar size make one merge.
	MergeFanIn int `env:"MERGE_FAN_IN" envDefault:"4" help:"runs of similar size that are merged into one"`
	// BackgroundJobs bounds how many stores flush, and how many merge, at the same
	// time.
	BackgroundJobs int `env:"BACKGROUND_JOBS" envDefault:"2" help:"stores that flush, and stores that merge, at the same time"`
}

// DefaultConfig returns the defaults that the env tags state.
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

// minStoreRows is the least share of MemoryRows: below it the runs become so
// small that the store only merges.
const minStoreRows = 4096

// Validate reports every value out of range at once.
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
