package app

import "log/slog"

// DuplicateLog says how a task logs the duplicates of topics. A duplicate by HTTP also has its line in the
// request log.
type DuplicateLog struct {
	// Level is the level of the log line for a duplicate. The line for an event after its window always has
	// level info, because the app emits the event again.
	Level slog.Level `env:"LEVEL" envDefault:"debug" help:"level of the log line for a duplicate: debug, info, warn or error; the line for an event after its window is info"`
	// Max is how many of these lines a task writes in ten seconds, for each of the two kinds; 0 for none.
	Max int `env:"MAX" envDefault:"10" help:"most lines for duplicates that a task writes in ten seconds, and as many for events after their window; 0 = none. Metrics count all"`
}

// DuplicateLogMax is the largest permitted Max.
const DuplicateLogMax = 10_000
